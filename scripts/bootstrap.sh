#!/usr/bin/env bash
# Makes .venv from the hashed requirement files. Usage: scripts/bootstrap.sh [server|dev]
# Returns at once when nothing has changed since the last time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

profile="${1:-server}"
requirements="requirements/${profile}.txt"
stamp=".venv/.moescope-${profile}"

say() { printf 'bootstrap: %s\n' "$*" >&2; }
fail() {
  say "$@"
  exit 3
}

[[ -f "$requirements" ]] || fail "there is no ${requirements}: choose server or dev."

fingerprint="$(cat "$requirements" pyproject.toml | cksum) $PWD"
up_to_date() { [[ -x .venv/bin/python && -f "$1" && "$(<"$1")" == "$2" ]]; }
if up_to_date "$stamp" "$fingerprint"; then
  exit 0
fi
# dev holds everything that server holds.
if [[ "$profile" == server ]] &&
  up_to_date .venv/.moescope-dev "$(cat requirements/dev.txt pyproject.toml | cksum) $PWD"; then
  exit 0
fi

find_uv() {
  # A name on PATH may be a version manager's shim that runs nothing: ask it.
  if uv --version >/dev/null 2>&1; then
    echo uv
  elif [[ -x .tools/bin/uv ]]; then
    echo .tools/bin/uv
  else
    command -v python3 >/dev/null ||
      fail "neither uv nor python3 is on PATH. Install one of them (Debian: apt-get install python3 python3-pip)."
    python3 -m pip --version >/dev/null 2>&1 ||
      fail "uv is not on PATH, and python3 has no pip to fetch it with. Install one of them (Debian: apt-get install python3-pip)."
    say "uv is not on PATH: installing it into .tools/"
    python3 -m pip install --quiet --disable-pip-version-check --target .tools \
      --require-hashes --only-binary :all: -r requirements/uv.txt >&2
    echo .tools/bin/uv
  fi
}
uv="$(find_uv)"

started=$SECONDS
if [[ ! -x .venv/bin/python ]]; then
  "$uv" venv --quiet --python "${MOESCOPE_PYTHON:->=3.11}" .venv ||
    fail "no Python 3.11 or newer was found. Install one (Debian: apt-get install python3 python3-venv), or name it in MOESCOPE_PYTHON."
fi
say "installing ${requirements} into .venv"
"$uv" pip install --quiet --python .venv/bin/python --require-hashes -r "$requirements"
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
printf '%s' "$fingerprint" >"$stamp"
if [[ "$profile" == dev ]] && ! command -v chromium >/dev/null; then
  say "chromium is not on PATH: tests that look at reports in a browser are skipped, and .ci/run fails without it (Debian: apt-get install -y --no-install-recommends chromium)."
fi
if [[ "$profile" == dev ]] && ! scripts/kafka_jars.sh --check 2>/dev/null; then
  say "Java 17 or Maven is not on PATH: tests with a Kafka broker are skipped, and .ci/run fails without them (Debian: apt-get install -y --no-install-recommends openjdk-17-jre-headless maven)."
fi
say "ready in $((SECONDS - started)) s, $(du -sh .venv | cut -f1) in .venv"
