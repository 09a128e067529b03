# One target for each daily act. Needs python3 (3.11 or newer, with venv), make and git; the rest
# comes into .venv by itself, once, and again when pyproject.toml changes.

PYTHON  ?= python3
SECONDS ?=
SEED    ?=
SEEDS   ?=
FIRST   ?=
WITHOUT ?=
export SEED EVIDENCE
ARGS    ?=
JOBS    ?= 3
REASON  ?=
NAME    ?=
ROW     ?=
# bash would take it from the environment for its own clock
unexport SECONDS
# tests start thousands of processes: each would compile all that it imports, for seconds
unexport PYTHONDONTWRITEBYTECODE

VENV  := .venv
BIN   := $(VENV)/bin
TESTS ?= $(wildcard $(addprefix tests/,unit properties conformance integration acceptance))
PIP   := $(BIN)/python -m pip --disable-pip-version-check install --quiet

CHOSEN = $(if $(ROW),--row '$(ROW)')

.DEFAULT_GOAL := help
.PHONY: help demo check quick test smoke model acceptance-full booted faces pictures faults faults-all faults-long mutants cron-long golden-diff golden-write bench lint gen clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1\t/' | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-11s %s\n' "$$name" "$$what"; done

demo: $(VENV)/dev ## a cluster of real processes running real jobs; SECONDS=40 ends by itself
	@PATH="$(CURDIR)/$(BIN):$$PATH" deploy/demo/run $(if $(SECONDS),--seconds $(SECONDS))

test: $(VENV)/contrib ## the whole suite on real etcd, PostgreSQL and processes; TESTS=tests/unit narrows, JOBS=0 runs all in one process
	$(BIN)/pytest $(TESTS) --numprocesses $(JOBS) --max-worker-restart 0 $(ARGS) || PYTHONPATH=tests $(BIN)/python -m support.repeated $$?

check: $(VENV)/contrib ## lint, quick unit tests, properties with few examples, no server: under 90 seconds
	@$(MAKE) --no-print-directory --jobs 2 lint quick

quick: $(VENV)/contrib
	CALENDAR_TRIALS=10 CRON_TRIPLES=1000 FOREIGN_EXPRESSIONS=20 $(BIN)/pytest tests/unit tests/properties --ignore tests/unit/faults -m 'not slow' --numprocesses 3 --max-worker-restart 0 --quiet $(ARGS)

smoke: $(VENV)/contrib ## each benchmark at its smallest, for whether it works: under 3 minutes
	$(BIN)/pytest tests/smoke --numprocesses 2 --max-worker-restart 0 $(ARGS)

model: $(VENV)/contrib ## the protocol's adversarial model: all rules, then all but each; SEEDS=500 WITHOUT=shard-row-fence, or SEED=42 told
	@cd tests && ../$(BIN)/python -m faults.model $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) $(foreach rule,$(WITHOUT),--without $(rule))

faults: $(VENV)/contrib ## real faults in namespaces, the merge set: under 8 minutes, needs root; EVIDENCE=1 appends figures
	FAULTS_REQUIRED=1 $(BIN)/pytest tests/faults -m "not full" --timeout=300 $(CHOSEN) $(ARGS)

booted: $(VENV)/contrib ## the units of deploy/systemd under a systemd that is booted for them: 5 minutes, needs root
	BOOTED_REQUIRED=1 $(BIN)/pytest tests/booted --timeout=600 $(ARGS)

faces: $(VENV)/contrib ## what takes programs of others: alerts and dashboards under a real Prometheus (prometheus, promtool), the pages in a real Chromium (chromium); 4 minutes
	FACES_REQUIRED=1 $(BIN)/pytest tests/faces --timeout=300 $(ARGS)

pictures: $(VENV)/contrib ## each page as a picture, into docs/images/pages: needs chromium
	@cd tests && ../$(BIN)/python -m faces.pages.pictures

faults-all: $(VENV)/contrib ## every row of docs/reliability.md; ROW='test_leader_killed' one, by its name there
	FAULTS_REQUIRED=1 $(BIN)/pytest tests/faults --timeout=600 $(CHOSEN) $(ARGS)

faults-long: $(VENV)/contrib ## faults drawn at random: SECONDS=1800 SEED=7; the same seed draws the same faults
	cd tests && ../$(BIN)/python -m faults.long --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: $(VENV)/contrib ## builds with one promise taken out, each to be caught by the checker: MUTANT=name for one, as root
	cd tests && ../$(BIN)/python -m faults.mutants $(MUTANT) $(ARGS)

acceptance-full: ## what .ci/run shows shortened, at full figures, each after the other: some six hours, as root
	$(MAKE) test faults-all
	OUTPUT_MIB=10240 $(MAKE) test TESTS=tests/integration/test_worker_shell.py ARGS="-k first_and_last --timeout=1500"
	REJECTED_FOR=30 REJECTED_JOBS=100 $(MAKE) test TESTS=tests/acceptance/test_rejections.py JOBS=0 ARGS="--timeout=900"
	FORK_SUBMITS=1000 $(MAKE) test TESTS=tests/acceptance/test_prefork.py JOBS=0
	FUZZ_MESSAGES=100000 $(MAKE) test TESTS=tests/acceptance/test_fuzz.py JOBS=0 ARGS="--timeout=7200"
	OPENAPI_SECONDS=60 $(MAKE) test TESTS=tests/acceptance/test_openapi.py JOBS=0
	AGEING_RUNS=1000 $(MAKE) test TESTS=tests/acceptance/test_aging.py JOBS=0
	CHAIN_CYCLES=200 $(MAKE) test TESTS=tests/acceptance/test_chains.py JOBS=0 ARGS="--timeout=1200"
	POOL_RUNS=500 $(MAKE) test TESTS=tests/acceptance/test_pools.py JOBS=0 ARGS="--timeout=900"
	REDRIVE_LETTERS=10000 $(MAKE) test TESTS=tests/acceptance/test_redrives.py JOBS=0 ARGS="--timeout=1800"
	FOREIGN_EXPRESSIONS=10000 $(MAKE) test TESTS=tests/properties/test_foreign_expressions.py JOBS=0 ARGS="--timeout=900"
	OUTAGE_JOBS=10000 $(MAKE) faults-all ARGS="-k outage_of_ten_minutes"
	for pass in 1 2 3 4 5 6 7 8 9 10; do $(MAKE) faults || exit 1; done
	for seed in 1 2 3; do $(MAKE) faults-long SECONDS=1800 SEED=$$seed || exit 1; done
	$(MAKE) mutants model cron-long

cron-long: $(VENV)/contrib ## cron against a walk through real time, a million triples: SEED=7 FIRST=500 goes on, JOBS=2 shares
	@cd tests && ../$(BIN)/python -m almanac $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST)) --processes $(JOBS) $(ARGS)

golden-diff: $(VENV)/contrib ## what the installed libraries would change of 320 expressions in ten zones: nothing, or 1
	@cd tests && ../$(BIN)/python -m almanac.golden $(ARGS)

golden-write: $(VENV)/contrib ## take that over; REASON="tzdata 2027a: Morocco gives up summer time"
	@cd tests && ../$(BIN)/python -m almanac.golden --write --reason "$(REASON)"

BENCHES := cron drain failover herd openloop pages peers scale simulated soak spread start statements submit
BENCH    = $(if $(NAME),$(filter $(NAME),$(BENCHES)),cron)

bench: $(VENV)/contrib ## what things cost, JSON lines out: NAME=cron, drain, failover, herd, openloop, pages, peers, scale, simulated, soak, spread, start, statements or submit, ARGS="--runs 9"
ifeq ($(words $(BENCH)) $(words $(NAME)),1 $(if $(NAME),1,0))
	@cd tests && ../$(BIN)/python -m bench.$(BENCH) $(ARGS)
else
	@echo 'there is no such benchmark; NAME is one of: $(BENCHES)' >&2; exit 2
endif

lint: $(VENV)/contrib ## formatting, lint, strict types, import rules, banned words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python deploy/lint/words.py

gen: ## the gRPC stubs anew, after a change in proto/
	proto/generate

clean: ## away with all that was made: environments, caches, builds
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
