# Every target does its own set-up. `make help` lists them.
SHELL := bash
.DEFAULT_GOAL := help
PYTHON ?= python3
ROOT ?= outputs
PORT ?= 5000
JOBS ?= 2
SLURM := slurm-wlm munge slurmdbd mariadb-server
BIN := .venv/bin
STAMP := .venv/.installed
export HF_HUB_OFFLINE ?= 1
export SHORTLIST_ROOT = $(ROOT)

.PHONY: help install demo tutorial test test-slow test-slurm test-services check lint format types ui bench build clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*  ## /\1\t/' | expand -t 14

install: $(STAMP)  ## A virtual environment in .venv with everything at the versions that were tested
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "PYTHON: got $$($(PYTHON) --version 2>&1), allowed: Python 3.11 or later"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,server]'
	@touch $@

demo: $(STAMP)  ## Train a small sweep for real, rank its choices, write the report
	$(BIN)/shortlist launch demo --follow
	$(BIN)/shortlist rank demo

tutorial: $(STAMP)  ## The whole story, from a first sweep to a promoted run held to its forecast
	$(BIN)/shortlist race tutorial --follow
	$(BIN)/shortlist rank tutorial
	$(BIN)/shortlist promote tutorial budget.amount=1200 --margin 0.05 --confirm-loo --follow
	$(BIN)/shortlist rank tutorial-promoted-loo
	-$(BIN)/shortlist verify tutorial-promoted

test: $(STAMP)  ## The default suite, with coverage
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --cov --cov-report=term

test-slow: $(STAMP)  ## What takes minutes: long simulations, larger training runs
	$(BIN)/python -m pytest -m 'slow and not slurm and not services and not gpu'

test-slurm: $(STAMP)  ## On private Slurm clusters that the suite starts and stops
	@{ command -v slurmctld && command -v munged && command -v slurmdbd && command -v mariadbd; } >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SLURM); } \
	  || { echo "test-slurm: needs: apt-get install $(SLURM)"; exit 2; }
	$(BIN)/python -m pytest -m slurm tests/slurm

test-services: $(STAMP)  ## MLflow on a private PostgreSQL that the suite starts and stops
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql; } \
	  || { echo "test-services: needs PostgreSQL: apt-get install postgresql"; exit 2; }
	$(BIN)/python -m pytest -m services tests/services

check: lint types test  ## Exactly what CI asks of a change

lint: $(STAMP)  ## Style, formatting, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(STAMP)  ## Rewrite the files as lint wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

ui: $(STAMP)  ## MLflow's own page over the default store
	@test -f $(ROOT)/mlflow.db || { echo "ui: no $(ROOT)/mlflow.db yet; make demo"; exit 2; }
	MLFLOW_DISABLE_TELEMETRY=true $(BIN)/mlflow server --host 127.0.0.1 --port $(PORT) \
	  --backend-store-uri sqlite:///$(abspath $(ROOT))/mlflow.db \
	  --artifacts-destination $(abspath $(ROOT))/mlartifacts

bench: $(STAMP)  ## What the README claims, measured; results in benchmarks/results
	@for file in $(filter-out benchmarks/common.py,$(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

build: $(STAMP)  ## A wheel in dist/
	$(BIN)/python -m build --wheel --outdir dist .

clean:  ## Caches and build products; never outputs
	rm -rf build dist *.egg-info .coverage* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
