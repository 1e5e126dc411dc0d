#!/bin/bash
# install.sh [EXTRA...]: make .venv and install edgeinfer into it, editable, with the extras named. Does nothing when that has been done since
# pyproject.toml last changed. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=$(IFS=,; echo "$*")
stamp=.venv/.installed${extras:+-$extras}

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "install: no Python of version 3.11 or newer found; name one with PYTHON=/path/to/python" >&2
    return 1
}

if [ -e "$stamp" ] && [ "$stamp" -nt pyproject.toml ]; then
    exit 0
fi
if [ ! -x .venv/bin/python ]; then
    python=$(find_python)
    if ! "$python" -m venv .venv; then
        rm -rf .venv
        echo "install: $python cannot make virtual environments (on Debian and Ubuntu: apt install python3-venv)" >&2
        exit 1
    fi
fi
log=.venv/install.log
if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extras:+[$extras]}" 2> "$log"; then
    if .venv/bin/python -c 'import edgeinfer.cli.main, numpy, numba, tokenizers, jinja2' 2> /dev/null && { [ -z "$extras" ] || [ -x .venv/bin/pytest ]; }; then
        echo "install: pip could not bring .venv up to date (see $log); going on with what is in it" >&2
        exit 0
    fi
    cat "$log" >&2
    echo "install: pip could not install edgeinfer${extras:+ with the extras $extras}; is a package index, or a folder of wheels (PIP_FIND_LINKS), reachable?" >&2
    exit 1
fi
touch "$stamp"
