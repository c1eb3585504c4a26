# `make run` and `make test` need Python 3.11+ (with venv) and make; everything else comes by pip.
# Extra arguments of the broker: make run ARGS="--port 9093 --data /var/lib/pybroker"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILED := $(wildcard pybroker/records/*.pyx pybroker/records/*.pxi)
PIP := $(BIN)/pip --disable-pip-version-check --quiet
ARGS ?=
TESTS ?=
RACE ?=
FRAMES ?= 200000
SEED ?=
SEEDS ?= 200
SCHEDULE ?=
# Tests run in several processes (docs/testing.rst says which tests stay together). Unit tests use
# the processor, so there is one process a core; the others mostly wait, so there are more.
CORES := $(shell nproc)
PROCESSES ?= $(shell expr 2 '*' $(CORES) + 1)
REPORT := --durations=30 --durations-min=1 -o tmp_path_retention_policy=failed
UNIT := -n $(CORES) --dist loadfile $(REPORT)
REAL := -n $(PROCESSES) --dist loadscope $(REPORT)
# Unit tests of whole clusters and of the model, which take their time: a stage of their own.
SIMULATED := unit_tests/simulation unit_tests/replication/test_model.py
# What unit tests write is small and often synced: it is kept in memory where 500 MB are free.
IN_MEMORY := $(shell [ -w /dev/shm ] && \
  [ "$$(df -Pk /dev/shm | awk 'END { print $$4 }')" -gt 500000 ] && echo TMPDIR=/dev/shm)
STAGES := check simulation conformance clients tools groups brokers packaging spark faults \
  spark-faults docker
STAGE ?= $(STAGES)

.PHONY: run check test test-all lint test-unit test-seeds test-mutants test-real explore simulate \
  fuzz bench docs docs-html install clean

run: $(VENV)/.installed-embedded
	$(BIN)/pybroker start $(ARGS)

# Under two minutes; needs no outside program.
check: lint test-unit

# Some twenty minutes on two idle cores: every API, tool, family of clients and promise once.
test: check test-seeds test-mutants test-real

# Everything, stage by stage; STAGE="spark faults" runs these two. A stage that fails does not keep
# the next ones from running.
test-all: $(VENV)/.installed-test
	@failed=; for stage in $(STAGE); do \
	  echo "== stage $$stage at $$(date +%T), load $$(cut -d ' ' -f 1-3 /proc/loadavg)"; \
	  $(MAKE) --no-print-directory stage-$$stage || failed="$$failed $$stage"; \
	done; \
	echo "== end at $$(date +%T), load $$(cut -d ' ' -f 1-3 /proc/loadavg)"; \
	test -z "$$failed" || { echo "these stages failed:$$failed" >&2; exit 1; }

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers $(CORES)

test-unit: $(VENV)/.installed-test
	$(IN_MEMORY) $(BIN)/pytest unit_tests $(UNIT) $(addprefix --ignore=,$(SIMULATED)) $(TESTS)
	$(IN_MEMORY) PYBROKER_TEST_BOOTSTRAP=memory \
	  $(BIN)/pytest integration_tests/conformance $(UNIT) $(TESTS)

# The property tests with other examples than those that `make test-unit` repeats.
explore: $(VENV)/.installed-test
	$(IN_MEMORY) $(BIN)/pytest $$(grep -rl "^from hypothesis" unit_tests --include='test_*.py') \
	  $(UNIT) --hypothesis-profile=explore $(TESTS)

test-seeds: $(VENV)/.installed-test
	$(BIN)/python -m pybroker.testing.simulation --seeds 60

# Each planted bug is found by the schedule that is pinned for it.
test-mutants: $(VENV)/.installed-test
	$(BIN)/pytest unit_tests/simulation -m mutants $(UNIT) --dist worksteal $(TESTS)

# Real processes, real clients, real ZooKeeper.
test-real: $(VENV)/.installed-test
	$(BIN)/pytest integration_tests -m "not long" $(REAL) $(TESTS)

stage-check: check

# Seeds, what they rest on, and the bugs that they have found or have to find.
stage-simulation: simulate
	$(BIN)/pytest $(SIMULATED) $(UNIT) --dist worksteal $(TESTS)

# The same requests to our broker and to Apache's, and our client with both brokers.
stage-conformance: $(VENV)/.installed-test
	$(BIN)/pytest integration_tests --stage conformance $(REAL) $(TESTS)
	PYBROKER_TEST_BOOTSTRAP=apache $(BIN)/pytest integration_tests/conformance \
	  $(wildcard integration_tests/test_own_*.py) $(REAL) $(TESTS)

stage-docker: $(VENV)/.installed-test
	$(BIN)/pytest integration_tests --stage docker $(REPORT) $(TESTS)

# The stages of integration_tests/stages.py.
stage-%: $(VENV)/.installed-test
	$(BIN)/pytest integration_tests --stage $* $(REAL) $(TESTS)

# Whole clusters under seeded faults, in simulated time: make simulate SEED=17 runs one seed again,
# SCHEDULE=file what stands in a file.
simulate: $(VENV)/.installed-test
	$(BIN)/python -m pybroker.testing.simulation --seeds $(SEEDS) \
	  $(if $(SEED),--seed "$(SEED)") $(if $(SCHEDULE),--schedule "$(SCHEDULE)")

# Hostile frames against a broker: make fuzz SEED=text sends the same ones again.
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m integration_tests.fuzzing --frames $(FRAMES) --seed "$(SEED)"

# The cost of idle partitions and the race with Apache Kafka come last, each half an hour, then the
# plot of both; RACE="--quick --rounds 1" makes the race short, and keeps it out of the plot.
bench: $(VENV)/.installed-test
	@for file in $$(ls benchmarks/[a-z]*.py | grep -v -e /growth.py -e /race.py); do \
	  echo "== $$file"; $(BIN)/python "$$file" || exit 1; done
	@echo "== benchmarks/growth.py"
	$(BIN)/python benchmarks/growth.py --duties
	$(BIN)/python benchmarks/growth.py --results
	$(BIN)/python benchmarks/growth.py --ours-only --results
	@echo "== benchmarks/race.py"
	$(BIN)/python benchmarks/race.py --results $(RACE)
	$(BIN)/python -m benchmarks.racing.plot

# docs/configuration.rst and the files of config/ are made from the tables of options.
docs: $(VENV)/.installed-test
	$(BIN)/python -m docs.make_configuration
	$(BIN)/python -m docs.make_metrics
	$(BIN)/python -m docs.make_client_metrics
	$(BIN)/python -m docs.make_states
	$(BIN)/python -m docs.make_authority
	$(BIN)/python -m docs.make_keywords

# The pages as a site, in build/docs. A warning fails it, also a page that no table of contents names.
docs-html: $(VENV)/.installed-test
	$(BIN)/sphinx-build -q -W --keep-going -E -j auto docs build/docs
	@echo "the site begins at build/docs/index.html"

# All that the tests need from pip.
install: $(VENV)/.installed-test

# The stamps make a second run quick: pip is asked again only when a declaration has changed.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "pybroker needs Python 3.11 or newer; choose one with: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-embedded: $(VENV)/.created setup.cfg setup.py pyproject.toml $(COMPILED)
	@echo "installing pybroker and its embedded ZooKeeper (from PySpark, some 450 MB) into $(VENV)"
	$(PIP) install --editable '.[embedded]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.created setup.cfg setup.py pyproject.toml $(COMPILED)
	@echo "installing pybroker and all that its tests need into $(VENV)"
	$(PIP) install --editable '.[embedded,spark,test,docker,docs]'
	@touch $@ $(VENV)/.installed-embedded

# Leaves the data of brokers alone.
clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f pybroker/records/_speedups.c pybroker/records/_speedups*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
