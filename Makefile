# What there is to do here; `make` alone lists it. Everything runs in .venv, which `make env` builds once.
PYTHON ?= python3
# The CPU build that the tests are pinned to. On a GPU machine: make demo TORCH=torch
TORCH ?= torch==2.13.0
BIN := .venv/bin
# Files in parallel, each whole in one process, in testpaths' order. A process that dies ends the run: xdist waits
# for ever once it has started another.
PYTEST_PARALLEL ?= -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0
# pytest keeps what it makes of a test's asserts, and the many processes of the tests what they compile of ours.
unexport PYTHONDONTWRITEBYTECODE
# Files that test-fast leaves out: not even collected, which would take as long as a third of its tests.
SLOW = $(shell grep -l '^pytestmark = pytest.mark.slow$$' tests/unit/test_*.py)
PROTOS := protos/rankmem_protos/collector.proto protos/rankmem_protos/query.proto
MESSAGES := protos/rankmem_protos/step_stats.proto

.DEFAULT_GOAL := help
.PHONY: help env demo dist taps test test-long test-fast matrix lint format type stubs docs functions check bench bench-quick clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

env: .venv/.complete ## the virtual environment with rankmem, torch and the tools

.venv/.complete: .venv/.installed
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

# What a user installs, and torch.
.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[page]"
	@touch $@

demo: .venv/.installed ## a real training on 2 ranks, recorded, the answers, and how to open the page
	$(BIN)/rankmem demo --ranks 2 --db demo.duckdb

# How often the random tests are repeated (tests/support/repetitions.py).
test: export RANKMEM_TEST_PROFILE ?= ci
test-long: export RANKMEM_TEST_PROFILE ?= long

# pytest-timeout fails a test that waits in Python. One that waits elsewhere, or as it ends, ends its process, which
# prints where each thread is. No timeout of these tests is longer than 900 s.
HANGS := -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true

test: env ## what CI runs: unit, component, integration, fault and end-to-end tests
	$(BIN)/python -m pytest $(PYTEST_PARALLEL) $(HANGS) --durations=40 --durations-min=8 $(PYTEST_ARGS)

test-long: export RANKMEM_CLUSTERS_REQUIRED ?= 1
test-long: env ## all tests, also those that take long, random ones in full, and 60 rounds of kills
	$(BIN)/python -m pytest -m "" $(PYTEST_PARALLEL) $(PYTEST_ARGS)
	RANKMEM_FAULT_ROUNDS=12 $(BIN)/python -m pytest -m "" tests/faults/test_random_kills.py $(PYTEST_ARGS)

# For the inner loop: no process, server or torch, random tests with 10 examples.
test-fast: env ## the unit tests but for the slow files: a minute on two idle cores
	$(BIN)/python -m pytest tests/unit $(SLOW:%=--ignore=%) -m "not long and not slow" $(PYTEST_PARALLEL) $(PYTEST_ARGS)

taps: env ## taps for the releases of torch, for make dist to put into the wheel (long, as make matrix)
	PYTHONPATH=tests/support $(BIN)/python tests/tools/matrix.py --keep-taps $(TORCH_RELEASES)

dist: env ## an sdist and a wheel, in dist/
	$(BIN)/python -m hatchling build --directory dist

matrix: env ## build, load and exactness on every minor release of torch (long, several GB to download)
	PYTHONPATH=tests/support $(BIN)/python tests/tools/matrix.py --write

lint: env ## ruff, both as linter and as formatter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: env ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: env ## mypy, strict
	$(BIN)/mypy

stubs: .venv/stubs/.complete ## protobuf and gRPC stubs from the .proto files
	PATH="$(CURDIR)/.venv/stubs/bin:$$PATH" python -m grpc_tools.protoc -Iprotos --python_out=protos \
		--grpc_python_out=protos --mypy_out=quiet:protos --mypy_grpc_out=quiet:protos $(PROTOS)
	PATH="$(CURDIR)/.venv/stubs/bin:$$PATH" python -m grpc_tools.protoc -Iprotos --python_out=protos \
		--mypy_out=quiet:protos $(MESSAGES)

# Generated code runs on the runtime it was made for and on newer ones, so the stubs are made with the
# oldest tools that pyproject.toml admits, in an environment of their own.
.venv/stubs/.complete: .venv/.complete Makefile
	$(PYTHON) -m venv .venv/stubs
	.venv/stubs/bin/python -m pip install --quiet grpcio-tools==1.74.0 setuptools==80.9.0 mypy-protobuf==3.6.0 \
		types-protobuf==6.30.2.20250516
	@touch $@

docs: env ## docs/schema.md, docs/limits.md, the answers in docs/sql.md and docs/insights.md, what the page shares with Python, Grafana's dashboard
	$(BIN)/python -m rankmem_aggregator.store.schema_doc
	PYTHONPATH=tests/support $(BIN)/python tests/tools/guide.py
	PYTHONPATH=tests/support $(BIN)/python tests/tools/limits_page.py
	PYTHONPATH=tests/support $(BIN)/python tests/tools/insights_page.py
	$(BIN)/python tests/tools/page_facts.py
	$(BIN)/python tests/tools/dashboard.py
	PYTHONPATH=tests/support $(BIN)/python tests/tools/refused_sql_page.py

functions: env ## adds the functions of the installed DuckDB to those that a client's SQL may call; review the diff
	$(BIN)/python -m rankmem_aggregator.sandbox.function_list

check: stubs ## what is made from something else is current
	@git diff --exit-code --stat -- protos || { echo "Error: the stubs are not current. Try: make stubs, and commit."; exit 1; }
	$(BIN)/python -m rankmem_aggregator.store.schema_doc --check

bench: env ## every benchmark at full size (about an hour on 2 cores)
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python tests/bench/run_all.py

bench-quick: env ## every benchmark, small
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python tests/bench/run_all.py --quick

clean: ## remove what the above built
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
