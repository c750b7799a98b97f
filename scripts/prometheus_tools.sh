#!/usr/bin/env bash
# promtool and amtool, which check deploy/prometheus and deploy/alertmanager: taken out of Debian's
# packages into .tools/prometheus, without installing them and the services that they would start.
#   prometheus_tools.sh          fetch what is missing (30 MB, apt-get download)
#   prometheus_tools.sh --check  only say whether they are there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder="$PWD/.tools/prometheus"

is_there() {
  command -v "$1" >/dev/null || [[ -x "$folder/$1" ]]
}

fetch() {
  local package="$1" tool="$2" scratch
  is_there "$tool" && return
  scratch="$(mktemp -d)"
  (
    cd "$scratch"
    # Root's scratch folder is closed to apt's own user, so root downloads itself.
    download() { apt-get download -qq -o APT::Sandbox::User=root "$package"; }
    download 2>/dev/null || { apt-get update -qq && download; }
    dpkg-deb --fsys-tarfile "$package"_*.deb | tar -xf - "./usr/bin/$tool"
  )
  mkdir -p "$folder"
  install -m 755 "$scratch/usr/bin/$tool" "$folder/$tool"
  rm -rf "$scratch"
}

if [[ "${1:-}" == --check ]]; then
  is_there promtool && is_there amtool
  exit
fi
if ! is_there promtool || ! is_there amtool; then
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "missing: promtool (package prometheus) and amtool (package prometheus-alertmanager)" >&2
    exit 3
  fi
fi
fetch prometheus promtool
fetch prometheus-alertmanager amtool
