# klamm: every target works as the first and only command in a fresh clone (Python 3.11+, Java 17, make).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
UV     := 0.13.7

.DEFAULT_GOAL := help
.PHONY: help install up test interop soak cases mutants planted jars check fmt lock clean bench

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

install: $(STAMP)  ## .venv with everything from the lock file

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "klamm needs Python 3.11 or later; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet -r requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps -e .
	@touch $@

up: $(STAMP)  ## a cluster of three brokers; Ctrl-C ends it
	@exec $(BIN)/klamm up $(ARGS)

test: jars  ## the whole suite
	@$(BIN)/python -m pytest $(ARGS)

interop: jars  ## only the tests beside Apache Kafka and foreign clients
	@$(BIN)/python -m pytest tests/interop $(ARGS)

soak: jars  ## the whole suite with the full counts; takes hours
	@KLAMM_SCALE=full $(BIN)/python -m pytest $(ARGS)

cases: $(STAMP)  ## behaviour case -> the tests that prove it; red when a landed section lacks one; ARGS picks sections
	@$(BIN)/python scripts/cases.py $(ARGS)

mutants: jars  ## known mistakes, made one by one in a copy: each must turn its tests red; ARGS picks some by a word
	@$(BIN)/python scripts/mutants.py $(ARGS)

planted: $(STAMP)  ## bugs of Kafka's history, made one by one in a copy: the unit tests pass, the simulation must not
	@$(BIN)/python scripts/planted.py $(ARGS)

jars: $(STAMP)  ## Apache Kafka's and Spark's jars for the tests, once, into ~/.cache/klamm or KLAMM_CACHE
	@$(BIN)/python -m klamm.testing.kafka_jars
	@$(BIN)/python -m klamm.pipelines.jars

bench: $(STAMP)  ## controller and ZooKeeper client, on a machine with nothing else to do
	@$(BIN)/klamm bench controller --json
	@$(BIN)/klamm bench zookeeper --json

check: $(STAMP)  ## ruff and mypy strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

fmt: $(STAMP)  ## format and fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: $(STAMP)  ## write requirements.lock anew from pyproject.toml
	@$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --universal --python-version 3.11 \
		--no-header --no-annotate -o requirements.lock

clean:  ## remove what was built; data stays
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
