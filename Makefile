# `make repro` and `make test` set up .venv by themselves; nothing is done twice.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
ACCEL ?= $(shell cat .venv/.accel 2>/dev/null || echo cpu)
TORCH_INDEX ?=
DVC_ARGS ?=
PYTEST_ARGS ?=
LOCK_ARGS ?=

# The stamp's name holds the digest of all that decides what is in .venv.
KEY := $(shell cat requirements/$(ACCEL).lock pyproject.toml requirements/setup.sh 2>/dev/null | sha256sum | cut -c1-16)
STAMP := .venv/.setup-$(ACCEL)-$(KEY)
IN_VENV := PATH="$(CURDIR)/.venv/bin:$$PATH" VIRTUAL_ENV="$(CURDIR)/.venv"

# A Python named by the user that is not the one of .venv makes .venv again.
ifneq ($(origin PYTHON),file)
EXPLICIT_PYTHON := 1
MINOR := -c 'import sys; print(sys.version_info[:2])'
ifneq ($(shell $(PYTHON) $(MINOR) 2>&1),$(shell .venv/bin/python $(MINOR) 2>&1))
.PHONY: $(STAMP)
endif
endif

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'
	@echo
	@echo "Variables: ACCEL=cpu|cuda (now $(ACCEL)), PYTHON=python3.12, TORCH_INDEX=URL of torch's CPU build (docs/dependencies.md),"
	@echo "DVC_ARGS and PYTEST_ARGS for repro and test, LOCK_ARGS=--upgrade for lock."

.PHONY: setup
setup: $(STAMP) ## make .venv from requirements/cpu.lock (ACCEL=cuda: cuda.lock)
	@echo ".venv is ready ($(ACCEL)): .venv/bin/draftyard doctor tells what it can do"

$(STAMP):
	@PYTHON="$(PYTHON)" explicit_python="$(EXPLICIT_PYTHON)" ACCEL="$(ACCEL)" TORCH_INDEX="$(TORCH_INDEX)" STAMP="$@" bash requirements/setup.sh

.PHONY: repro
repro: $(STAMP) ## build everything that changed, then show the result
	@$(IN_VENV) python -m draftyard.params.load params.yaml
	@$(IN_VENV) dvc repro $(DVC_ARGS); status=$$?; $(IN_VENV) python -m draftyard.reporting.summary; exit $$status

.PHONY: test
test: lint ## lint and every test (minutes; some start vLLM)
	@$(IN_VENV) python -m pytest $(PYTEST_ARGS)

.PHONY: lint
lint: $(STAMP) ## ruff and mypy
	@$(IN_VENV) ruff check .
	@$(IN_VENV) ruff format --check .
	@$(IN_VENV) mypy

.PHONY: lock
lock: ## resolve requirements/*.lock again from pyproject.toml
	@PYTHON="$(PYTHON)" bash requirements/lock.sh $(LOCK_ARGS)

.PHONY: clean
clean: ## remove caches of tools and the resume area (.work); keeps .venv and all build outputs
	rm -rf .work .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## clean, and remove .venv; keeps build outputs and the DVC cache
	rm -rf .venv src/*.egg-info
