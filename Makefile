# Every target works on a machine that has only Python (3.11 or newer), pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= auto

.PHONY: help setup test lint bench demo browser docs
.DEFAULT_GOAL := help

help:
	@echo "make demo   see what this is about, on real digits"
	@echo "make test   run the tests, on all cores or JOBS=n; ARGS=--slow for all of them"
	@echo "make lint   ruff and mypy"
	@echo "make bench  benchmarks; stores what they find and writes docs/benchmarks.md (leave the machine alone meanwhile)"
	@echo "make browser  look at the report in a headless browser (needs chromium and chromium-driver)"
	@echo "make docs   build the documentation, its tutorials executed: docs/_build/html/index.html"
	@echo "make setup  only install, into .venv"

setup: $(READY)

$(READY): pyproject.toml constraints.txt requirements/peers.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements/peers.txt
	touch $(READY)

test: $(READY)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --maxprocesses 8 --dist worksteal --ignore tests/browser $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(READY)
	$(BIN)/graddiv reproduce demo $(ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

browser: $(READY)
	$(BIN)/python -m pip install --quiet --requirement requirements/browser.txt
	$(BIN)/python -m pytest tests/browser --browser $(ARGS)

docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement requirements/docs.txt
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet --builder html docs docs/_build/html $(ARGS)
	@echo "built: docs/_build/html/index.html"
