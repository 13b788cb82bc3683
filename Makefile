# Five targets; each makes .venv and installs what it needs, once.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS

.PHONY: demo test lint bench clean

demo: $(INSTALLED)
	$(BIN)/kvaudit demo

test: $(INSTALLED)
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell kvaudit engine probes reports tests docs .ci Makefile *.md

bench: $(INSTALLED)
	set -e; for script in tests/bench/*.py; do \
	  printf '\n== %s\n' "$$script"; $(BIN)/python "$$script"; \
	done
	$(BIN)/python tests/bench/scan/bench_scan.py --small

clean:
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find kvaudit engine probes reports tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Plain pip, so that whichever torch build your package index offers is taken and no larger one.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[engine,dev]'
	touch $@
