PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# One process per core, one thread per process: more threads than cores would only wait for each other.
# A file stays with one process, so that its trained models and compiled loops are made once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast check format bench settings docs clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(READY)  ## train every system on a small case; prints a table and writes tour/index.html
	$(BIN)/regard tour

test: $(READY)  ## the whole test suite on all cores, with the coverage of its fast tests
	$(PYTEST) --cov=regard --cov-report=term:skip-covered

test-fast: $(READY)  ## the tests that are not marked `slow`, without coverage
	$(PYTEST) -m "not slow"

check: $(READY)  ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## format, and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## compare with other libraries; DATA=folder adds the rows on real data
	$(BIN)/python -m benchmarks.attend
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.kernel $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.bags $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.language $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.translation $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.captioning

settings: $(READY)  ## rewrite the tables of settings in docs/*.md
	$(BIN)/python docs/settings_tables.py

docs: $(READY)  ## build the documentation: site/index.html
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Installed once; again only when the dependencies change.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Regard needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e ".[all,dev]"
	touch $(READY)

clean:  ## remove the environment, the built site and all caches
	rm -rf .venv site .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
