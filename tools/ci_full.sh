#!/usr/bin/env bash
# The slow checks: a clang build with tests, Debug with address and undefined-behaviour sanitizers with tests, the format,
# and a sample of planted faults that the tests must find. Wants clang and clang-format besides the set-up's packages.
#
#   tools/ci_full.sh [clang|sanitize|format|matrix|mutate ...]     without names: all of them
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

test_build() { # FOLDER [ctest option...]
  local folder=$1
  shift
  ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "${SHARDTUNE_TEST_JOBS:-2}" "$@"
}

check_clang() {
  command -v clang++ >/dev/null || die "no clang++; install the package clang"
  configure_and_build clang
  test_build build-clang
}

check_sanitize() {
  # detect_odr_violation=0: LibTorch's headers define the same inline variables in several libraries on purpose.
  # UBSan stops at the first finding, LSan looks at the end of every process.
  export ASAN_OPTIONS=detect_odr_violation=0:detect_leaks=1:strict_string_checks=1
  export LSAN_OPTIONS=suppressions=$root/tools/lsan.supp:print_suppressions=0
  export UBSAN_OPTIONS=print_stacktrace=1
  configure_and_build sanitize
  test_build build-sanitize -LE mpi
  # Open MPI keeps some memory and unloads its plug-ins before the leak check looks, which then can name no module to
  # suppress: no leak check under mpirun. The same code is checked for leaks by the tests without it.
  ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 test_build build-sanitize -L mpi
}

check_format() {
  command -v clang-format >/dev/null || die "no clang-format; install the package clang-format"
  git ls-files -z -- '*.h' '*.cpp' '*.cu' | xargs -0 -r clang-format --dry-run --Werror
}

check_matrix() { # every combination of sharding options; about an hour on 2 cores
  configure_and_build default
  SHARDTUNE_MATRIX=all test_build build -R mpi_matrix --verbose
}

check_mutate() {
  configure_and_build default
  python3 tools/mutate.py
}

checks=("$@")
((${#checks[@]} > 0)) || checks=(format clang sanitize matrix mutate)
for check in "${checks[@]}"; do
  declare -F "check_$check" >/dev/null || die "unknown check '$check'; known: format clang sanitize matrix mutate"
done

phase "set-up" bash tools/setup.sh
phase "demo model and conversations" make_demo
export SHARDTUNE_DEMO_MODEL=$root/runs/demo/SmolLM2-135M-Instruct
for check in "${checks[@]}"; do
  phase "$check" "check_$check"
done
show_phases
