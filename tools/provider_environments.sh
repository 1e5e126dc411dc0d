#!/bin/bash
# provider_environments.sh [NAME...]: an environment of its own for each other provider of ONNX Runtime, in .cache/providers/NAME, with edgeinfer from this
# checkout and what tests need: openvino (a build of ONNX Runtime that replaces the usual one) and qnn (a plugin with a simulator). Default: both.
# Names what cannot be had and why, and then ends with 1.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .cache/providers
missing=0

provider() { # NAME PROVIDER PACKAGE...
    local folder=.cache/providers/$1 log=.cache/providers/$1.log
    local python=$PWD/$folder/bin/python stamp
    local ready="import onnx, onnxruntime, sys; sys.exit('$2' not in onnxruntime.get_available_providers())"
    [ "$1" = qnn ] && ready="import onnx, onnxruntime, onnxruntime_qnn"
    stamp=$(cat pyproject.toml tools/provider_environments.sh | sha256sum | cut -c1-16)
    if [ "$(cat "$folder/stamp" 2> /dev/null)" = "$stamp" ] && "$python" -c "$ready" 2> /dev/null; then
        echo "$1: there"
        return
    fi
    echo "$1: making $folder (see $log)"
    rm -rf "$folder"
    # wheels alone: from source these take hours, if they can be built at all
    if .venv/bin/python -m venv "$folder" > "$log" 2>&1 && "$python" -m pip install --disable-pip-version-check --only-binary=:all: "${@:3}" \
        onnx pytest hypothesis >> "$log" 2>&1 && "$python" -m pip install --disable-pip-version-check --editable . >> "$log" 2>&1 &&
        "$python" -c "$ready" >> "$log" 2>&1; then
        echo "$stamp" > "$folder/stamp"
        echo "$1: $("$python" -m pip list --disable-pip-version-check --format freeze 2> /dev/null | grep -i '^onnxruntime' | tr '\n' ' ')"
    else
        rm -rf "$folder"
        echo "$1: could not be made on $(uname -sm); the end of $log says why:" >&2
        tail -n 3 "$log" >&2
        missing=1
    fi
}

[ $# -gt 0 ] || set -- openvino qnn
for name in "$@"; do
    case $name in
        openvino) provider openvino OpenVINOExecutionProvider onnxruntime-openvino ;;
        qnn) provider qnn QNNExecutionProvider onnxruntime onnxruntime-qnn ;;
        *) echo "provider_environments.sh: there is no $name; choose openvino or qnn" >&2; exit 2 ;;
    esac
done
exit $missing
