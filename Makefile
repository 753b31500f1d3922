# `make demo`: the whole journey on this machine. `make test`: every test. Both start from nothing but git, make and
# Python 3.11; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types imports unit dev ui picture lock clean

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Home is absolute: run history, queue and pools are found from wherever Dagster is started. Warnings: Dagster says in
# every command that another one will supersede it.
DAGSTER := DAGSTER_HOME=$(CURDIR) PYTHONWARNINGS=ignore $(BIN)/dagster

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 14

# Everything is pinned with its hash; the project itself is installed in place, from what the lock brought.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { apt-get -qq update && apt-get -qq install -y python3-venv; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing $$(grep -c '==' requirements.lock) locked packages into .venv"
	@$(BIN)/python -m pip --disable-pip-version-check install --progress-bar off --require-hashes -r requirements.lock \
	  2> >(grep -v '^WARNING: Location' >&2) | awk '/^(Collecting|Processing)/ && ++n % 25 == 0 { print "  " n " fetched"; fflush() }'
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY) ## only .venv, as all other targets make it first

demo: $(READY) ## the lab up, every asset of deployment `tiny`, one completion, the benchmark table
	@$(BIN)/python -m spark_pipeline.lab.demo

test: $(READY) ## every test, the virtual fleet included
	@command -v chromium >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium; }
	@$(BIN)/pytest

check: $(READY) ## style, types, layers and the fast tests
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target unit types lint imports

lint:
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . && echo "ruff: clean"

types:
	@$(BIN)/pyright

imports:
	@$(BIN)/lint-imports | tail -n 6

unit:
	@$(BIN)/pytest -q --numprocesses=4 --dist worksteal -m "not lab and not slow" spark_pipeline_tests/unit

dev: $(READY) ## Dagster with its UI on http://127.0.0.1:3000, daemon included
	@$(DAGSTER) dev --workspace workspace.yaml --host 127.0.0.1 --port 3000

ui: dev ## the same

picture: $(READY) ## the README's picture of the asset graph, drawn anew
	@$(BIN)/python -m spark_pipeline_tests.webserver docs/asset_graph.png

lock: $(READY) ## resolve the dependencies anew into requirements.lock
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet uv
	@$(BIN)/uv pip compile pyproject.toml --group dev --python-version 3.11 --python-platform linux --upgrade \
	  --no-strip-extras --generate-hashes --no-header --quiet --output-file requirements.lock

clean: ## what can be made again; never data/ nor Dagster's history
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache *.egg-info
	find spark_pipeline spark_pipeline_tests -name __pycache__ -type d -prune -exec rm -rf {} +
