# Everything starts here: `make run` and `make test` install what they need.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The Python to build .venv with; empty means: the first of 3.11 to 3.14 that is found.
PYTHON ?=
ARGS ?=
UV ?= $(shell command -v uv || echo .venv/bin/uv)

export PYTHON
# Spark's workers must be the same Python as the driver, and find it from any working directory.
export PYSPARK_PYTHON := $(CURDIR)/.venv/bin/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

# Recipes that start Spark begin with this.
JAVA := export JAVA_HOME; JAVA_HOME="$$(scripts/java.sh)";
HEADGATE := .venv/bin/headgate
# Before many tests start a JVM each.
CLASSES := .venv/bin/python scripts/class_archive.py
PYTEST := .venv/bin/python -m pytest
MUTANTS := .venv/bin/python tests/mutants/run.py
# Two processes with a session each; whole files, in the order in which they are collected.
TWO := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup java run kafka test check format unit spark laws mutants thorough bench matrix docs site lock clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: ## create .venv from the lock files (nothing to do when it is up to date)
	@scripts/setup.sh

java: ## find or install Java 17
	@scripts/java.sh

run: setup ## the demonstration: NEXMark Q5 scaled 2 -> 4 -> 3 while it runs, answers verified
	@$(JAVA) $(HEADGATE) run nexmark-q5 --rate 20000 --duration 60s --slots 2 --scale-at 20s=4 --scale-at 40s=3 --verify $(ARGS)

kafka: setup ## clicks from Kafka to Kafka exactly once, with a broker of its own, scaled 2 -> 4 -> 3, verified
	@$(JAVA) $(HEADGATE) run kafka-clicks --rate 1000 --duration 60s --slots 2 --scale-at 20s=4 --scale-at 40s=3 --slo "mean < 5 s over 5 s" --policy static --verify $(ARGS)

test: setup ## all tests, quick ones first, a twentieth of the listed mutants, and ten drawn by lot
	@$(JAVA) $(PYTEST) -m "not spark and not slow" -n auto $(ARGS)
	@$(JAVA) $(CLASSES)
	@$(JAVA) $(PYTEST) -m "spark or slow" $(TWO) $(ARGS)
	@$(JAVA) $(MUTANTS) --part
	@$(MUTANTS) --drawn 10 --no-spark --within 60

check: setup ## lint, format, types and layers
	@.venv/bin/python -m ruff check .
	@.venv/bin/python -m ruff format --check .
	@.venv/bin/python -m mypy
	@.venv/bin/lint-imports --no-cache
	@echo "The longest files, as advice:"; git ls-files '*.py' | xargs wc -l | sort -rn | sed -n '2,11p'

format: setup ## rewrite the sources as `make check` wants them
	@.venv/bin/python -m ruff check --fix .
	@.venv/bin/python -m ruff format .

unit: setup ## the tests without Spark, in some three minutes
	@$(PYTEST) -m "not spark and not slow" -n auto $(ARGS)

spark: setup ## the tests that need Spark
	@$(JAVA) $(CLASSES)
	@$(JAVA) $(PYTEST) -m spark $(TWO) $(ARGS)

laws: setup ## the property tests, with many more examples
	@HYPOTHESIS_PROFILE=laws $(PYTEST) tests/operators tests/core tests/tables tests/checkpoint tests/workloads tests/control tests/laws tests/migration lab/tests/dataflow lab/tests/workloads demo/tests/generators -m "not spark" -n auto $(ARGS)

mutants: setup ## break one line at a time and see that its test fails; ARGS="--only word", "--part 3", "--drawn 200 --seed 7"
	@$(JAVA) $(MUTANTS) $(ARGS)

thorough: setup ## all tests with all their cases, all listed mutants, and 200 drawn by lot
	@$(JAVA) $(PYTEST) --thorough -m "not spark and not slow" -n auto
	@$(JAVA) $(PYTEST) --thorough -m "spark or slow" $(TWO)
	@$(JAVA) $(MUTANTS)
	@$(JAVA) $(MUTANTS) --drawn 200

bench: setup ## the benchmarks, side by side in one run
	@$(JAVA) $(HEADGATE) bench $(ARGS)

matrix: setup ## headgate on every minor release of Spark; ARGS="--minor 4.1 --short"
	@$(JAVA) .venv/bin/python scripts/matrix.py $(ARGS)

docs: setup ## write the generated pages again
	@.venv/bin/python scripts/journal_page.py
	@.venv/bin/python scripts/rooms.py

site: setup ## build the site from docs into .site
	@.venv/bin/python -m sphinx -q -W --keep-going -b html docs .site
	@echo "headgate: the site is .site/index.html"

COMPILE := "$(UV)" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-emit-index-url --no-emit-find-links $(UPGRADE)

lock: ## write the lock files again (needs uv; UPGRADE=--upgrade takes newer versions)
	@$(COMPILE) pyproject.toml --extra dev --extra plot --extra metrics --extra ui --extra otel --extra kafka --extra store --extra hdfs -o requirements/dev.lock
	@$(COMPILE) pyproject.toml -c requirements/dev.lock -o requirements/run.lock
	@$(COMPILE) requirements/build.in -c requirements/dev.lock -o requirements/build.lock
	@$(COMPILE) requirements/servers.in -o requirements/servers.lock
	@for minor in 4.1 4.2; do $(COMPILE) --no-deps requirements/spark-$$minor.in -o requirements/spark-$$minor.lock; done

clean: ## remove .venv and what the tools leave behind
	@rm -rf .venv .spark .site build dist .mutants .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse
	@find src lab demo tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -rf src/*.egg-info lab/src/*.egg-info demo/src/*.egg-info
