# Every target does its own set-up and can be repeated.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help setup demo test lint docs bench test-engines test-engines-full test-rdma test-cluster test-matrix soak chaos lock sbom clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(STAMP)  ## everything for the rest, into .venv

$(STAMP): pyproject.toml transfer/pyproject.toml topology/pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh tools/setup.sh
	@touch $@

demo: $(STAMP)  ## the default fleet up, compared with an aggregate engine, and down again
	@$(BIN)/python -m pdctl.demo

# Much of the suite waits for real processes: with three workers two cores are busy, with two a quarter of the time is
# lost.
test: $(STAMP)  ## the tests that need no GPU, no HCA and no network
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not matrix and not soak and not engines and not rdma and not cluster"

lint: $(STAMP)  ## style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(STAMP)  ## the site, strict, into build/docs
	$(BIN)/python tools/gen_docs.py --check
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

bench: $(STAMP)  ## a table of ratios, and build/bench.json
	@$(BIN)/python -m tests.bench.run

test-engines: $(STAMP)  ## the real SGLang, vLLM and routers, in environments of their own
	sh tests/engines/run.sh

test-engines-full: $(STAMP)  ## the same and its long forms: fifty prompts a pair, aborts for ten minutes
	sh tests/engines/run.sh full

test-rdma: $(STAMP)  ## real verbs devices (soft-RoCE in a virtual machine)
	sh labs/test_rdma.sh

test-cluster: $(STAMP)  ## SSH hosts in network namespaces
	sh labs/test_cluster.sh

test-matrix: $(STAMP)  ## the full parity matrix over Mooncake and NIXL
	$(BIN)/python -m pytest -n 2 --dist worksteal --timeout=600 -m matrix

soak: $(STAMP)  ## ten minutes of mixed load with aborts
	$(BIN)/python -m tests.integration.transfer.soak --seconds 600

chaos: $(STAMP)  ## a fleet of two and two engines under load, while connections are reset, engines frozen and killed
	$(BIN)/python -m tests.integration.reference.chaos --seconds 300 --requests 500
	$(BIN)/python -m tests.integration.reference.chaos --seconds 300 --all

lock: $(STAMP)  ## requirements.lock: the default install, every file by its hash
	$(BIN)/python tools/lock.py

sbom: $(STAMP)  ## build/sbom.json: what an install by requirements.lock holds, as CycloneDX
	sh tools/sbom.sh

clean:  ## remove what the targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
