#!/usr/bin/env bash
# Makes a machine ready to build: the distribution's packages (Debian 12, Ubuntu 24.04) and LibTorch.
# What is there already is left alone, so a second run takes a second and needs no network.
#
#   tools/setup.sh           packages and LibTorch for the CPU
#   tools/setup.sh --cuda    LibTorch with CUDA in a folder of its own, besides: 1 GB, of the same wheel as the other
#
#   SHARDTUNE_CACHE          where LibTorch, wheels and the demo model are kept (default ~/.cache/shardtune)
#   SHARDTUNE_LIBTORCH       a LibTorch folder of your own (include/ and lib/); nothing is downloaded then
#   SHARDTUNE_LIBTORCH_CUDA  with --cuda: one with CUDA, of the same version; not needed where SHARDTUNE_LIBTORCH has CUDA
#   SHARDTUNE_SKIP_PACKAGES  1: do not look at packages (clusters with environment modules)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(g++ cmake ninja-build ccache pkg-config python3 openmpi-bin libopenmpi-dev libhdf5-dev
  libboost-program-options-dev libgtest-dev libgmock-dev libopenblas0-pthread nlohmann-json3-dev libpcre2-dev libxxhash-dev libfmt-dev)

case ${1:-} in
  "" | --cuda) ;;
  *) die "unknown argument '$1'; usage: tools/setup.sh [--cuda]" ;;
esac

# missing_packages: prints the packages to install. pip and numpy count as present when any python3 has them.
missing_packages() {
  local wanted=("${packages[@]}") present
  python_with numpy >/dev/null || wanted+=(python3-numpy)
  python_with pip >/dev/null || wanted+=(python3-pip)
  # dpkg-query fails when it does not know one of the names; what it prints for the others still counts.
  present=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null | sed -n 's/^installed //p' || true)
  comm -23 <(printf '%s\n' "${wanted[@]}" | sort -u) <(printf '%s\n' "$present" | sort -u)
}

install_packages() {
  local missing
  if ! command -v dpkg-query >/dev/null; then
    printf 'not a Debian system: packages are not checked; the build needs what Debian calls %s\n' "${packages[*]}"
    return 0
  fi
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} > 0)) || return 0
  if [ "$(id -u)" -ne 0 ]; then
    printf 'shardtune: %d packages are missing. Install them, then run this again:\n' "${#missing[@]}" >&2
    printf '  sudo apt-get install %s\n' "${missing[*]}" >&2
    exit 1
  fi
  printf 'installing %s\n' "${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || die "apt-get update failed; check the network and /etc/apt/sources.list"
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get install failed, see above; check network and disk space"
}

if [ "${SHARDTUNE_SKIP_PACKAGES:-0}" != 1 ]; then
  install_packages
fi

if [ -n "${SHARDTUNE_LIBTORCH:-}" ]; then
  for file in include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so; do
    [ -e "$SHARDTUNE_LIBTORCH/$file" ] || die "SHARDTUNE_LIBTORCH is $SHARDTUNE_LIBTORCH, but it holds no $file"
  done
  printf 'LibTorch: %s (SHARDTUNE_LIBTORCH)\n' "$SHARDTUNE_LIBTORCH"
else
  [ "$(uname -m)" = x86_64 ] || die "the LibTorch wheels are for x86_64, this is $(uname -m); set SHARDTUNE_LIBTORCH"
  python3 tools/make_libtorch.py
fi
if [ "${1:-}" = --cuda ]; then
  own=${SHARDTUNE_LIBTORCH_CUDA:-${SHARDTUNE_LIBTORCH:-}}
  if [ -z "$own" ]; then
    python3 tools/make_libtorch.py --cuda
  elif [ -e "$own/lib/libtorch_cuda.so" ]; then
    printf 'LibTorch with CUDA: %s\n' "$own"
  else
    die "$own holds no lib/libtorch_cuda.so; set SHARDTUNE_LIBTORCH_CUDA to a LibTorch with CUDA of the same version"
  fi
fi
