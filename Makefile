# Targets for daily work on schedd. They need python3 (3.11 or newer, with venv), make and git. All other
# packages are installed into .venv automatically: at first use, and again when pyproject.toml changes.

PYTHON  ?= python3
SECONDS ?=
SEED    ?=
SEEDS   ?=
FIRST   ?=
WITHOUT ?=
export SEED EVIDENCE
ARGS    ?=
JOBS    ?= 6
REASON  ?=
NAME    ?=
ROW     ?=
# SECONDS isn't exported, because bash would use its value as the start of bash's own clock
unexport SECONDS
# PYTHONDONTWRITEBYTECODE isn't exported: without bytecode files, each of the thousands of processes that
# tests start would compile its imports, which takes seconds
unexport PYTHONDONTWRITEBYTECODE

VENV  := .venv
BIN   := $(VENV)/bin
TESTS ?= $(wildcard $(addprefix tests/,unit properties conformance integration acceptance))
PIP   := $(BIN)/python -m pip --disable-pip-version-check install --quiet

CHOSEN = $(if $(ROW),--row '$(ROW)')

.DEFAULT_GOAL := help
.PHONY: help demo check quick test smoke model acceptance-full booted faces pictures faults faults-all faults-long mutants cron-long golden-diff golden-write bench lint gen clean

help: ## List all targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1\t/' | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-15s %s\n' "$$name" "$$what"; done

demo: $(VENV)/dev ## Run a cluster of real processes that runs real jobs; SECONDS=40 ends the demo after 40 s (default: at Ctrl-C)
	@PATH="$(CURDIR)/$(BIN):$$PATH" deploy/demo/run $(if $(SECONDS),--seconds $(SECONDS))

test: $(if $(filter file,$(origin TESTS)),programs) $(VENV)/contrib ## Run all tests except the fault tests; TESTS=tests/unit (a folder or file) ARGS="-k lease -x" (pytest's options) JOBS=2 (processes, default 6)
	$(BIN)/pytest $(TESTS) --numprocesses $(JOBS) --max-worker-restart 0 $(ARGS) || PYTHONPATH=tests $(BIN)/python -m support.repeated $$?

.PHONY: programs
programs:
	@missing=; for name in curl openssl pgbouncer; do PATH="$$PATH:/usr/sbin" command -v $$name >/dev/null || missing="$$missing $$name"; done; [ -z "$$missing" ] || { echo "make test needs these programs:$$missing; on Debian and Ubuntu: apt-get install$$missing" >&2; exit 1; }

check: $(VENV)/contrib ## Run lint, quick unit tests and property tests with few examples, without a server: under 90 seconds
	@$(MAKE) --no-print-directory --jobs 2 lint quick

quick: $(VENV)/contrib
	CALENDAR_TRIALS=10 CRON_TRIPLES=1000 FOREIGN_EXPRESSIONS=20 $(BIN)/pytest tests/unit tests/properties --ignore tests/unit/faults -m 'not slow' --numprocesses 3 --max-worker-restart 0 --quiet $(ARGS)

smoke: $(VENV)/contrib ## Run each benchmark at its smallest size, to check that it works: under 4 minutes
	$(BIN)/pytest tests/smoke --numprocesses 2 --max-worker-restart 0 $(ARGS)

model: $(VENV)/contrib ## Simulate the protocol under faults, with all rules and without each rule; SEEDS=500 FIRST=100 WITHOUT=rule SEED=42 (one simulation)
	@cd tests && ../$(BIN)/python -m faults.model $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) $(foreach rule,$(WITHOUT),--without $(rule))

faults: $(VENV)/contrib ## Run the fault tests that CI runs, in network namespaces, as root: under 8 minutes; ROW='test_leader_killed' (one test)
	FAULTS_REQUIRED=1 $(BIN)/pytest tests/faults -m "not full" --timeout=300 $(CHOSEN) $(ARGS)

booted: $(VENV)/contrib ## Test the units of deploy/systemd in a container that boots systemd, as root: 5 minutes
	BOOTED_REQUIRED=1 $(BIN)/pytest tests/booted --timeout=600 $(ARGS)

faces: $(VENV)/contrib ## Test alerts and dashboards with a real Prometheus, web pages in a real Chromium: 10 minutes; needs prometheus, promtool, chromium
	FACES_REQUIRED=1 $(BIN)/pytest tests/faces --timeout=300 $(ARGS)

pictures: $(VENV)/contrib ## Save a picture of each web page in docs/images/pages; needs chromium
	@cd tests && ../$(BIN)/python -m faces.pages.pictures

faults-all: $(VENV)/contrib ## Run all fault tests, as root; ROW='test_leader_killed' (one test) EVIDENCE=1 (append figures to docs/evidence)
	FAULTS_REQUIRED=1 $(BIN)/pytest tests/faults --timeout=600 $(CHOSEN) $(ARGS)

faults-long: $(VENV)/contrib ## Inject random faults, as root; SECONDS=1800 (default 600) SEED=7 (repeats the faults of this seed)
	cd tests && ../$(BIN)/python -m faults.long --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: $(VENV)/contrib ## Break one guarantee of schedd at a time, and check that the fault tests notice, as root; MUTANT=name (default: all)
	cd tests && ../$(BIN)/python -m faults.mutants $(MUTANT) $(ARGS)

acceptance-full: ## Run the tests that .ci/run shortens at full length, one after another, as root: about six hours
	$(MAKE) test faults-all
	OUTPUT_MIB=10240 $(MAKE) test TESTS=tests/integration/test_worker_shell.py ARGS="-k first_and_last --timeout=1500"
	REJECTED_FOR=30 REJECTED_JOBS=100 $(MAKE) test TESTS=tests/acceptance/test_rejections.py JOBS=0 ARGS="--timeout=900"
	FORK_SUBMITS=1000 $(MAKE) test TESTS=tests/acceptance/test_prefork.py JOBS=0
	FUZZ_MESSAGES=100000 $(MAKE) test TESTS=tests/acceptance/test_fuzz.py JOBS=0 ARGS="--timeout=7200"
	OPENAPI_SECONDS=60 $(MAKE) test TESTS=tests/acceptance/test_openapi.py JOBS=0
	TOKEN_FLOOD_SECONDS=20 $(MAKE) test TESTS=tests/acceptance/test_unknown_tokens.py JOBS=0
	COUNTED_RUNS=10000 $(MAKE) test TESTS=tests/acceptance/test_calls_per_run.py JOBS=0
	EVENT_RUNS=1000 $(MAKE) test TESTS=tests/acceptance/test_events.py JOBS=0
	RACES_SECONDS=10 $(MAKE) test TESTS=tests/integration/store/test_races.py JOBS=0
	EACH_SECOND_FOR=30 $(MAKE) test TESTS=tests/acceptance/test_schedules.py JOBS=0
	IDEMPOTENT_CALLS=1000 $(MAKE) test TESTS=tests/acceptance/test_idempotency.py JOBS=0
	ETCD_OUTAGE=20 OUTAGE_SUBMITTERS=8 $(MAKE) test TESTS=tests/acceptance/test_outages.py JOBS=0
	AGEING_RUNS=1000 $(MAKE) test TESTS=tests/acceptance/test_aging.py JOBS=0
	CHAIN_CYCLES=200 $(MAKE) test TESTS=tests/acceptance/test_chains.py JOBS=0 ARGS="--timeout=1200"
	POOL_RUNS=500 $(MAKE) test TESTS=tests/acceptance/test_pools.py JOBS=0 ARGS="--timeout=900"
	REDRIVE_LETTERS=10000 $(MAKE) test TESTS=tests/acceptance/test_redrives.py JOBS=0 ARGS="--timeout=1800"
	CONCURRENT_CALLS=5000 $(MAKE) test TESTS=tests/unit/schedclient/test_many_calls.py JOBS=0
	CALENDAR_TRIALS=1000 $(MAKE) test TESTS=tests/properties/test_calendars.py JOBS=0
	TEETH_EXAMPLES=30 $(MAKE) test TESTS=tests/unit/faults/test_checker_teeth.py JOBS=0
	FOREIGN_EXPRESSIONS=10000 $(MAKE) test TESTS=tests/properties/test_foreign_expressions.py JOBS=0 ARGS="--timeout=900"
	OUTAGE_JOBS=10000 $(MAKE) faults-all ARGS="-k outage_of_ten_minutes"
	for pass in 1 2 3 4 5 6 7 8 9 10; do $(MAKE) faults || exit 1; done
	for seed in 1 2 3; do $(MAKE) faults-long SECONDS=1800 SEED=$$seed || exit 1; done
	$(MAKE) mutants model cron-long

cron-long: $(VENV)/contrib ## Compare a million random cron schedules with a minute-by-minute walk through time; SEED=7 FIRST=500 (continue there) JOBS=2
	@cd tests && ../$(BIN)/python -m almanac $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST)) --processes $(JOBS) $(ARGS)

golden-diff: $(VENV)/contrib ## Print how the installed libraries change the meaning of 320 stored cron expressions; exit with 1 if one changes
	@cd tests && ../$(BIN)/python -m almanac.golden $(ARGS)

golden-write: $(VENV)/contrib ## Accept the changes that golden-diff prints; REASON="tzdata 2027a: Morocco gives up summer time" (required)
	@cd tests && ../$(BIN)/python -m almanac.golden --write --reason "$(REASON)"

BENCHES := cron drain failover herd openloop pages peers scale simulated soak spread start statements submit
BENCH    = $(if $(NAME),$(filter $(NAME),$(BENCHES)),cron)

bench: $(VENV)/contrib ## Run one benchmark, print JSON lines; NAME=cron ARGS="--runs 9"; an unknown NAME prints all names
ifeq ($(words $(BENCH)) $(words $(NAME)),1 $(if $(NAME),1,0))
	@cd tests && ../$(BIN)/python -m bench.$(BENCH) $(ARGS)
else
	@echo 'NAME is not a benchmark; valid names: $(BENCHES)' >&2; exit 2
endif

lint: $(VENV)/contrib ## Check formatting, lint rules, strict types, import rules and banned words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python deploy/lint/words.py

gen: ## Generate the gRPC stubs, after a change in proto/
	proto/generate

clean: ## Delete virtual environments, caches and builds
	rm -rf .venv .venv-gen build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "schedd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/dev: $(VENV)/made pyproject.toml
	@echo "installing schedd[dev] into $(VENV) ..." >&2
	@$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/contrib: $(VENV)/made pyproject.toml
	@echo "installing schedd[contrib] into $(VENV) ..." >&2
	@$(PIP) --editable '.[contrib]'
	@touch $(VENV)/dev $@
