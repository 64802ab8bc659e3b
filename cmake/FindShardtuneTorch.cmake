# Defines shardtune::torch, the one way this project links LibTorch.
#
# CPU build: TorchConfig.cmake of the CUDA wheel demands the whole CUDA toolkit, so libtorch_cpu and libc10 are
# imported directly. CUDA build: find_package(Torch) with the toolkit.
#
# SHARDTUNE_LIBTORCH (CMake variable or environment) names the folder that holds include/ and lib/; the default is the
# cache folder that tools/setup.sh fills.
set(SHARDTUNE_LIBTORCH "$ENV{SHARDTUNE_LIBTORCH}" CACHE PATH "LibTorch folder with include/ and lib/")
if(NOT SHARDTUNE_LIBTORCH)
  set(_cache "$ENV{SHARDTUNE_CACHE}")
  if(NOT _cache)
    set(_cache "$ENV{HOME}/.cache/shardtune")
  endif()
  set(SHARDTUNE_LIBTORCH "${_cache}/libtorch-2.11.0-cpu")
endif()

if(SHARDTUNE_CUDA)
  list(PREPEND CMAKE_PREFIX_PATH "${SHARDTUNE_LIBTORCH}")
  # TorchConfig would look for a device otherwise, and a machine that only builds has none.
  if(NOT DEFINED TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
    list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^([0-9]+)([0-9]).*$" "\\1.\\2" OUTPUT_VARIABLE TORCH_CUDA_ARCH_LIST)
  endif()
  find_package(Torch REQUIRED)
  add_library(shardtune_torch INTERFACE)
  target_link_libraries(shardtune_torch INTERFACE ${TORCH_LIBRARIES})
  target_include_directories(shardtune_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  # LibTorch's own libraries want more of NVIDIA's (cuFile, cuSPARSELt, NVSHMEM) than this project calls. The machine that runs
  # the program needs them, one that only builds it does not.
  target_link_options(shardtune_torch INTERFACE -Wl,--allow-shlib-undefined)
  add_library(shardtune::torch ALIAS shardtune_torch)
  set(ShardtuneTorch_FOUND TRUE)
  return()
endif()

include(FindPackageHandleStandardArgs)
find_path(SHARDTUNE_TORCH_INCLUDE ATen/ATen.h PATHS "${SHARDTUNE_LIBTORCH}/include" NO_DEFAULT_PATH)
find_library(SHARDTUNE_TORCH_CPU torch_cpu PATHS "${SHARDTUNE_LIBTORCH}/lib" NO_DEFAULT_PATH)
find_library(SHARDTUNE_TORCH_C10 c10 PATHS "${SHARDTUNE_LIBTORCH}/lib" NO_DEFAULT_PATH)
find_package_handle_standard_args(ShardtuneTorch
  REASON_FAILURE_MESSAGE "No LibTorch in '${SHARDTUNE_LIBTORCH}'. Run tools/setup.sh, or set SHARDTUNE_LIBTORCH."
  REQUIRED_VARS SHARDTUNE_TORCH_CPU SHARDTUNE_TORCH_C10 SHARDTUNE_TORCH_INCLUDE)

if(ShardtuneTorch_FOUND AND NOT TARGET shardtune::torch)
  add_library(shardtune_torch INTERFACE)
  target_include_directories(shardtune_torch SYSTEM INTERFACE
    "${SHARDTUNE_TORCH_INCLUDE}" "${SHARDTUNE_TORCH_INCLUDE}/torch/csrc/api/include")
  target_link_libraries(shardtune_torch INTERFACE "${SHARDTUNE_TORCH_CPU}" "${SHARDTUNE_TORCH_C10}")
  # libtorch_cpu names libcudart and libcupti as its own needs; they lie beside it.
  target_link_options(shardtune_torch INTERFACE "-Wl,-rpath,${SHARDTUNE_LIBTORCH}/lib"
    "-Wl,-rpath-link,${SHARDTUNE_LIBTORCH}/lib")
  add_library(shardtune::torch ALIAS shardtune_torch)
endif()
