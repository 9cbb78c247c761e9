# The two commands: `make train` and `make test`. All targets set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Bytecode is compiled when a module is first imported: most of what is installed never is.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

comma := ,

# What runs the targets for a GPU. Without .venv: make test-gpu RUN='env PYTHONPATH=src python3' SETUP=
RUN    ?= $(BIN)/python
SETUP  ?= $(VENV)/.test

# What `make sanitize` runs: every kernel once or twice, at small sizes.
SANITIZER := compute-sanitizer
CHECKED   ?= tests/backends/test_contract.py tests/backends/cuda tests/engines/test_one_launch_card.py tests/engines/test_one_launch.py tests/engines/test_one_launch_small.py tests/engines/test_many_networks.py -m gpu -k "float32_agrees_with_float64 or half_precision or updates or whole_numbers or narrow_steps or tf32 or follow_numpy or follows_numpy or looking_ahead or small_ones_follow or divide_the_features"

.PHONY: train playground test test-all test-gpu sanitize mutants lint bench notebook docs wheel kernels clean

train: $(VENV)/.train
	$(BIN)/warpfit train $(ARGS)

playground: $(VENV)/.playground
	$(BIN)/warpfit playground $(ARGS)

# One BLAS thread in each of pytest's processes: together they fill the cores, and no more. They
# start many others: what is imported is compiled once, and kept, whatever the environment says.
test test-all: export OPENBLAS_NUM_THREADS = 1
test test-all: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" $(ARGS)

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=term-missing:skip-covered --cov-fail-under=95 $(ARGS)

# The tests that need a GPU, in one process.
test-gpu: $(SETUP)
	$(RUN) -m pytest -m gpu $(ARGS)

# Reads and writes out of bounds, then races in shared memory, in the kernels of a choice of these tests.
sanitize: export WARPFIT_TESTS_DEBUG = 1
sanitize: export WARPFIT_LINES = 1
sanitize: $(SETUP)
	@command -v $(SANITIZER) >/dev/null || { echo "expected $(SANITIZER), of the CUDA toolkit, on the PATH, got none"; exit 1; }
	@$(RUN) -c 'import sys; from warpfit.backends.cuda.runtime import why_unavailable; sys.exit(why_unavailable())'
	$(SANITIZER) --tool memcheck --error-exitcode 1 $(RUN) -m pytest $(CHECKED) $(ARGS)
	$(SANITIZER) --tool racecheck --error-exitcode 1 $(RUN) -m pytest $(CHECKED) $(ARGS)

# Plants bugs, one at a time, and says which of them the tests do not catch; ARGS: parts of their names, --jobs 2
mutants: $(VENV)/.test
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tools/mutants.py $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/pre-commit run --all-files

# Of an epoch on the CPU, or what ARGS says: make bench ARGS="train --minutes 1"
bench: $(VENV)/.test
	$(BIN)/warpfit bench $(or $(ARGS),cpu-epoch)

# The demo in a browser; ARGS=--no-browser where there is none.
notebook: $(VENV)/.notebook
	$(BIN)/jupyter lab --ServerApp.root_dir=. notebooks/demo.ipynb $(ARGS)

# The site, in site/: every page, the API from its docstrings, and the notebooks, which are run for it.
docs: export OPENBLAS_NUM_THREADS = 1
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet $(ARGS)
	@echo "site/index.html is the first page"

# What a package index takes, in dist/; SOURCE is where the README's links lead: make wheel SOURCE=https://...
wheel: export WARPFIT_SOURCE = $(SOURCE)
wheel: $(VENV)/.dev
	@test -n "$(SOURCE)" || { echo "expected SOURCE=https://..., the repository's address, got none"; exit 1; }
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# A wheel of machine code, with which a first fit seldom waits for the compiler; ARGS: --arch sm_90a
kernels: $(VENV)/.dev
	$(BIN)/python tools/kernels_wheel.py $(ARGS)

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "warpfit needs Python 3.11 or newer; found " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

# On a machine with an NVIDIA driver, what it takes to train on its GPU.
CUDA := $(if $(wildcard /proc/driver/nvidia/version),$(comma)cuda)

$(VENV)/.train: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[cli,plot$(CUDA)]'
	@touch $@

$(VENV)/.playground: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[plot,playground$(CUDA)]'
	@touch $@ $(VENV)/.train

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[test]'
	@touch $@ $(VENV)/.train $(VENV)/.playground

# What checks the code, beside what tests it.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.test $(VENV)/.train $(VENV)/.playground

$(VENV)/.notebook: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[notebook$(CUDA)]'
	@touch $@ $(VENV)/.train

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $@
