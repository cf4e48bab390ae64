PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check bench format clean

demo: $(READY)  ## every system on a small case, and pictures to look at
	$(BIN)/python examples/kernel_regression.py tour/kernel_regression.png
	$(BIN)/python examples/bag_samples.py tour/bag_samples.png
	$(BIN)/python examples/conv_digits.py tour/conv_digits.png

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
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
