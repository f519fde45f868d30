# Every target sets up what it needs in .venv, from pyproject.toml and requirements.lock.

PYTHON ?= python3
MODEL = models/checkpoints/jamba-kjv
PROMPT = In the beginning
SAMPLING = --max-tokens 200 --temperature 0.7 --top-p 0.9 --seed 1

BIN := .venv/bin
READY := .venv/ready
NOTEBOOKS := $(wildcard bench/notebooks/*.ipynb)

.DEFAULT_GOAL := help
.PHONY: help demo check test tests test-ray interpreted benches notebooks lint types quick coverage bench prove lock clean

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 8

# threads that spin while they wait take the cores from those that work, wherever others run too
demo check test tests test-ray interpreted coverage: export OMP_WAIT_POLICY = passive
demo: export DEMO_PROMPT = $(PROMPT)
demo: $(READY)  ## generate text with the trained hybrid model of this repository
	$(BIN)/blockstride generate --model $(MODEL) --prompt "$$DEMO_PROMPT" $(SAMPLING) --stats

# what one process has compiled to bytecode, the next hundred load
unexport PYTHONDONTWRITEBYTECODE

# two threads everywhere, so that a laptop and a server run the same tests; more processes than two
# cores, since many tests wait for others; Triton decides as it is imported whether kernels are
# interpreted, hence a run of their own
check test tests test-ray interpreted coverage: export OMP_NUM_THREADS = 2
SPREAD = --dist loadfile --no-loadscope-reorder --benchmark-disable
test: $(READY)  ## lint, types, tests, kernels in Triton's interpreter, each benchmark once, notebooks
	$(MAKE) --jobs 3 --output-sync lint types tests interpreted benches notebooks

tests: $(READY)
	$(BIN)/pytest $(SPREAD) --numprocesses 3

# Ray is more than all else that is installed; without it these tests are skipped
test-ray: $(READY)  ## tests on a Ray cluster of two nodes on this machine, which it installs Ray for
	$(BIN)/python -m pip install --disable-pip-version-check -c requirements.lock -e '.[ray]'
	$(BIN)/pytest tests/models/ray

interpreted: $(READY)
	TRITON_INTERPRET=1 $(BIN)/pytest tests/kernels/gpu

benches: $(READY)
	$(BIN)/pytest bench --benchmark-disable

notebooks: $(READY)
	$(if $(NOTEBOOKS),$(BIN)/pytest --nbmake $(NOTEBOOKS))

check: $(READY)  ## lint, types and the fast half of the tests, at once: before each commit
	$(MAKE) --jobs 2 --output-sync lint types quick

quick: $(READY)
	$(BIN)/pytest $(SPREAD) --numprocesses 2 --quiet -m "not slow"

lint: $(READY)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
types: $(READY)  ## types
	$(BIN)/pyright

coverage: $(READY)  ## which lines no test runs, but for those that compilers run
	$(BIN)/pytest $(SPREAD) --numprocesses 3 --cov --cov-report term-missing:skip-covered

# shape checks would be timed as well
bench: $(READY)  ## time kernels, plans, models beside transformers, and hand-overs; print tables
	$(BIN)/pytest bench --jaxtyping-packages=
	$(BIN)/python -m bench.prefix_hit_rate
	$(BIN)/python bench/models_vs_peers.py
	$(BIN)/python bench/hand_overs_vs_peers.py

prove: $(READY)  ## look for counterexamples at length: new random ones, walks, and all of transfer's cases
	$(BIN)/pytest -m hypothesis --hypothesis-profile=prove
	STATIC_TARGETS="sm_80 sm_90 sm_100 gfx942" $(BIN)/pytest tests/kernels/gpu/test_static.py
	$(BIN)/python -m tests.transfer.prove
	$(BIN)/python -m tests.transfer.killed_writers
	$(BIN)/python -m tests.models.distributed.walk
	$(BIN)/python -m tests.transfer.connector.prove
	$(BIN)/python -m tests.transfer.connector.endurance
	$(BIN)/python -m tests.transfer.connector.load
	$(BIN)/python -m tests.models.serving.endurance --seconds 600 --streams 1000

lock: $(READY)  ## choose the newest versions anew, and write requirements.lock
	$(BIN)/python .ci/lock

clean:  ## remove all that make made, .venv included
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# the last line marks success: an interrupted or failed install is done again
$(READY): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "python: expected 3.11, 3.12 or 3.13, got no '$(PYTHON)'; name one with 'make PYTHON=...'" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("python: expected 3.11, 3.12 or 3.13, got %d.%d; name another with \"make PYTHON=...\"" % v)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c requirements.lock -e '.[test,bench,notebooks,serve]'
	-$(BIN)/blockstride warm
	@touch $@
