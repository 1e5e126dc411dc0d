# make run       a virtual environment, the install, the default model, and a streamed answer from it
# make test      everything the tests need, then all tests
# make lint      ruff and mypy
# The other targets are described where they are defined. PYTHON chooses the interpreter of the virtual environment (3.11 or newer).

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2-135m
PROMPT ?= What is gravity?
PYTEST_ARGUMENTS ?=
export PYTHON

.PHONY: help run install environment test prepare-tests test-only lint bench-peers bench verify campaign provider-environments test-providers test-arm64 kernel-pack readme clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

install:
	@tools/install.sh

environment:
	@tools/install.sh dev

# Through the environment and unexpanded: quotes, dollars and backticks of a prompt are text, neither make's nor the shell's.
run: export RUN_MODEL := $(value MODEL)
run: export RUN_PROMPT := $(value PROMPT)
run:
	@tools/first_run.sh "$$RUN_MODEL" "$$RUN_PROMPT"

# make prepare-tests   development tools, llama-cpp-python where a C++ compiler exists, its vocabularies, the real models
prepare-tests: environment
	@tools/prepare_tests.sh

test: prepare-tests test-only

# make test-only       the tests with whatever is there
test-only:
	@tools/run_tests.sh $(PYTEST_ARGUMENTS)

lint: environment
	$(BIN)/ruff check .
	$(BIN)/mypy

# make bench-peers     an environment for each peer of the benchmark: llama.cpp, ik_llama.cpp, openvino-genai
bench-peers: environment
	@tools/bench_peers.sh

# make provider-environments   an environment for each other provider of ONNX Runtime that can be run here: OpenVINO, QNN's simulator
provider-environments: environment
	@tools/provider_environments.sh

# make test-providers  the contract suite and the provider's own tests on OpenVINO, in its environment
test-providers: environment
	@tools/test_providers.sh $(PYTEST_ARGUMENTS)

# make bench           speed on the real models, beside llama.cpp
bench: prepare-tests
	@for model in smollm2-135m gemma-3-270m qwen2.5-coder-0.5b; do $(BIN)/edgeinfer bench $$model || exit $$?; done

# make verify          the real models against llama.cpp and the reference
verify: prepare-tests
	@for model in smollm2-135m gemma-3-270m qwen2.5-coder-0.5b; do $(BIN)/edgeinfer verify $$model || exit $$?; done

# make test-arm64      kernels and whole models on emulated arm64 CPUs: the same bits as here
test-arm64: environment
	@tools/arm64/run_tests.sh $(PYTEST_ARGUMENTS)

# make campaign        long fuzzing and soak runs; the tests run a seeded hundredth of them
campaign: prepare-tests
	@EDGEINFER_FUZZ_SCALE=$${EDGEINFER_FUZZ_SCALE:-100} tools/run_tests.sh -m "not llamacpp or llamacpp" -k "fuzz or soak or hostile or random"

# make kernel-pack     put ready-made kernels of the pulled models (or MODELS="...") into the package, for wheels that are built next
kernel-pack: install
	@$(BIN)/python -m tools.kernel_pack $(MODELS)

# make readme          write the generated tables of README.md anew
readme: install
	@$(BIN)/python -m tools.readme_tables --write

clean:
	rm -rf .venv .cache build dist .pytest_cache .mypy_cache .ruff_cache
