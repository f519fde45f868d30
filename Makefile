# Every target sets up what it needs in .venv, from pyproject.toml and requirements.lock.

PYTHON ?= python3
MODEL = $(firstword $(wildcard models/checkpoints/*))
PROMPT = In the beginning
MAX_TOKENS = 200

BIN := .venv/bin
READY := .venv/ready
NOTEBOOKS := $(wildcard bench/notebooks/*.ipynb)

.DEFAULT_GOAL := help
.PHONY: help demo test lint types bench prove clean

help:  ## print this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' Makefile | expand -t 8

demo: export DEMO_PROMPT = $(PROMPT)
demo: $(READY)  ## generate text with the trained hybrid model of this repository
	$(BIN)/blockstride generate --model $(MODEL) --prompt "$$DEMO_PROMPT" --max-tokens $(MAX_TOKENS) --stats

# two threads everywhere, so that a laptop and a server run the same tests
test: export OMP_NUM_THREADS = 2
test: export NUMBA_NUM_THREADS = 2
test: lint types  ## lint, types, tests, notebooks, and each benchmark once
	$(BIN)/pytest
	$(BIN)/pytest bench --benchmark-disable
	$(if $(NOTEBOOKS),$(BIN)/pytest --nbmake $(NOTEBOOKS))

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
types: $(READY)  ## pyright
	$(BIN)/pyright

# shape checks would be timed as well
bench: $(READY)  ## run every benchmark and print its table
	$(BIN)/pytest bench --jaxtyping-packages=

prove: $(READY)  ## search for a counterexample to each property, at length
	$(BIN)/pytest -m hypothesis --hypothesis-profile=prove

clean:  ## remove all that make made, .venv included
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# the last line marks success: an interrupted or failed install is done again
$(READY): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "python: expected 3.11, 3.12 or 3.13, got no '$(PYTHON)'; name one with 'make PYTHON=...'" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("python: expected 3.11, 3.12 or 3.13, got %d.%d; name another with \"make PYTHON=...\"" % v)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c requirements.lock -e '.[test,bench,notebooks]'
	@touch $@
