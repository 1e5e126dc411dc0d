#!/bin/bash
# test_providers.sh [PYTEST ARGUMENT...]: the contract suite and the provider's own tests on OpenVINO, in an environment of its own, since its ONNX Runtime
# replaces the usual one. Where that cannot be made (there are wheels for x86-64 alone), it says so: on x86-64 that is an error, elsewhere it is left out.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! tools/provider_environments.sh openvino; then
    echo "left out: tests on the OpenVINO provider: its environment could not be made on $(uname -sm)"
    [ "$(uname -sm)" != "Linux x86_64" ] # on which there are wheels, so there it fails
    exit
fi
export EDGEINFER_TEST_PROVIDERS=openvino
exec .cache/providers/openvino/bin/python -m pytest -p no:cacheprovider tests/backends/test_contract.py tests/backends/test_contract_engine.py \
    tests/backends/test_contract_bursts.py tests/backends/test_openvino.py -k openvino "$@"
