#!/usr/bin/env bash
# Runs the tests of each engine NAME in its environment: scripts/engine_tests.sh NAME… -- PYTEST-ARGS
# Without pytest arguments, and with every engine, what was verified is compared with the page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

engines=()
while (($# > 0)) && [[ "$1" != -- ]]; do
  engines+=("$1")
  shift
done
shift || true

# Servers are shared by the tests of a file.
spread() { if [[ "$1" == vllm ]]; then echo loadfile; else echo load; fi; }

folders() {
  case "$1" in
    torch) echo tests/engines/torch tests/engines/families ;;
    transformers-*) echo tests/engines/families ;;
    *) echo "tests/engines/${1//-/_}" ;;
  esac
}

export MOESCOPE_MATRIX="$PWD/build/engines"
mkdir -p "$MOESCOPE_MATRIX"
# Each of two workers computes with one thread: the tests' models are tiny.
export OMP_NUM_THREADS=1
for engine in "${engines[@]}"; do
  rm -f "$MOESCOPE_MATRIX/${engine}.json"
  read -ra where <<<"$(folders "$engine")"
  printf '\n=== %s\n' "$engine"
  MOESCOPE_MATRIX_NAME="$engine" ".engines/${engine}/bin/python" -m pytest -m engines \
    -n 2 --dist "$(spread "$engine")" "${where[@]}" "$@"
done
if (($# == 0)); then
  .venv/bin/python scripts/engine_matrix.py --check "${engines[@]}"
fi
