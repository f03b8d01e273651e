# One obvious command for each job. Everything installs from PyPI into .venv; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SPARK_STAMP := $(VENV)/.installed-spark
# Tests start hundreds of Python processes: without bytecode of the sources, most of what each of them does is to compile them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-spark demo test test-broker test-spark documents lint format changelog spark bench budget interop chaos growing kills fire mirror damage sim fuzz docs site clean try first-run dist package footprint

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Without Spark, and without what tests need: a few packages, installed in seconds.
BROKER_VENV := .venv-broker
BROKER_STAMP := $(BROKER_VENV)/.installed
$(BROKER_STAMP): pyproject.toml
	$(PYTHON) -m venv $(BROKER_VENV)
	$(BROKER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

setup-spark: $(SPARK_STAMP)  ## make .venv and install what the demo needs
# Preparing Spark makes each of its later starts quicker; without it all works as well.
$(SPARK_STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[spark]'
	-$(BIN)/millstream spark prepare
	@touch $@

setup: $(STAMP)  ## make .venv and install everything
$(STAMP): $(SPARK_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

try: $(BROKER_STAMP)  ## a first minute with nothing but the broker: installs without Spark, sends and reads a few records
	@PATH="$(abspath $(BROKER_VENV)/bin):$$PATH" sh examples/first_minute.sh

demo: $(SPARK_STAMP)  ## a broker, a pipeline on Spark, a driver killed on purpose: what came out
	@$(BIN)/millstream demo

test: $(STAMP) lint  ## what CI runs: lint, types, every test but the long suites
	@$(MAKE) --no-print-directory --jobs 2 test-broker test-spark

# What runs on Spark, or stands beside what does.
SPARK_TESTS := tests/spark tests/pipelines tests/connect tests/sql \
	tests/stories/pipelines tests/stories/connectors tests/stories/documents

# More workers than cores, because tests with processes and on Spark mostly wait; the latter share one
# JVM per worker. The order is that of tests/conftest.py: long files first.
test-broker: $(STAMP)
	nice -n 5 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(SPARK_TESTS)) -m "not long and not documents"

test-spark: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(SPARK_TESTS) -m "not long and not documents"

documents: $(STAMP)  ## every worked example of the documents runs as it is written, and prints what is shown
	$(BIN)/python -m pytest tests/test_doc_blocks.py tests/stories/documents -m documents

# Written by hand, so that the formatter may wrap them; benchmarks.md and the reference are generated.
MARKDOWN := $(wildcard *.md changelog.d/*.md docs/internals/*.md docs/lab/*.md) \
	$(filter-out docs/benchmarks.md,$(wildcard docs/*.md))

lint: $(STAMP)  ## ruff, mypy, and the format of the Markdown documents
	$(BIN)/ruff check src tests bench docs changelog.d release
	$(BIN)/ruff format --check src tests bench docs changelog.d release
	$(BIN)/mypy
	$(BIN)/mdformat --check $(MARKDOWN)

format: $(STAMP)  ## format the Python files and the Markdown documents
	$(BIN)/ruff format src tests bench docs changelog.d release
	$(BIN)/mdformat $(MARKDOWN)

changelog: $(STAMP)  ## move the fragments of changelog.d into CHANGELOG.md; VERSION=x.y.z
	$(BIN)/python changelog.d/assemble.py $(VERSION)
	$(BIN)/mdformat CHANGELOG.md

spark: $(STAMP)  ## every test on Spark, also those that take minutes: drivers killed, pipelines restarted, fresh JVMs (FRESH_JVMS=n)
	$(BIN)/python -m pytest $(SPARK_TESTS) tests/cli/pipeline/test_command.py tests/bench/test_spark.py tests/bench/test_connectors.py

bench: $(STAMP)  ## figures beside the client's own limit; ONLY=name,name for some of them, ALL=1, AGAINST=kafka,kafka-cluster
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(ALL),--all) $(if $(AGAINST),--against $(AGAINST))

budget: $(STAMP)  ## every API at its largest request: no turn of the event loop takes more than 50 ms of CPU
	$(BIN)/python -m pytest tests/stories/requests/test_turn_budget.py -m long

first-run: $(STAMP)  ## fresh clones: make demo RUNS=20 times, BUSY=10 of them beside busy loops, make test TESTS=5 times; goes on where it was interrupted
	$(BIN)/python -m bench.first_run $(if $(RUNS),--runs $(RUNS)) $(if $(BUSY),--busy $(BUSY)) $(if $(TESTS),--tests $(TESTS))

interop: $(STAMP)  ## Java, Go and Node clients, Kafka's own tools, Spark's own connector, where they can be had
	$(BIN)/python -m pytest tests/interop -p no:cacheprovider --timeout 900

chaos: $(STAMP)  ## brokers and ZooKeepers killed, paused, cut off, filled up; MINUTES=n [SEED=k]; a verdict over what clients saw
	PYTHONPATH=tests $(BIN)/python -m nemesis.run --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED))

growing: $(STAMP)  ## a cluster grows, shrinks and restarts under full load: nothing lost, and its throughput second by second; THROTTLE=bytes|0, DIRECTORY=/dev/shm, ROUNDS=n moves of everything with KEPT=bytes
	PYTHONPATH=tests $(BIN)/python -m nemesis.growing $(if $(THROTTLE),--throttle $(THROTTLE)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(KEPT),--kept $(KEPT)) $(if $(DIRECTORY),--directory $(DIRECTORY))

kills: $(STAMP)  ## kill -9 again and again, with transactions and Spark; MILLSTREAM_CHAOS_ROUNDS says how often
	$(BIN)/python -m pytest tests/chaos -p no:cacheprovider --timeout 7200 -s

fire: $(STAMP)  ## pipelines and connectors while drivers, executors, workers, databases and the broker are killed; part of kills
	$(BIN)/python -m pytest tests/chaos/test_pipeline_under_fire.py tests/chaos/test_stores_under_fire.py tests/chaos/test_connectors_under_fire.py tests/chaos/test_standalone_cluster.py -p no:cacheprovider --timeout 7200 -s

mirror: $(STAMP)  ## two clusters mirrored both ways while drivers and the brokers of both sides are killed; MINUTES=n [NAMES=prefix|identity]
	$(if $(MINUTES),MILLSTREAM_MIRROR_MINUTES=$(MINUTES)) $(BIN)/python -m pytest tests/chaos/test_mirror_under_fire.py $(if $(NAMES),-k $(NAMES)) -p no:cacheprovider --timeout 7200 -s

damage: $(STAMP)  ## every file of a data directory flipped, truncated, removed, overwritten, after a stop and a kill; SHORT=1 a sample, SEED=k
	$(if $(SEED),SEED=$(SEED)) $(BIN)/python -m pytest -n 2 tests/robust/test_damage_matrix.py -k $(if $(SHORT),sample,every) --timeout 3600

sim: $(STAMP)  ## simulated failures from seeds; SEEDS=n [FIRST=k] [JOBS=p] or SEED=k [TRACE=1]; SCENARIO=single|replication|cluster|mixed
	PYTHONHASHSEED=0 $(BIN)/python -m millstream.sim.run --scenario $(or $(SCENARIO),$(if $(SEED),single,mixed)) --jobs $(or $(JOBS),$(shell nproc)) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100) --first $(or $(FIRST),1)) $(if $(TRACE),--trace)

fuzz: $(STAMP)  ## mutated frames of every API and version against a broker with a healthy neighbour; FRAMES=n or MINUTES=n [SEED=k]
	PYTHONPATH=tests $(BIN)/python -m fuzz.run $(if $(FRAMES),--frames $(FRAMES)) $(if $(MINUTES),--minutes $(MINUTES) --frames 1000000000) $(if $(SEED),--seed $(SEED))

docs: $(STAMP)  ## write the reference pages that are derived from the declarations
	$(BIN)/python docs/generate.py

site: docs  ## the documentation as a site in build/site; warnings, broken links and anchors are errors
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs build/site

dist: $(STAMP)  ## sdist and wheel of the last commit in dist, built twice and compared, and checked as PyPI would
	$(BIN)/python release/dist.py

package: $(STAMP)  ## the built wheel and each extra in clean environments, and the main command of each; PYTHONS="3.12 3.13" also the core on these
	$(if $(PYTHONS),MILLSTREAM_PYTHONS="$(PYTHONS)") $(BIN)/python -m pytest tests/test_package.py -m long -p no:cacheprovider --timeout 1800 --durations 0

footprint: $(STAMP)  ## what the core brings: packages, megabytes, imports and times, in a clean environment
	$(BIN)/python release/footprint.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(BROKER_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/results
