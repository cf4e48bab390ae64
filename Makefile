PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check bench docs format clean

demo: $(READY)  ## every system on a small case, a table, and a page to look at: tour/index.html
	$(BIN)/regard tour

test: $(READY)  ## the whole suite
	$(BIN)/python -m pytest

check: $(READY)  ## format, lint, types, who may import whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## side by side with the peers; DATA=folder for the rows on real tables
	$(BIN)/python -m benchmarks.attend
	$(BIN)/python -m benchmarks.kernel $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.bags $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.language $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.translation $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.captioning

docs: $(READY)  ## the documentation as a site: site/index.html
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Installed once; again only when what is to be installed has changed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Regard needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e ".[all,dev]"
	touch $(READY)

clean:
	rm -rf .venv site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
