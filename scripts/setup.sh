#!/usr/bin/env bash
# Make .venv hold exactly what requirements/dev.lock says, and this checkout's three projects, editable.
#
# Does nothing where the stamp .venv/.installed says that this has been done for the same locks, the
# same projects and the same place. $PYTHON names the interpreter to use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.installed
locks=(requirements/build.lock requirements/dev.lock)

digest() {
  if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi
}

supported() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13 python3.14; do
    if supported "$candidate"; then
      printf '%s' "$candidate"
      return 0
    fi
    if [ "$candidate" = "${PYTHON:-}" ]; then
      echo "headgate: PYTHON=$PYTHON is not a Python 3.11 to 3.14" >&2
      return 1
    fi
  done
  echo "headgate: no Python 3.11 to 3.14 found; install one (Debian 12: apt-get install python3) or set PYTHON" >&2
  return 1
}

create_venv() {
  local python=$1
  "$python" -m venv "$venv" >/dev/null 2>&1 && return 0
  # Debian ships venv apart from Python; what the failed attempt left behind is of no use.
  rm -rf "$venv"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "headgate: this Python has no venv; installing it with apt-get" >&2
    apt-get update -q </dev/null >&2 &&
      DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-venv </dev/null >&2 &&
      "$python" -m venv "$venv" && return 0
  fi
  rm -rf "$venv"
  echo "headgate: $python cannot make a virtual environment; install its venv module (Debian: apt-get install python3-venv)" >&2
  return 1
}

# The place is part of the key: the scripts in a virtual environment name it.
key=$( (cat "${locks[@]}" pyproject.toml lab/pyproject.toml demo/pyproject.toml scripts/setup.sh && pwd) | digest)
if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$key" ]; then
  exit 0
fi
if [ -f "$stamp" ] && [ "$(tail -n 1 "$stamp")" != "$(pwd)" ]; then
  rm -rf "$venv" # the checkout was moved or copied
fi
if ! { [ -x "$venv/bin/python" ] && supported "$venv/bin/python"; }; then
  rm -rf "$venv"
  python=$(find_python)
  create_venv "$python"
fi

echo "headgate: installing into $venv (once; about 1.2 GB)" >&2
rm -f "$stamp"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
# The build backend first and by hash, then everything without build isolation: isolation would fetch
# a backend that no lock names. PEP 517, because an old pip would run PySpark's setup.py directly.
"${pip[@]}" install -q --require-hashes -r requirements/build.lock
"${pip[@]}" install -q --require-hashes --no-build-isolation --use-pep517 -r requirements/dev.lock
"${pip[@]}" install -q --no-deps --no-build-isolation -e . -e demo -e lab
printf '%s\n%s\n' "$key" "$(pwd)" >"$stamp"
