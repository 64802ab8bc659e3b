# Sourced by the scripts of this folder, never run. The caller has `set -euo pipefail`.
# Sets root (the project's folder) and goes there, so that scripts work from any folder.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

die() {
  printf 'shardtune: %s\n' "$*" >&2
  exit 1
}

# python_with MODULE: prints a python3 that can import MODULE, or fails. A python3 from conda, pyenv or a module system
# may lack what the distribution's own has.
python_with() {
  local python
  for python in python3 /usr/bin/python3; do
    if command -v "$python" >/dev/null && "$python" -c "import $1" 2>/dev/null; then
      printf '%s\n' "$python"
      return 0
    fi
  done
  return 1
}

# phase NAME COMMAND...: runs the command and remembers how long it took; show_phases prints the table.
phase_table=""
phase() {
  local name=$1 begin=$SECONDS
  shift
  printf -- '--- %s\n' "$name"
  "$@"
  phase_table+=$(printf '%6d s  %s' $((SECONDS - begin)) "$name")$'\n'
}

show_phases() {
  printf -- '--- time\n%s' "$phase_table"
}

# build_jobs: one compiler process per core, but at most one per 2 GiB of memory: the ATen headers need that much.
build_jobs() {
  local cores memory_kib jobs
  cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # which would take threads of a run for cores
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  jobs=$((memory_kib / 2097152))
  ((jobs < cores)) || jobs=$cores
  ((jobs > 0)) || jobs=1
  printf '%s\n' "${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}"
}

# Options of CMake that configure_and_build passes on.
configure_options=()

configure_and_build() { # PRESET [TARGET]
  cmake --preset "$1" "${configure_options[@]}" >"/tmp/shardtune-configure-$$.log" 2>&1 || {
    cat "/tmp/shardtune-configure-$$.log"
    rm -f "/tmp/shardtune-configure-$$.log"
    die "cmake --preset $1 failed, see above"
  }
  sed -n 's/^-- CUDA parts:/CUDA parts:/p' "/tmp/shardtune-configure-$$.log"
  rm -f "/tmp/shardtune-configure-$$.log"
  cmake --build --preset "$1" --parallel "$(build_jobs)" ${2:+--target "$2"}
}

make_demo() {
  local python
  python=$(python_with numpy) || die "no python3 with numpy; run tools/setup.sh"
  "$python" tools/make_demo_model.py
  "$python" tools/make_demo_chat.py
}

# mpi RANKS COMMAND...: the command on that many ranks of this machine, more ranks than cores allowed.
mpi() {
  local ranks=$1 flags=(--oversubscribe --bind-to none)
  shift
  if [ "$(id -u)" -eq 0 ]; then
    flags+=(--allow-run-as-root) # Open MPI refuses root otherwise; containers run as root
  fi
  mpirun -np "$ranks" "${flags[@]}" "$@" </dev/null
}
