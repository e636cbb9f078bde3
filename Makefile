# make train | test | check | up | bench   (each does its own set-up)
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
PYTHON ?= $(firstword $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3,11) <= sys.version_info[:2] < (3,14))' 2>/dev/null && echo $$p; done))
PRESET ?= quickstart

.PHONY: help setup train test check up bench clean
help:
	@sed -n 1p Makefile

$(PY):
	@test -n "$(PYTHON)" || { echo "error: Python 3.11, 3.12 or 3.13 was not found; install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "error: $(PYTHON) cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv"; exit 2; }

# What training needs. All of it comes as wheels.
$(READY): pyproject.toml constraints.txt | $(PY)
	@echo "Installing packages into $(VENV) (3 GB, some minutes, once)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e . -c constraints.txt
	@touch $@

# What tests need beside it: the stock ALFWorld engine, which ours is compared with, is compiled, and its build calls `python`.
$(DEV): pyproject.toml constraints.txt | $(PY)
	@echo "Installing packages into $(VENV) (3 GB, some minutes, once)"
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt || { echo "error: the packages for the tests were not installed; they need a C and C++ compiler, make and cmake: on Debian or Ubuntu: apt install build-essential cmake"; exit 2; }
	@touch $(READY) $@

setup: $(READY)

train: $(READY)
	@$(VENV)/bin/roleagent train --preset $(PRESET) $(ARGS)

# Two test processes with one thread each; files in the order of tests/conftest.py, the longest first.
test: $(DEV)
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 25 $(ARGS)

check: $(DEV)
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy && $(PY) -m pytest tests/unit/test_architecture.py

up: $(READY)
	@$(PY) -m infra.embedded up $(ARGS)

bench: $(DEV)
	@$(PY) -m tests.benchmarks $(ARGS)

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
