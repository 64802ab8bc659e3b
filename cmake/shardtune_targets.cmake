# Helpers: shardtune_module(), shardtune_test(), shardtune_mpi_test().

add_library(shardtune_flags INTERFACE)
# nvcc hands what follows -Xcompiler to the host's compiler.
target_compile_options(shardtune_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;\
-Woverloaded-virtual;-Wconversion;-Wno-sign-conversion;-fno-math-errno;-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-ffp-contract=off;--fmad=false>")
if(SHARDTUNE_WERROR)
  target_compile_options(shardtune_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
endif()
if(SHARDTUNE_SANITIZE)
  # -O1: the row loops would take minutes otherwise; assertions and stack traces stay.
  target_compile_options(shardtune_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:-O1;-g1;-fsanitize=address,undefined;\
-fno-omit-frame-pointer;-fno-sanitize-recover=undefined>")
  # GCC sees values that are not set in its own <regex> once the sanitizers are on.
  target_compile_options(shardtune_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_link_options(shardtune_flags INTERFACE -fsanitize=address,undefined)
endif()
target_include_directories(shardtune_flags INTERFACE ${CMAKE_SOURCE_DIR}/include)
# LibTorch's include folder holds an fmt of another version: the one that is linked comes before it.
get_target_property(shardtune_fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/fmt_first)
file(CREATE_LINK ${shardtune_fmt_include}/fmt ${CMAKE_BINARY_DIR}/fmt_first/fmt SYMBOLIC)
target_include_directories(shardtune_flags SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/fmt_first)

# One precompiled header (ATen) for every target that uses LibTorch.
add_library(shardtune_pch STATIC ${CMAKE_SOURCE_DIR}/src/core/pch.cpp)
target_link_libraries(shardtune_pch PUBLIC shardtune_flags shardtune::torch fmt::fmt)
target_precompile_headers(shardtune_pch PRIVATE <ATen/ATen.h> <fmt/format.h> <string> <vector> <span>)

# shardtune_module(NAME [TORCH] SOURCES ... [DEPS ...]): the static library shardtune_NAME.
function(shardtune_module name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(shardtune_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(shardtune_${name} PUBLIC shardtune_flags fmt::fmt ${ARG_DEPS})
  if(ARG_TORCH)
    target_link_libraries(shardtune_${name} PUBLIC shardtune::torch)
    target_precompile_headers(shardtune_${name} REUSE_FROM shardtune_pch)
  endif()
endfunction()

find_package(GTest REQUIRED)
# More ranks than cores: one that waits lets the others run.
set(SHARDTUNE_TEST_ENV "OMPI_MCA_mpi_yield_when_idle=1;OMP_NUM_THREADS=1;MKL_NUM_THREADS=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;SHARDTUNE_TEST_DATA=${CMAKE_SOURCE_DIR}/tests/parity/data;SHARDTUNE_BINARY=${CMAKE_BINARY_DIR}/shardtune")

function(shardtune_test_target name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE shardtune_flags GTest::gtest GTest::gmock fmt::fmt ${ARG_DEPS})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  # -fPIC and not CMake's -fPIE for programs: the precompiled header was made with it.
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE shardtune::torch)
    target_precompile_headers(${name} REUSE_FROM shardtune_pch)
  endif()
endfunction()

# shardtune_time_limit(OUT SECONDS): a limit is there to end a hang, and the sanitizers make everything many times slower.
function(shardtune_time_limit out seconds)
  if(SHARDTUNE_SANITIZE)
    math(EXPR seconds "${seconds} * 8")
  endif()
  set(${out} ${seconds} PARENT_SCOPE)
endfunction()

# shardtune_test(NAME LABEL unit|parity [TORCH] [TIMEOUT s] SOURCES ... DEPS ...): one process.
function(shardtune_test name)
  cmake_parse_arguments(ARG "TORCH" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  set(flag "")
  if(ARG_TORCH)
    set(flag TORCH)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  shardtune_time_limit(limit ${ARG_TIMEOUT})
  shardtune_test_target(${name} ${flag} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${limit} ENVIRONMENT "${SHARDTUNE_TEST_ENV}")
endfunction()

# shardtune_mpi_test(NAME [LABEL mpi] RANKS 1 2 3 4 ...): the same program under mpirun, once per number of ranks. Its
# main() is tests/support/mpi_main.cpp, which checks that the number of ranks is the one asked for.
function(shardtune_mpi_test name)
  cmake_parse_arguments(ARG "TORCH" "LABEL;TIMEOUT" "SOURCES;DEPS;RANKS" ${ARGN})
  set(flag "")
  if(ARG_TORCH)
    set(flag TORCH)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 240)
  endif()
  shardtune_time_limit(limit ${ARG_TIMEOUT})
  if(NOT ARG_LABEL)
    set(ARG_LABEL mpi)
  endif()
  shardtune_test_target(${name} ${flag} SOURCES ${ARG_SOURCES} DEPS shardtune_test_mpi ${ARG_DEPS} MPI::MPI_CXX)
  foreach(n ${ARG_RANKS})
    add_test(NAME ${name}_np${n} COMMAND sh -c
      "exec ${MPIEXEC_EXECUTABLE} -np ${n} --oversubscribe --bind-to none $<TARGET_FILE:${name}> </dev/null")
    math(EXPR slots "(${n} + 1) / 2")
    if(slots GREATER 2)
      set(slots 2)
    endif()
    set_tests_properties(${name}_np${n} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${limit} PROCESSORS ${slots}
      ENVIRONMENT "${SHARDTUNE_TEST_ENV};SHARDTUNE_TEST_RANKS=${n}")
  endforeach()
endfunction()
