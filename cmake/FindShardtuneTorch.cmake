# Defines shardtune::torch, the one way this project links LibTorch, and reads two folders with include/ and lib/:
#
#   SHARDTUNE_LIBTORCH        compiled against; the other programs link its libtorch_cpu and libc10
#   SHARDTUNE_LIBTORCH_CUDA   with SHARDTUNE_CUDA: linked by programs with the property SHARDTUNE_CUDA_PROGRAM
#
# Both are CMake variables or variables of the environment; the defaults are the cache folders that tools/setup.sh fills. The
# headers of both must be of one version, so that nothing is compiled twice. LibTorch's TorchConfig.cmake is not used: that of
# a wheel with CUDA demands the toolkit of CPU builds as well, and its answers would differ between the two kinds of program.
include(FindPackageHandleStandardArgs)
set(shardtune_cache "$ENV{SHARDTUNE_CACHE}")
if(NOT shardtune_cache)
  set(shardtune_cache "$ENV{HOME}/.cache/shardtune")
endif()

set(SHARDTUNE_LIBTORCH "$ENV{SHARDTUNE_LIBTORCH}" CACHE PATH "LibTorch folder with include/ and lib/")
if(NOT SHARDTUNE_LIBTORCH)
  set(SHARDTUNE_LIBTORCH "${shardtune_cache}/libtorch-2.11.0-cpu")
endif()
find_path(SHARDTUNE_TORCH_INCLUDE ATen/ATen.h PATHS "${SHARDTUNE_LIBTORCH}/include" NO_DEFAULT_PATH)
find_library(SHARDTUNE_TORCH_CPU torch_cpu PATHS "${SHARDTUNE_LIBTORCH}/lib" NO_DEFAULT_PATH)
find_library(SHARDTUNE_TORCH_C10 c10 PATHS "${SHARDTUNE_LIBTORCH}/lib" NO_DEFAULT_PATH)
find_package_handle_standard_args(ShardtuneTorch
  REASON_FAILURE_MESSAGE "No LibTorch in '${SHARDTUNE_LIBTORCH}'. Run tools/setup.sh, or set SHARDTUNE_LIBTORCH."
  REQUIRED_VARS SHARDTUNE_TORCH_CPU SHARDTUNE_TORCH_C10 SHARDTUNE_TORCH_INCLUDE)

add_library(shardtune_torch INTERFACE)
target_include_directories(shardtune_torch SYSTEM INTERFACE
  "${SHARDTUNE_TORCH_INCLUDE}" "${SHARDTUNE_TORCH_INCLUDE}/torch/csrc/api/include")
add_library(shardtune::torch ALIAS shardtune_torch)

# libtorch_cpu names libcudart and libcupti as its own needs; they lie beside it.
add_library(shardtune_torch_cpu INTERFACE)
target_link_libraries(shardtune_torch_cpu INTERFACE "${SHARDTUNE_TORCH_CPU}" "${SHARDTUNE_TORCH_C10}")
target_link_options(shardtune_torch_cpu INTERFACE "-Wl,-rpath,${SHARDTUNE_LIBTORCH}/lib"
  "-Wl,-rpath-link,${SHARDTUNE_LIBTORCH}/lib")
set(torch_edition shardtune_torch_cpu)

if(SHARDTUNE_CUDA)
  set(SHARDTUNE_LIBTORCH_CUDA "$ENV{SHARDTUNE_LIBTORCH_CUDA}" CACHE PATH "LibTorch folder whose lib/ has CUDA")
  if(NOT SHARDTUNE_LIBTORCH_CUDA)
    if(EXISTS "${SHARDTUNE_LIBTORCH}/lib/libtorch_cuda.so")
      set(SHARDTUNE_LIBTORCH_CUDA "${SHARDTUNE_LIBTORCH}")
    else()
      set(SHARDTUNE_LIBTORCH_CUDA "${shardtune_cache}/libtorch-2.11.0-cuda")
    endif()
  endif()
  set(torch_cuda_lib "${SHARDTUNE_LIBTORCH_CUDA}/lib")
  foreach(file lib/libtorch_cuda.so lib/libc10_cuda.so lib/libtorch_cpu.so lib/libc10.so include/torch/headeronly/version.h)
    if(NOT EXISTS "${SHARDTUNE_LIBTORCH_CUDA}/${file}")
      message(FATAL_ERROR "No LibTorch with CUDA in '${SHARDTUNE_LIBTORCH_CUDA}': it has no ${file}. Run tools/setup.sh --cuda, "
        "or set SHARDTUNE_LIBTORCH_CUDA.")
    endif()
  endforeach()
  file(SHA256 "${SHARDTUNE_TORCH_INCLUDE}/torch/headeronly/version.h" torch_version_cpu)
  file(SHA256 "${SHARDTUNE_LIBTORCH_CUDA}/include/torch/headeronly/version.h" torch_version_cuda)
  if(NOT torch_version_cpu STREQUAL torch_version_cuda)
    message(FATAL_ERROR "SHARDTUNE_LIBTORCH '${SHARDTUNE_LIBTORCH}' and SHARDTUNE_LIBTORCH_CUDA '${SHARDTUNE_LIBTORCH_CUDA}' are of "
      "different versions (include/torch/headeronly/version.h). Set SHARDTUNE_LIBTORCH to the folder with CUDA, too.")
  endif()

  # The operators for CUDA register themselves when the library is loaded; the linker sees no call. LibTorch's own libraries want
  # more of NVIDIA's (cuFile, cuSPARSELt, NVSHMEM) than this project calls: the machine that runs the program needs them, one
  # that only builds it does not.
  add_library(shardtune_torch_cuda INTERFACE)
  target_link_libraries(shardtune_torch_cuda INTERFACE
    "-Wl,--push-state,--no-as-needed,${torch_cuda_lib}/libtorch_cuda.so,--pop-state" "${torch_cuda_lib}/libc10_cuda.so"
    "${torch_cuda_lib}/libtorch_cpu.so" "${torch_cuda_lib}/libc10.so")
  target_link_options(shardtune_torch_cuda INTERFACE -Wl,--allow-shlib-undefined "-Wl,-rpath,${torch_cuda_lib}"
    "-Wl,-rpath-link,${torch_cuda_lib}")
  # The property of the program that is linked.
  set(torch_edition "$<IF:$<BOOL:$<TARGET_PROPERTY:SHARDTUNE_CUDA_PROGRAM>>,shardtune_torch_cuda,shardtune_torch_cpu>")
endif()
target_link_libraries(shardtune_torch INTERFACE "${torch_edition}")
