#!/bin/bash
# prepare_tests.sh: fetch what the tests need beyond the development tools, and name what is left out where something cannot be had:
# llama-cpp-python (built from source where a C++ compiler exists), the vocabularies and templates in its source archive, and the real models.
# Everything is kept in .cache/ and in EDGEINFER_HOME, so the next call takes a second. What is left out is written to .cache/left-out.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
mkdir -p .cache
: > .cache/left-out.txt

leave_out() {
    echo "left out: $1" | tee -a .cache/left-out.txt >&2
}

# 1. the source archive of llama-cpp-python: its folder vendor/llama.cpp/models holds vocabularies, expected ids and chat templates
archive() {
    find .cache/llama-cpp-python -maxdepth 1 -name 'llama_cpp_python-*.tar.gz' 2>/dev/null | sort | tail -n 1
}
mkdir -p .cache/llama-cpp-python
if [ -z "$(archive)" ]; then
    echo "fetching the source archive of llama-cpp-python" >&2
    rm -rf .cache/llama-cpp-python.part
    # the archive is complete once pip has moved it; pip then asks its build for metadata, which may fail without a compiler and need not succeed
    $python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest .cache/llama-cpp-python.part \
        llama-cpp-python 2> .cache/llama-cpp-download.log || true
    mv .cache/llama-cpp-python.part/*.tar.gz .cache/llama-cpp-python/ 2>/dev/null || true
    rm -rf .cache/llama-cpp-python.part
fi
if [ -z "$(archive)" ]; then
    leave_out "tests against llama.cpp and its vocabularies: its source archive could not be fetched (see .cache/llama-cpp-download.log)"
else
    unpacked=.cache/llama-cpp-python/$(basename "$(archive)" .tar.gz)
    if [ ! -d "$unpacked" ]; then
        mkdir -p "$unpacked.part"
        tar -xzf "$(archive)" -C "$unpacked.part" --strip-components=1 --wildcards '*/vendor/llama.cpp/models'
        mv "$unpacked.part" "$unpacked"
    fi

    # 2. llama-cpp-python itself; the wheel is kept, because building it takes minutes
    if ! $python -c 'import llama_cpp' 2> /dev/null; then
        if ! command -v "${CXX:-c++}" > /dev/null && ! command -v g++ > /dev/null && ! command -v clang++ > /dev/null; then
            leave_out "tests against llama.cpp: there is no C++ compiler to build llama-cpp-python with"
        else
            tag=$($python -c 'import sys, platform; print(f"{sys.version_info[0]}.{sys.version_info[1]}-{platform.machine()}")')
            wheels=.cache/wheels/$tag
            mkdir -p "$wheels"
            if ! ls "$wheels"/llama_cpp_python-*.whl > /dev/null 2>&1; then
                echo "building llama-cpp-python (takes some minutes, once)" >&2
                # by name, not from the archive: pip then finds what it has built for another checkout. Where the processor has AMX it is built anew, without:
                # GCC makes llama.cpp's AMX kernels crash, and one process cannot hold these and other users of the tile registers (see llamacpp_library).
                version=$(basename "$(archive)" .tar.gz)
                cache=() flags=${CXXFLAGS:-}
                if grep -qs amx_int8 /proc/cpuinfo; then
                    cache=(--no-cache-dir) flags="$flags -mno-amx-int8 -mno-amx-bf16 -mno-amx-tile"
                fi
                CXXFLAGS=$flags $python -m pip wheel --quiet --disable-pip-version-check "${cache[@]}" --no-deps --wheel-dir "$wheels" \
                    "llama-cpp-python==${version#llama_cpp_python-}" > .cache/llama-cpp-build.log 2>&1 || true
            fi
            if ! ls "$wheels"/llama_cpp_python-*.whl > /dev/null 2>&1; then
                leave_out "tests against llama.cpp: building llama-cpp-python failed (see .cache/llama-cpp-build.log)"
            elif ! $python -m pip install --quiet --disable-pip-version-check "$wheels"/llama_cpp_python-*.whl 2> .cache/llama-cpp-install.log; then
                leave_out "tests against llama.cpp: installing llama-cpp-python failed (see .cache/llama-cpp-install.log)"
            fi
        fi
    fi
fi

# 3. the real models
for card in models/cards/*.toml; do
    [ -e "$card" ] || continue
    name=$(basename "$card" .toml)
    .venv/bin/edgeinfer pull "$name" || leave_out "tests on the real model $name: it could not be pulled"
done
