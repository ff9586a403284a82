# Every target works on a machine that has only Python (3.11 or newer), pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup test lint bench demo
.DEFAULT_GOAL := help

help:
	@echo "make demo   see what this is about, on real digits"
	@echo "make test   run the tests"
	@echo "make lint   ruff and mypy"
	@echo "make bench  benchmarks, as ratios in one run"
	@echo "make setup  only install, into .venv"

setup: $(READY)

$(READY): pyproject.toml constraints.txt requirements/peers.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements/peers.txt
	touch $(READY)

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(READY)
	$(BIN)/graddiv doctor
	$(BIN)/python examples/graddiv_in_your_loop.py

bench: $(READY)
	$(BIN)/python -m benchmarks.regularizer $(ARGS)
	$(BIN)/python -m benchmarks.attacks $(ARGS)
