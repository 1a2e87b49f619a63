# klamm: every target works as the first and only command in a fresh clone (Python 3.11+, Java 17, make).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.installed-base
STAMP  := $(VENV)/.installed
UV     := 0.13.7

# The suite starts hundreds of interpreters. Without byte code, each compiles again what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install up wheel test interop soak cases mutants planted jars clients chromium check fmt lock clean bench

help:  ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

install: $(STAMP)  ## create .venv with everything from the lock file

$(BASE): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "klamm needs Python 3.11 or later; set PYTHON=...")'
	@echo "klamm: installing what a cluster needs into $(VENV) (about 100 MB, only once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --constraint requirements.lock -e .
	@touch $@

$(STAMP): $(BASE)
	@echo "klamm: installing Spark and the tools for tests into $(VENV) (about 1 GB, only once) ..."
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet -r requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps -e .
	@touch $@

up: $(BASE)  ## run a cluster of three brokers until Ctrl-C; ARGS are those of klamm up
	@exec $(BIN)/klamm up $(ARGS)

wheel: $(BASE)  ## build a wheel in dist/, for pip install
	@$(BIN)/uv build --quiet --wheel --out-dir dist
	@ls dist/*.whl

test: jars clients chromium  ## run the whole suite; ARGS are pytest's
	@$(BIN)/python -m pytest $(ARGS)

interop: jars clients  ## run only the tests with Apache Kafka and other clients
	@$(BIN)/python -m pytest tests/interop $(ARGS)

soak: jars clients chromium  ## run the whole suite with full counts; takes hours
	@KLAMM_SCALE=full $(BIN)/python -m pytest $(ARGS)

cases: $(STAMP)  ## list behaviour cases and their tests; fails if a landed section lacks one; ARGS selects sections
	@$(BIN)/python scripts/cases.py $(ARGS)

mutants: jars  ## make known mistakes in a copy, one by one: the tests must fail; ARGS selects some by words
	@$(BIN)/python scripts/mutants.py $(ARGS)

planted: $(STAMP)  ## plant bugs from Kafka's history in a copy: the unit tests pass, the simulation must fail
	@$(BIN)/python scripts/planted.py $(ARGS)

chromium:  ## install Debian's Chromium for the browser tests, as root on Debian
	@scripts/install_chromium

jars: $(STAMP)  ## fetch the jars of Apache Kafka and Spark once, into ~/.cache/klamm or KLAMM_CACHE
	@$(BIN)/python -m klamm.testing.kafka_jars
	@$(BIN)/python -m klamm.testing.class_archive
	@$(BIN)/python -m klamm.pipelines.jars --s3

clients: $(STAMP)  ## install the clients of the matrix once, into the same cache: Python, Java, Go, Node.js, C, Debian
	@$(BIN)/python scripts/clients.py

bench: $(STAMP)  ## measure controller and ZooKeeper client on an idle machine
	@$(BIN)/klamm bench controller --json
	@$(BIN)/klamm bench zookeeper --json

check: $(STAMP)  ## run ruff and mypy strict over all packages and scripts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

fmt: $(STAMP)  ## format and fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: $(STAMP)  ## update requirements.lock from pyproject.toml
	@$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --universal --python-version 3.11 \
		--no-header --no-annotate -o requirements.lock

clean:  ## remove .venv and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
