#!/usr/bin/env bash
# Makes .engines/torch: torch, transformers and what tests need, in an environment of its own.
# Returns at once when nothing has changed since the last time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirements="requirements/engines-torch.in"
environment=".engines/torch"
python="${environment}/bin/python"
stamp="${environment}/.moescope-engines"

say() { printf 'engines: %s\n' "$*" >&2; }

fingerprint="$(cat "$requirements" pyproject.toml | cksum) $PWD"
if [[ -x "$python" && -f "$stamp" && "$(<"$stamp")" == "$fingerprint" ]]; then
  exit 0
fi

uv=uv
uv --version >/dev/null 2>&1 || uv=.tools/bin/uv
"$uv" --version >/dev/null 2>&1 || {
  say "uv is not on PATH. Run make setup-dev first: it fetches uv into .tools/."
  exit 3
}

started=$SECONDS
if [[ ! -x "$python" ]]; then
  "$uv" venv --quiet --python "${MOESCOPE_PYTHON:->=3.11}" "$environment"
fi
torch_pin="$(grep -E '^torch==' "$requirements")"
if "$python" -c 'import torch' 2>/dev/null &&
  [[ "$("$uv" pip freeze --quiet --python "$python" | grep -E '^torch==' | cut -d+ -f1)" == "$torch_pin" ]]; then
  build="the one that was there"
elif UV_HTTP_RETRIES=0 "$uv" pip install --quiet --python "$python" --torch-backend cpu \
  "$torch_pin" 2>/dev/null; then
  build="the CPU build"
else
  say "no CPU build of torch can be reached: taking the index's default build (about 5 GB)"
  "$uv" pip install --quiet --python "$python" "$torch_pin"
  build="the default build"
fi
"$uv" pip install --quiet --python "$python" -r "$requirements"
"$uv" pip install --quiet --python "$python" --no-deps --no-build-isolation --editable .
printf '%s' "$fingerprint" >"$stamp"
say "ready in $((SECONDS - started)) s: ${build} of torch, $(du -sh "$environment" | cut -f1) in ${environment}"
