#!/usr/bin/env bash
# Puts the jars of a native Apache Kafka broker into .tools/kafka/libs (about 44 MB, once).
# Says nothing when nothing is to do. --check only says what the machine lacks (exit 3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pom=scripts/kafka_libs/pom.xml
libs=.tools/kafka/libs

say() { printf 'kafka: %s\n' "$*" >&2; }

java_release() {
  # `java -version` writes: openjdk version "17.0.15" 2025-04-15
  { java -version 2>&1 || true; } | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1
}

fingerprint="$(cksum <"$pom")"
have_jars() { [[ -f "$libs/.stamp" && "$(<"$libs/.stamp")" == "$fingerprint" ]]; }

packages=()
(($(java_release || true) + 0 >= 17)) || packages+=(openjdk-17-jre-headless)
# Maven is needed once, to fetch the jars.
have_jars || command -v mvn >/dev/null || packages+=(maven)
if ((${#packages[@]} > 0)); then
  say "a native Kafka broker needs Java 17 and Maven (Debian: apt-get install -y --no-install-recommends ${packages[*]})."
  exit 3
fi
if [[ "${1:-}" == --check ]] || have_jars; then
  exit 0
fi

mkdir -p .tools/kafka
# Two test runs may come at once: the second one waits, and finds the jars.
exec 9>.tools/kafka/.lock
flock 9
if have_jars; then
  exit 0
fi
say "fetching the jars of $(sed -nE 's/.*<version>(4[^<]*)<.*/Apache Kafka \1/p' "$pom") into ${libs}"
fresh="$(mktemp -d .tools/kafka/fetching.XXXXXX)"
trap 'rm -rf "$fresh"' EXIT
# Maven ends with escape codes even where it has coloured nothing.
MAVEN_OPTS="${MAVEN_OPTS:-} -Djansi.noreset=true" mvn --quiet --batch-mode -Dstyle.color=never --strict-checksums --file "$pom" \
  dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$PWD/$fresh" >&2
printf '%s' "$fingerprint" >"$fresh/.stamp"
rm -rf "$libs"
mv "$fresh" "$libs"
chmod 755 "$libs"
