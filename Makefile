# The two commands: `make train` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Bytecode is compiled when a module is first imported: most of what is installed never is.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: train test test-all lint bench clean

train: $(VENV)/.train
	$(BIN)/warpfit train $(ARGS)

# One BLAS thread in each of pytest's processes: together they fill the cores, and no more.
test test-all: export OPENBLAS_NUM_THREADS = 1

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto -m "not slow" $(ARGS)

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --cov --cov-report=term-missing:skip-covered --cov-fail-under=95 $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/pre-commit run --all-files

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/cpu_epoch.py $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "warpfit needs Python 3.11 or newer; found " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[plot]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.train
