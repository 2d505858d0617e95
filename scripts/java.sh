#!/usr/bin/env bash
# Print the home directory of a Java that Spark 4 can use (17 or newer), installing one if need be.
#
# Takes JAVA_HOME, then `java` on PATH, then (as root on Debian) apt. Only the path goes to standard
# output; everything else goes to standard error.
set -euo pipefail

version_min=17

# Print the home of the java at $1, or nothing where it is missing or too old. The answer comes from
# Java itself, because `java` on PATH is often a link or a version manager's script.
home_of() {
  local settings version
  settings=$("$1" -XshowSettings:properties -version 2>&1 </dev/null) || return 0
  version=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$settings")
  case $version in
    '' | *[!0-9]*) return 0 ;; # Java 8 says 1.8
  esac
  if [ "$version" -ge "$version_min" ]; then
    sed -n 's/^ *java\.home = //p' <<<"$settings"
  fi
}

find_home() {
  local found=""
  if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; then
    found=$(home_of "$JAVA_HOME/bin/java")
  fi
  if [ -z "$found" ] && command -v java >/dev/null; then
    found=$(home_of java)
  fi
  printf '%s' "$found"
}

install_with_apt() {
  local package
  # Slim images lack this directory, and Java's post-install script fails without it.
  mkdir -p /usr/share/man/man1
  apt-get update -q || return 1
  # Debian 12 has 17, Debian 13 has 21.
  for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
    if DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$package"; then
      return 0
    fi
  done
  return 1
}

home=$(find_home)
if [ -z "$home" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "headgate: no Java $version_min or newer found; installing one with apt-get" >&2
  if install_with_apt </dev/null >&2; then
    hash -r
    home=$(find_home)
  fi
fi
if [ -z "$home" ]; then
  echo "headgate: Spark needs Java $version_min or newer; install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME" >&2
  exit 1
fi
printf '%s\n' "$home"
