# make demo and make test, each alone, take a bare machine with Python 3.10 or newer and a C++ compiler to done.

PYTHON ?= python3
# The CPU build is enough. Where plain pip brings CUDA libraries along with torch, name an index that has CPU builds:
# make test TORCH_FLAGS="--index-url ..."
TORCH ?= torch==2.13.0
TORCH_FLAGS ?=
# Any number; the order of a block's threads follows from it.
SHUFFLE ?= 1
# Test processes: one for each core that this machine lets us use.
WORKERS ?= $(shell $(PYTHON) tools/cores.py)

ENV := .venv
PY := $(ENV)/bin/python
INSTALLED := $(ENV)/.installed
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
# Each process begins with a part of its own, in order, and takes from the others' when it is done: tests of one file
# share what they have made.
SPREAD := -n $(WORKERS) --dist worksteal
PYTEST := $(PY) -m pytest $(SPREAD)
# AddressSanitizer must be loaded before Python is, so the environment is set first and the process replaced.
SANITIZED := $(PY) -c 'import os, sys; from fusegen.launch.emulator.build import sanitizer_environment; \
	os.environ.update(sanitizer_environment()); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])'
# Compiles the native call path into the tests' cache, as they have it (tests/conftest.py).
NATIVE := -c 'import torch; from fusegen.native import module; module.module()'
WAITING := FUSEGEN_CACHE_DIR=$(CURDIR)/build/cache FUSEGEN_EMULATOR_DEBUG=1 FUSEGEN_NATIVE=wait

# Tests start Python hundreds of times: where no bytecode is kept, each would compile all of fusegen anew.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: demo test install prepare lint golden test-all test-plain test-sanitized docs format clean

demo: $(INSTALLED)
	$(PY) tools/demo.py

test: prepare test-plain test-sanitized

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "fusegen needs Python 3.10 or newer, and '$(PYTHON)' is not: make PYTHON=python3.12 (or another)" >&2; exit 1; }
	$(PYTHON) -m venv $(ENV)
	# Without bytecode of all of torch: what is imported is compiled then, and the rest took two thirds of the time.
	$(PIP) --upgrade "pip>=24"
	# Before anything that would ask for torch, so that nothing pulls another build.
	$(PIP) $(TORCH_FLAGS) "$(TORCH)"
	$(PIP) --editable ".[dev,torch,cuda13]" "$(TORCH)"
	touch $@

# What both runs of the tests would wait for is compiled while style and types are checked.
prepare: $(INSTALLED)
	$(WAITING) $(PY) $(NATIVE) & $(WAITING) $(SANITIZED) $(NATIVE) & $(MAKE) lint; status=$$?; wait; exit $$status

lint: $(INSTALLED)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(ENV)/bin/lint-imports

golden: $(INSTALLED)
	$(PY) tools/generate.py --check

test-all: $(INSTALLED)
	$(PYTEST)

# All but the tests of kernels, which the next one runs with all that they assert.
test-plain: $(INSTALLED)
	$(PYTEST) -m "not emulator"

# Kernels, in another thread order, and the native call path. An access out of bounds or an undefined operation ends the
# process, accesses that no barrier orders are errors, and so is every warning of the compiler's.
test-sanitized: $(INSTALLED)
	FUSEGEN_EMULATOR_RACES=1 FUSEGEN_EMULATOR_SHUFFLE=$(SHUFFLE) $(SANITIZED) -m pytest $(SPREAD) -m "emulator or native"

# The site, in build/docs. A warning is an error: a link that leads nowhere, a name without a page.
docs: $(INSTALLED)
	$(PIP) --editable ".[docs]"
	$(PY) tools/gallery.py
	$(PY) -m sphinx --fail-on-warning --keep-going --quiet --jobs auto docs build/docs
	@echo "build/docs/index.html"

format: $(INSTALLED)
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

clean:
	rm -rf build docs/gallery .venv .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find fusegen ops templates tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
