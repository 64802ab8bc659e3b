// Which library multiplies, and that both give the product.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "shardtune/core/blas.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"

namespace shardtune {
namespace {

/// The file that LibTorch's own calls of sgemm end in: the first definition that is visible to everybody.
std::string file_of_visible_sgemm() {
  Dl_info info{};
  void* address = dlsym(RTLD_DEFAULT, "sgemm_");
  return address != nullptr && dladdr(address, &info) != 0 ? info.dli_fname : "";
}

class Blas : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ops::choose_blas(GetParam()); }
  void TearDown() override { ops::choose_blas("mkl"); }
};

TEST_P(Blas, ServesOurProductsAndNotThoseOfLibTorch) {
  const std::string wanted = std::string(GetParam()) == "openblas" ? "openblas" : "libtorch_cpu";
  EXPECT_NE(ops::blas_file().find(wanted), std::string::npos) << ops::blas_file();
  EXPECT_NE(file_of_visible_sgemm().find("libtorch_cpu"), std::string::npos) << file_of_visible_sgemm();
  EXPECT_EQ(ops::describe_blas().find("OpenBLAS 0.") == 0, wanted == "openblas") << ops::describe_blas();
}

/// Views as the model makes them: whole, transposed, some rows, some columns, one row, and empty ones.
TEST_P(Blas, MultipliesViews) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({37, 29}), w = at::randn({23, 29}), wide = at::randn({40, 60});
  const std::vector<std::pair<at::Tensor, at::Tensor>> pairs = {
      {x, w.t()},
      {x.t(), at::randn({37, 11})},
      {x.narrow(0, 5, 9), w.t()},
      {wide.narrow(1, 7, 29), w.t()},
      {x.narrow(0, 3, 1), w.t()},
      {x.t().narrow(1, 0, 1), at::randn({1, 6})},
      {x, wide.t().narrow(0, 2, 29)},
      {x.narrow(0, 0, 0), w.t()},
      {x.narrow(1, 0, 0), at::empty({0, 4})},
  };
  for (const auto& [a, b] : pairs) {
    const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
    EXPECT_TRUE(at::allclose(ops::matmul(a, b).to(at::kDouble), exact, 1e-5, 1e-5)) << a.sizes() << b.sizes();
    at::Tensor sum = at::ones({a.size(0), b.size(1)});
    ops::add_matmul(sum, a, b);
    EXPECT_TRUE(at::allclose(sum.to(at::kDouble), exact + 1, 1e-5, 1e-5)) << a.sizes() << b.sizes();
  }
}

INSTANTIATE_TEST_SUITE_P(Libraries, Blas, testing::Values("mkl", "openblas"));

TEST(BlasChoice, AutoTakesOneOfThem) {
  ops::choose_blas("auto");
  EXPECT_FALSE(ops::blas_file().empty());
  ops::choose_blas("mkl");
}

}  // namespace
}  // namespace shardtune
