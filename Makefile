# Everything runs in an environment of its own; nothing outside this directory is changed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SGLANG ?= 0.5.23
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-fast lint clean

## Install the project and real SGLang for the CPU, then show both at work.
demo: $(VENV)/.ready
	$(BIN)/sgguard demo

## Lint, type check, and run every test, those on real SGLang included.
test: $(VENV)/.ready lint
	$(BIN)/python -m pytest

## The tests that need no SGLang, in an environment without SGLang and torch.
test-fast: $(VENV)-fast/.ready
	$(VENV)-fast/bin/python -m pytest -m "not sglang"

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.ready: pyproject.toml requirements/sglang-cpu.txt requirements/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "SGLang $(SGLANG) needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements/sglang-cpu.txt -c requirements/constraints.txt
	$(PIP) install -e '.[dev]' -c requirements/constraints.txt
	$(PIP) install --no-deps sglang==$(SGLANG)
	touch $@

# torch is a dependency that this tier never imports, and it is large: left out.
$(VENV)-fast/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-fast
	$(VENV)-fast/bin/python -m pip --disable-pip-version-check --quiet install wrapt \
	  opentelemetry-api opentelemetry-sdk pydantic PyYAML click rich \
	  pytest pytest-timeout hypothesis jsonschema packaging
	$(VENV)-fast/bin/python -m pip --disable-pip-version-check --quiet install --no-deps -e .
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-fast
