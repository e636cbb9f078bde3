# make train | test | check | up | bench   (each does its own set-up)
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PYTHON ?= $(firstword $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3,11) <= sys.version_info[:2] < (3,14))' 2>/dev/null && echo $$p; done))
PRESET ?= quickstart

.PHONY: help setup train test check up bench clean
help:
	@sed -n 1p Makefile

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11, 3.12 or 3.13 was not found; install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python"; exit 2; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "error: $(PYTHON) cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv"; exit 2; }
	@echo "Installing packages into $(VENV) (about 2.5 GB, some minutes, once)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

setup: $(READY)

train: $(READY)
	@$(VENV)/bin/roleagent train --preset $(PRESET) $(ARGS)

# Two test processes with one thread each; files in the order of tests/conftest.py, the longest first.
test: $(READY)
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 25 $(ARGS)

check: $(READY)
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy && $(PY) -m pytest tests/unit/test_architecture.py

up: $(READY)
	@$(PY) -m infra.embedded up $(ARGS)

bench: $(READY)
	@$(PY) -m tests.benchmarks $(ARGS)

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
