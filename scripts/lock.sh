#!/usr/bin/env bash
# Compiles requirements/*.txt from pyproject.toml: every version with its hashes, and no address,
# so that the files work with any index. UPGRADE=1 takes newer versions, else the pins are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=uv
uv --version >/dev/null 2>&1 || uv=.tools/bin/uv

compile() {
  local output="$1"
  shift
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-header --no-annotate ${UPGRADE:+--upgrade} \
    --output-file "requirements/${output}.txt" "$@"
}

# The largest set is solved first; the smaller ones are constrained to it, so that they agree.
compile dev pyproject.toml --extra server --group dev
compile server pyproject.toml --extra server --constraint requirements/dev.txt --group build
compile base pyproject.toml --constraint requirements/dev.txt
compile uv requirements/uv.in
