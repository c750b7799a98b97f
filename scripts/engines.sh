#!/usr/bin/env bash
# Makes .engines/NAME for each NAME given: an engine and what its tests need, in an environment of
# its own, from requirements/engines/NAME.in. Without a name: all of them.
# Returns at once when nothing has changed since the last time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'engines: %s\n' "$*" >&2; }

uv=uv
uv --version >/dev/null 2>&1 || uv=.tools/bin/uv
"$uv" --version >/dev/null 2>&1 || {
  say "uv is not on PATH. Run make setup-dev first: it fetches uv into .tools/."
  exit 3
}

install_torch() {
  local python="$1" pin="$2" found
  found="$("$uv" pip freeze --quiet --python "$python" | grep -E '^torch==' | cut -d+ -f1 || true)"
  if [[ "$found" == "$pin" ]]; then
    say "torch: the one that was there"
  elif UV_HTTP_RETRIES=0 "$uv" pip install --quiet --python "$python" --torch-backend cpu \
    "$pin" 2>/dev/null; then
    say "torch: the CPU build of ${pin}"
  else
    say "torch: no CPU build of ${pin} can be reached; taking the index's default build (about 5 GB)"
    "$uv" pip install --quiet --python "$python" "$pin"
  fi
}

make_environment() {
  local name="$1" started=$SECONDS
  local requirements="requirements/engines/${name}.in" environment=".engines/${name}"
  local python="${environment}/bin/python" stamp="${environment}/.moescope-engines" fingerprint pin
  [[ -f "$requirements" ]] || {
    say "there is no ${requirements}. Engines: $(names)"
    exit 2
  }
  fingerprint="$(cat "$requirements" requirements/engines/tests.in pyproject.toml | cksum) $PWD"
  if [[ -x "$python" && -f "$stamp" && "$(<"$stamp")" == "$fingerprint" ]]; then
    return
  fi
  if [[ ! -x "$python" ]]; then
    "$uv" venv --quiet --python "${MOESCOPE_PYTHON:->=3.11}" "$environment"
  fi
  pin="$(grep -E '^torch==' "$requirements")"
  install_torch "$python" "$pin"
  # What an engine says about torch may name a build that no index has: the pin stands for it.
  "$uv" pip install --quiet --python "$python" --override <(printf '%s\n' "$pin") -r "$requirements"
  "$uv" pip install --quiet --python "$python" --no-deps --no-build-isolation --editable .
  printf '%s' "$fingerprint" >"$stamp"
  say "${environment} is ready in $((SECONDS - started)) s, $(du -sh "$environment" | cut -f1)"
}

names() {
  local file
  for file in requirements/engines/*.in; do
    file="$(basename "$file" .in)"
    [[ "$file" == tests ]] || printf '%s ' "$file"
  done
}

(($# > 0)) || read -ra all <<<"$(names)"
for engine in "${@:-${all[@]}}"; do
  make_environment "$engine"
done
