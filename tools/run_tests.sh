#!/usr/bin/env bash
# Set-up, build and every test of this machine. What CI runs. The build is always the whole one.
#
#   tools/run_tests.sh [--cuda] [ctest option...]      for example -L unit (tests of that label), or -R tokenizer
#
#   --cuda   the program over the LibTorch with CUDA is linked, too (build/cuda/shardtune), of the same objects. Without it the
#            CUDA parts alone are compiled and linked, where the toolkit and NCCL are
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

setup_options=()
if [ "${1:-}" = --cuda ]; then
  configure_options+=(-DSHARDTUNE_CUDA=ON)
  setup_options+=(--cuda)
  shift
fi

# 3 on two cores: entries that start programs one after another leave a core idle now and then.
run_ctest() {
  ctest --test-dir build --output-on-failure --no-tests=error -j "${SHARDTUNE_TEST_JOBS:-3}" "$@"
}

phase "set-up" bash tools/setup.sh "${setup_options[@]}"
phase "demo model and conversations" make_demo
export SHARDTUNE_DEMO_MODEL=$root/runs/demo/SmolLM2-135M-Instruct
phase "build" configure_and_build default
phase "tests" run_ctest "$@"
# How much of the matrix of sharding options this run has seen; ctest shows the output of failed tests only.
grep -h "^engine matrix" build/Testing/Temporary/LastTest.log || true
show_phases
