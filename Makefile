# moescope: every command of the repository. Each one makes its own environment first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
COMPONENTS := core producers processors storage jobs console
PYTHON_SOURCES := $(COMPONENTS) $(wildcard tests scripts benchmarks examples)
PYTEST := $(BIN)/python -m pytest
ARGS ?=
# Processes that share the tests, file by file: twice as many as the cores this is made for, since many
# tests wait for processes and brokers. 0 runs them in this one (for a debugger).
WORKERS ?= 4

.PHONY: help demo test check format bench docs lock intervals faults fuzz setup setup-dev engines soak recordings kafka

help: ## list the commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## the environment that the demo and the server run in
	@scripts/bootstrap.sh server

setup-dev: ## the environment that checks and tests run in
	@scripts/bootstrap.sh dev

demo: setup ## a simulated fleet, planted incidents, and what moescope saw (ARGS=… is passed on)
	$(BIN)/moescope demo $(ARGS)

test: setup-dev ## unit, property, integration and e2e tests (ARGS=… is passed to pytest)
	$(PYTEST) -m "not engines" -n $(WORKERS) --dist loadfile $(ARGS)

check: setup-dev ## lint, types, import layers, generated pages up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy $(PYTHON_SOURCES)
	$(BIN)/python scripts/generate_reference.py --check

format: setup-dev ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: setup-dev ## write docs/reference/ from the declarations in the code
	$(BIN)/python scripts/generate_reference.py

lock: ## compile requirements/*.txt from pyproject.toml (UPGRADE=1 takes newer versions)
	@scripts/lock.sh

bench: setup-dev ## measure speed on this machine, and write docs/performance.md (ARGS=--quick)
	$(BIN)/python -m benchmarks $(ARGS)

PORT ?= 9092
kafka: setup-dev ## run a Kafka broker by hand at 127.0.0.1:9092 until Ctrl-C (PORT=…)
	@$(BIN)/python scripts/kafka.py --port $(PORT) $(ARGS)

ENGINES := torch transformers-4.57 transformers-5.6 transformers-5.12 olmo-core vllm
engines: setup-dev ## tests with real engines, in environments of their own (about 11 GB): ENGINES='torch vllm' for some
	@scripts/engines.sh $(ENGINES)
	@scripts/engine_tests.sh $(ENGINES) -- $(ARGS)

recordings: setup-dev ## train the small MoE and record its routing again (examples/tiny_moe)
	@scripts/engines.sh torch
	[ -f .engines/tiny-moe/report.json ] || .engines/torch/bin/python -m examples.tiny_moe.train
	.engines/torch/bin/python -m examples.tiny_moe.record $(ARGS)

MINUTES ?= 20
soak: setup-dev ## serve with the vLLM plugin for MINUTES=20 beside a server without, and watch both processes' memory
	@scripts/engines.sh vllm
	$(BIN)/python -m benchmarks.vllm_soak --minutes $(MINUTES) $(ARGS)

intervals: setup-dev ## coverage of calibrated intervals, 1,000 baselines a case (docs/explanation/calibration.md)
	$(BIN)/python -m benchmarks.interval_coverage --write $(ARGS)

fuzz: setup-dev ## property tests with many examples, from a new seed each time
	MOESCOPE_HYPOTHESIS_PROFILE=fuzz $(PYTEST) -m property --timeout=3600 $(ARGS)
	$(BIN)/python tests/fuzz/fuzz_wire.py

ROUNDS ?= 20
KILLS ?= 200
faults: setup-dev ## kill KILLS=200 roll-ups, break fleets over Kafka (docs/reliability.md), then all tests that kill, ROUNDS=20 times
	$(BIN)/python tests/faults/run_faults.py $(KILLS)
	$(BIN)/python tests/faults/run_kafka_faults.py $(FAULTS)
	for round in $$(seq $(ROUNDS)); do $(PYTEST) -m "not engines" -k "kill or crash" $(ARGS); done
