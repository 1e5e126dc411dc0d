#!/bin/bash
# run_tests.sh [PYTEST ARGUMENT...]: all tests with whatever is there. Says again what tools/prepare_tests.sh had to leave out, before the closing line.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -s .cache/left-out.txt ]; then
    cat .cache/left-out.txt
fi
exec .venv/bin/python -m pytest "$@"
