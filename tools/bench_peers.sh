#!/bin/bash
# bench_peers.sh: an environment of its own for each peer of the benchmark, in .cache/peers/NAME, where `edgeinfer bench` and the bars look for them:
# llama-cpp-python (built here, for this processor), ik-llama-cpp-python, openvino-genai and onnxruntime-genai. Names what cannot be had, and then ends with 1.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .cache/peers
missing=0

peer() { # NAME MODULE PACKAGE...
    local folder=.cache/peers/$1 log=.cache/peers/$1.log module=$2
    local python=$PWD/$folder/bin/python
    if [ -x "$python" ] && "$python" -c "import $module" 2> /dev/null; then
        echo "$1: there"
        return
    fi
    echo "$1: making $folder (see $log)"
    rm -rf "$folder"
    if .venv/bin/python -m venv "$folder" > "$log" 2>&1 && "$python" -m pip install --disable-pip-version-check "${@:3}" >> "$log" 2>&1 &&
        "$python" -c "import $module" >> "$log" 2>&1; then
        echo "$1: $("$python" -m pip list --disable-pip-version-check --format freeze 2> /dev/null | grep -i -E "^(llama[_-]cpp|ik[_-]llama|openvino[_-]genai|onnxruntime)" | tr '\n' ' ')"
    else
        echo "$1: could not be made; the end of $log says why:" >&2
        tail -n 3 "$log" >&2
        missing=1
    fi
}

export CMAKE_ARGS=${CMAKE_ARGS:--DGGML_NATIVE=ON}
if grep -qs amx_int8 /proc/cpuinfo; then
    # with llama.cpp's AMX kernels, which the wheel of make test leaves out; optimized as usual they crash when GCC has built them (see prepare_tests.sh)
    CXXFLAGS="${CXXFLAGS:-} -fno-tree-dse -fno-dse" peer llamacpp llama_cpp --no-cache-dir --no-binary llama-cpp-python llama-cpp-python
else
    # a wheel that make test has built already spares some minutes; without one pip builds the newest version
    wheel=$(find .cache/wheels -name 'llama_cpp_python-*.whl' 2> /dev/null | sort | tail -n 1 || true) # the folder may be missing
    peer llamacpp llama_cpp "${wheel:-llama-cpp-python}"
fi
peer ik_llamacpp ik_llama_cpp ik-llama-cpp-python
peer openvino openvino_genai openvino-genai gguf
peer onnxruntime_genai onnxruntime_genai onnxruntime-genai
exit $missing
