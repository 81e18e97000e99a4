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

# Some containers set it. Each stage and each engine would then compile the 5,000 modules that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

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

# What to try: words of group.key=value; several values after commas make a grid. Experiments end before the gate:
# DVC records none whose gate is red.
SET ?=
METRICS := acceptance_length\.(served|simulated)$$|speedup\.median$$|coverage\.holdout$$
PARAMS := (verifier|prompts|generate|hidden_states|draft|train|verify)\.[a-z_]+$$
NO_PARAMS := (generate|train)\.(answers|looping_fraction|output_tokens|skipped|best_epoch|train_loss)$$

.PHONY: exp
exp: $(STAMP) ## try values here: make exp SET="draft.head_dim=96 train.epochs=3"
	@$(IN_VENV) dvc exp run $(patsubst %,-S '%',$(SET)) $(DVC_ARGS) report

.PHONY: queue
queue: $(STAMP) ## try a grid, one after the other, in copies: make queue SET="draft.head_dim=64,128 draft.vocab_size=4096,8192"
	@$(IN_VENV) dvc exp run --queue $(patsubst %,-S '%',$(SET)) $(DVC_ARGS) report
	@$(IN_VENV) dvc exp run --run-all --jobs 1

.PHONY: experiments
experiments: $(STAMP) ## the experiments: acceptance, speed, coverage and the params that differ
	@$(IN_VENV) dvc exp show --no-pager --only-changed --drop '(?!Experiment|Created|State|$(PARAMS)).*|$(NO_PARAMS)' --keep '$(METRICS)' $(DVC_ARGS)

.PHONY: plots
plots: $(STAMP) ## draw curves and acceptance into dvc_plots/index.html, which needs no network
	@$(IN_VENV) dvc plots show $(DVC_ARGS)

.PHONY: plots-page
plots-page: ## make .dvc/plots/page.html, the page of dvc plots, from pinned npm packages (needs npm)
	@$(PYTHON) requirements/plots_page.py

# Two programs that tests use and pip has not: Chromium opens the report's page, sshd is the far end of a remote. Where one is missing,
# root on Debian or Ubuntu installs it; elsewhere its tests are skipped.
.PHONY: test-programs
test-programs:
	@bash requirements/test_programs.sh

.PHONY: test
test: lint test-programs ## lint and every test (minutes; some start vLLM)
	@$(IN_VENV) python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=60 --durations-min=5 $(PYTEST_ARGS)

.PHONY: lint
lint: $(STAMP) ## ruff and mypy
	@$(IN_VENV) ruff check .
	@$(IN_VENV) ruff format --check .
	@$(IN_VENV) mypy

.PHONY: deps
deps: $(STAMP) ## write the code deps of dvc.yaml again from the imports
	@$(IN_VENV) python -m tests.pipeline.write_deps

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
