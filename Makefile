# `make run` and `make test` need Python 3.11+ (with venv) and make; everything else comes by pip.
# Extra arguments of the broker: make run ARGS="--port 9093 --data /var/lib/pybroker"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
ARGS ?=
TESTS ?=
RACE ?=
FRAMES ?= 200000
SEED ?=
SEEDS ?= 200
SCHEDULE ?=
# Unit tests of whole clusters and of the model, which take their time: a stage of their own.
SIMULATED := unit_tests/simulation unit_tests/replication/test_model.py
# Unit tests run in several processes, the tests of a file in one (TESTS="-n 0": all in one). What
# they write is small and often synced: it is kept in memory where 500 MB are free.
IN_MEMORY := $(shell [ -w /dev/shm ] && \
  [ "$$(df -Pk /dev/shm | awk 'END { print $$4 }')" -gt 500000 ] && echo TMPDIR=/dev/shm)
PARALLEL := -n logical --maxprocesses 4 --dist loadfile -o tmp_path_retention_policy=failed

.PHONY: run test lint test-unit test-simulation test-integration test-faults explore simulate fuzz bench docs install clean

run: $(VENV)/.installed-embedded
	$(BIN)/pybroker start $(ARGS)

test: lint test-unit test-simulation test-integration test-faults

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-unit: $(VENV)/.installed-test
	$(IN_MEMORY) $(BIN)/pytest unit_tests $(PARALLEL) $(addprefix --ignore=,$(SIMULATED)) $(TESTS)

# The property tests with other examples than those that `make test-unit` repeats.
explore: $(VENV)/.installed-test
	$(IN_MEMORY) $(BIN)/pytest $$(grep -rl "^from hypothesis" unit_tests --include='test_*.py') \
	  $(PARALLEL) --hypothesis-profile=explore $(TESTS)

# Seeds, what they rest on, and the bugs that they have found or have to find.
test-simulation: simulate
	$(BIN)/pytest $(SIMULATED) $(TESTS)

test-integration: $(VENV)/.installed-test
	$(BIN)/pytest integration_tests --ignore-glob='*/test_faults_*.py' $(TESTS)

# Brokers, links, disks, ZooKeeper and jobs that fail under load: about a quarter of an hour.
test-faults: $(VENV)/.installed-test
	$(BIN)/pytest integration_tests/test_faults_*.py $(TESTS)

# Whole clusters under seeded faults, in simulated time: make simulate SEED=17 runs one seed again,
# SCHEDULE=file what stands in a file.
simulate: $(VENV)/.installed-test
	$(BIN)/python -m pybroker.testing.simulation --seeds $(SEEDS) \
	  $(if $(SEED),--seed "$(SEED)") $(if $(SCHEDULE),--schedule "$(SCHEDULE)")

# Hostile frames against a broker: make fuzz SEED=text sends the same ones again.
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m integration_tests.fuzzing --frames $(FRAMES) --seed "$(SEED)"

# Last comes the race with Apache Kafka, half an hour; RACE="--quick --rounds 1" makes it short.
bench: $(VENV)/.installed-bench
	@for file in benchmarks/[a-z]*.py; do test "$$file" = benchmarks/race.py && continue; \
	  echo "== $$file"; $(BIN)/python "$$file" || exit 1; done
	@echo "== benchmarks/race.py"
	$(BIN)/python benchmarks/race.py $(RACE)

# docs/configuration.rst and the files of config/ are made from the tables of options.
docs: $(VENV)/.installed-test
	$(BIN)/python -m docs.make_configuration
	$(BIN)/python -m docs.make_metrics
	$(BIN)/python -m docs.make_states

# All that the tests need from pip.
install: $(VENV)/.installed-test

# The stamps make a second run quick: pip is asked again only when a declaration has changed.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "pybroker needs Python 3.11 or newer; choose one with: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-embedded: $(VENV)/.created setup.cfg setup.py pyproject.toml
	@echo "installing pybroker and its embedded ZooKeeper (from PySpark, some 450 MB) into $(VENV)"
	$(PIP) install --editable '.[embedded]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.created setup.cfg setup.py pyproject.toml
	@echo "installing pybroker and all that its tests need into $(VENV)"
	$(PIP) install --editable '.[embedded,spark,test,docker]'
	@touch $@ $(VENV)/.installed-embedded

$(VENV)/.installed-bench: $(VENV)/.installed-test
	$(PIP) install --editable '.[bench]'
	@touch $@

# Leaves the data of brokers alone.
clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f pybroker/records/_speedups.c pybroker/records/_speedups*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
