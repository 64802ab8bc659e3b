#include "shardtune/core/blas.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <limits>

#include "gemm.h"
#include "shardtune/core/error.h"

namespace shardtune::ops {
namespace {

// CBLAS of the reference BLAS: orders, transpositions and the product.
constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int n, int m, int k, float alpha, const float* a,
                       int lda, const float* b, int ldb, float beta, float* c, int ldc);

struct OpenBlas {
  Sgemm sgemm = nullptr;
  std::string version, kernels;
};

/// The library in use; sgemm null: LibTorch's own.
OpenBlas& in_use() {
  static OpenBlas blas;
  return blas;
}

/// Its names must not become visible to LibTorch, whose own products would then run in it (local), and it must call its own
/// functions where LibTorch has some of the same name (deep binding, which the address sanitizer cannot follow).
#if defined(__SANITIZE_ADDRESS__)
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;
#elif defined(__has_feature)
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | (__has_feature(address_sanitizer) ? 0 : RTLD_DEEPBIND);
#else
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

template <typename F>
F symbol(void* library, const char* name) {
  return reinterpret_cast<F>(dlsym(library, name));
}

/// Why it could not be loaded, "" when it was.
std::string load_openblas(OpenBlas& blas) {
  void* library = dlopen("libopenblas.so.0", kOpenFlags);
  if (library == nullptr) library = dlopen("libopenblas.so", kOpenFlags);
  if (library == nullptr) return dlerror();
  const auto sgemm = symbol<Sgemm>(library, "cblas_sgemm");
  const auto set_threads = symbol<void (*)(int)>(library, "openblas_set_num_threads");
  const auto config = symbol<const char* (*)()>(library, "openblas_get_config");
  const auto kernels = symbol<const char* (*)()>(library, "openblas_get_corename");
  if (sgemm == nullptr || set_threads == nullptr || config == nullptr || kernels == nullptr)
    return "the library lacks cblas_sgemm or openblas_* functions";
  const std::string text = config();  // "OpenBLAS 0.3.21 NO_AFFINITY ..."
  if (text.find("USE64BITINT") != std::string::npos) return "the library was built with 64-bit integers";
  set_threads(at::get_num_threads());
  blas.version = text.substr(0, text.find(' ', text.find(' ') + 1));
  blas.kernels = kernels();
  blas.sgemm = sgemm;
  return "";
}

bool is_amd() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

/// How CBLAS is to read a matrix that lies in memory by rows or, as a transposed view does, by columns.
struct Operand {
  at::Tensor kept;
  int transposition = kNoTranspose, stride = 1;
};

Operand operand(const at::Tensor& x) {
  const auto as_int = [](std::int64_t stride) { return static_cast<int>(std::max<std::int64_t>(stride, 1)); };
  if (x.stride(1) == 1 && x.stride(0) >= x.size(1)) return {x, kNoTranspose, as_int(x.stride(0))};
  if (x.stride(0) == 1 && x.stride(1) >= x.size(0)) return {x, kTranspose, as_int(x.stride(1))};
  const at::Tensor copy = x.contiguous();
  return {copy, kNoTranspose, as_int(x.size(1))};
}

}  // namespace

void choose_blas(std::string_view name) {
  in_use() = OpenBlas{};
  if (name == "mkl" || (name == "auto" && !is_amd())) return;
  const std::string problem = load_openblas(in_use());
  if (!problem.empty() && name == "openblas")
    fail(ErrorClass::kUsage,
         "--blas openblas: {}; install libopenblas0-pthread, set LD_LIBRARY_PATH, or give --blas mkl", problem);
}

std::string describe_blas() {
  if (in_use().sgemm == nullptr) return "MKL (LibTorch's own)";
  return fmt::format("{} (kernels for {})", in_use().version, in_use().kernels);
}

std::string blas_file() {
  void* address = in_use().sgemm != nullptr ? reinterpret_cast<void*>(in_use().sgemm) : dlsym(RTLD_DEFAULT, "sgemm_");
  Dl_info info{};
  if (address == nullptr || dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  return info.dli_fname;
}

void gemm_fp32(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool add) {
  const std::int64_t n = a.size(0), k = a.size(1), m = b.size(1);
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  if (in_use().sgemm == nullptr || n == 0 || m == 0 || k == 0 || n > kMax || m > kMax || k > kMax) {
    if (add) sum.addmm_(a, b);
    else at::mm_out(sum, a, b);
    return;
  }
  const Operand left = operand(a), right = operand(b);
  if (sum.is_meta()) return;
  in_use().sgemm(kRowMajor, left.transposition, right.transposition, static_cast<int>(n), static_cast<int>(m),
                 static_cast<int>(k), 1.0f, left.kept.const_data_ptr<float>(), left.stride,
                 right.kept.const_data_ptr<float>(), right.stride, add ? 1.0f : 0.0f, sum.mutable_data_ptr<float>(),
                 static_cast<int>(m));
}

}  // namespace shardtune::ops
