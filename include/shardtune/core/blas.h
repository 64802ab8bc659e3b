#pragma once
#include <string>
#include <string_view>

/// Which library multiplies fp32 matrices on the CPU. One for the whole run: MKL, which is inside LibTorch, or OpenBLAS, loaded
/// beside it without replacing anything in LibTorch.
namespace shardtune::ops {

/// `name` is mkl, openblas or auto: OpenBLAS on AMD processors where it can be loaded, MKL everywhere else. It decides by the
/// processor and not by a measurement, so that the same machine always gives the same bits. OpenBLAS gets at::get_num_threads()
/// threads, so the number is set before. Error(kUsage) when openblas is asked for and cannot be loaded.
void choose_blas(std::string_view name);

/// What serves, for the log: "MKL (LibTorch's own)" or "OpenBLAS 0.3.21 (kernels for Zen)".
std::string describe_blas();

/// The file the products come from, as the dynamic linker knows it.
std::string blas_file();

}  // namespace shardtune::ops
