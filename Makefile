# Every target sets itself up in $(VENV) on first use and is quick afterwards.
#   make test PYTHON=python3.12 VENV=.venv312     another interpreter, another environment
#   make test PYTEST_ARGS="-k guides -x"          more arguments for pytest

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
BENCH_ARGS ?= all

# torchao and the GPU libraries stay out: tests run without them, and torchao slows every import of transformers.
EXTRAS := dev,demo,onnx,openvino
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint bench clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## tune a real sentence embedding model for this CPU, under 5 minutes
	$(BIN)/python examples/minilm_search.py

# A process for each folder of tests: in one that has loaded every vendor library, and waited for hundreds of child
# processes, the next wait ended in a segmentation fault, which is not understood yet. Status 5 is pytest's for no tests.
GROUPS := $(sort $(wildcard tests/*/)) $(wildcard tests/test_*.py)
GROUPS := $(filter-out tests/test_%.py,$(GROUPS)) "$(filter tests/test_%.py,$(GROUPS))"
define in_groups
@failed=; for group in $(GROUPS); do \
  case $$group in *__pycache__*) continue;; esac; \
  $(BIN)/python -m pytest $(1) $$group $(PYTEST_ARGS); status=$$?; \
  [ $$status -eq 0 ] || [ $$status -eq 5 ] || { failed="$$failed $${group%% *}"; [ $$status -ne 2 ] || exit 2; }; \
done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }
endef

test: lint ## linters, types, then pytest without the slow tests, folder by folder
	$(call in_groups,-q -m "not gpu and not slow")

test-all: lint ## the same with slow tests and full counts
	$(call in_groups,-q --full)

lint: $(READY) ## ruff, import-linter, mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy --strict src

bench: $(READY) ## measure what the guarantees promise; JSON in benchmarks/results/
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean: ## remove caches and builds, keep the environment
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last: a set-up that was interrupted is done again, and pip keeps what is there already.
$(READY): pyproject.toml constraints/dev.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: no '$(PYTHON)' here; name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: aitune needs Python 3.10 or newer, '$(PYTHON)' is `$(PYTHON) -V 2>&1`" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "make: '$(PYTHON)' cannot make environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints/dev.txt --editable '.[$(EXTRAS)]'
	@touch $@
