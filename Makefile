# Every target makes the environment first if it is missing, or older than the locks or pyproject.toml.

PYTHON ?= $(firstword $(foreach name,python3.11 python3 python,$(shell command -v $(name) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --no-header --no-annotate --generate-hashes \
	--python-platform linux --python-version 3.11 --no-emit-package torch

DEMO_FLAGS ?= --local-nodes 4 --clients 24 --rounds 15 --listen 127.0.0.1:0
PYTEST_FLAGS ?=
WORKERS ?= -n 3 --dist worksteal
BENCH ?=
CHAOS_FLAGS ?=
PEERS ?=
UPGRADE ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-gpu test-ray test-slurm check docs results bench chaos protos pages lock dist clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

install: $(INSTALLED)  ## make the environment

# The locks have the hash of everything but torch, of which each platform has several builds, and the project itself.
# Only wheels are taken: a source archive would be built with tools that nothing checks. The locks go first, so that
# what torch needs was checked before. torch goes alone and exact: with anything looser
# beside it, pip may pick a build with gigabytes of CUDA.
$(INSTALLED): requirements.lock requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=...") if sys.version_info < (3, 11) else 0'
	@echo "installing into $(VENV), once; this takes some minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes --only-binary :all: -r requirements.lock -r requirements-dev.lock
	@$(PIP) torch==2.13.0
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

demo: $(INSTALLED)  ## play a run on this machine, recorded in a new directory under runs/
	$(BIN)/top-server $(DEMO_FLAGS)

test: $(INSTALLED)  ## run the tests, in three processes; PYTEST_FLAGS="-k relay" chooses
	$(BIN)/pytest $(WORKERS) $(PYTEST_FLAGS)

test-ray: $(INSTALLED)  ## play the tests against a Ray cluster on this machine; Ray must be in .venv
	$(BIN)/pytest -m ray $(PYTEST_FLAGS)

test-gpu: $(INSTALLED)  ## play the tests that need a GPU of CUDA (a build of torch for it: docs/training.md)
	$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "torch finds no GPU of CUDA")'
	$(BIN)/pytest -m gpu $(PYTEST_FLAGS)

test-slurm: $(INSTALLED)  ## install Slurm from the packages of Debian, as root, and play the tests against a cluster on this machine
	command -v slurmctld >/dev/null || apt-get install --yes --no-install-recommends slurm-wlm
	$(BIN)/pytest -m slurm $(PYTEST_FLAGS)

check: $(INSTALLED)  ## lint, formatting, types, installed versions, generated files, results, and the site of docs/
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pip check
	$(BIN)/python scripts/protos.py --check
	$(BIN)/python -m benchmarks.results --check
	@$(MAKE) --no-print-directory docs

docs: $(INSTALLED)  ## build the pages of docs/ as a site in build/site, without network; a broken link fails
	$(BIN)/python scripts/settings_page.py --check
	$(BIN)/python scripts/events_page.py --check
	$(BIN)/python -m mkdocs build --quiet --strict

results: $(INSTALLED)  ## make the tables and pictures of docs/results anew from the summaries in docs/results/data
	$(BIN)/python -m benchmarks.results

bench: $(INSTALLED)  ## measure speed and memory beside what is possible; BENCH="hop rounds" chooses, PEERS=DIR has others there
	$(BIN)/python -m benchmarks.performance $(BENCH) $(if $(PEERS),--peers $(PEERS))

chaos: $(INSTALLED)  ## hit 100 runs while they work, and hold what they come to against an oracle; CHAOS_FLAGS="--runs 10" chooses
	$(BIN)/python -m benchmarks.chaos $(CHAOS_FLAGS)

pages: $(INSTALLED)  ## make docs/settings.md and docs/events.md anew from the code
	$(BIN)/python scripts/settings_page.py
	$(BIN)/python scripts/events_page.py

protos: $(INSTALLED)  ## make fedgsp/v1 and fedgsp/messages anew from protos/
	$(BIN)/python scripts/protos.py

lock: $(INSTALLED)  ## make requirements.lock and requirements-dev.lock anew from pyproject.toml; UPGRADE="--upgrade" takes newer versions
	$(LOCK) $(UPGRADE) --output-file requirements.lock
	$(LOCK) $(UPGRADE) --extra dev --constraints requirements.lock \
		$$(sed -n 's/^\([a-z0-9.-]*\)==.*/--no-emit-package \1/p' requirements.lock) --output-file requirements-dev.lock

dist: $(INSTALLED)  ## build the sdist, and the wheel from it, into dist/
	rm -rf dist
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")'
	$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --no-index --wheel-dir dist dist/*.tar.gz

clean:  ## remove the environment and everything made by tools; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
