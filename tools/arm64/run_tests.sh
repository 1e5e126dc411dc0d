#!/bin/bash
# run_tests.sh [PYTEST ARGUMENT...]: tests on emulated arm64 CPUs. x86-64 computes logits of small models and compiles their kernels for arm64; three CPUs,
# from one without a dot product to one with the int8 matrix extension, must load them and give the same bits, and those of the committed hashes.
# The backend onnx has to come near to its logits there. Then the tests of dot products, run loop and workers.
set -euo pipefail
cd "$(dirname "$0")/../.."
host_python=${PYTHON:-python3}
[ -x .venv/bin/python ] && host_python=$PWD/.venv/bin/python
environment=${ARM64_ENVIRONMENT:-.cache/arm64/environment}
prepared=$PWD/.cache/arm64/prepared

for tool in apt-get dpkg-deb; do
    if ! command -v "$tool" > /dev/null; then
        echo "left out: tests on emulated arm64 CPUs: there is no $tool to fetch an emulator with (Debian's apt is needed)"
        exit 0
    fi
done
if ! tools/arm64/environment.sh "$environment"; then
    echo "left out: tests on emulated arm64 CPUs: the emulator or its packages could not be fetched"
    exit 0
fi
"$host_python" -m tests.arm64.prepare "$prepared"

emulated() { # CPU PYTEST ARGUMENT...
    echo "on an emulated $1" >&2
    PYTHONPATH=$PWD ARM_CPU=$1 "$environment/python" -m pytest -p tests.arm64.emulation -p no:cacheprovider --prepared "$prepared" "${@:2}"
}
for cpu in cortex-a72 cortex-a76 max; do
    emulated "$cpu" tests/arm64 tests/kernels/test_golden_bits.py "$@"
done
emulated max tests/simd tests/executor "$@"
