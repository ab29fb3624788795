.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# The installer alone: it puts the locked packages into .venv quickly.
UV := requirements-uv.lock
# Compiled when they are first used: two thirds of all that is installed, and no start needs them.
LATER := /(tests|fontTools|matplotlib|mypy|mypyc|pandas|pip|pygments|setuptools|sklearn|sphinx)/
PACKAGES := veilstream.py pipeline producers agents state infra
# Where byte code is switched off, as in many containers, every start would compile 1,700 modules.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv/ready: requirements.lock $(UV) pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"Python 3.11 or later is needed, this is {v[0]}.{v[1]}; set PYTHON=" if v < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the locked packages into .venv ..."
	@if $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(UV) \
	  && $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock; then :; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock; fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -qq -j 0 -x '$(LATER)' .venv/lib || :
	@$(BIN)/python -m compileall -q $(PACKAGES)
	@touch $@

.PHONY: setup
setup: .venv/ready  ## Make .venv with the locked packages, all compiled; again after an edit
	@$(BIN)/python -m compileall -q $(PACKAGES)

.PHONY: demo
demo: .venv/ready  ## Real data, a crash, live private estimates: sensors, or STUDY=flights, airlines or meters
	@$(BIN)/veilstream demo $(if $(STUDY),--study $(STUDY))

.PHONY: newcomer
newcomer: .venv/ready  ## A newcomer's whole way with CSV files of one's own, step by step, in a minute
	@$(BIN)/python -m benchmarks.newcomer

# Tests sync thousands of databases to a disk; in memory, where there is room, they need not wait.
ROOM := $(shell test -w /dev/shm && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 4000000 {print "TMPDIR=/dev/shm"}')
# Some wait for processes that they have started, most compute: two more than cores keep all busy.
JOBS ?= $(shell expr 2 + `getconf _NPROCESSORS_ONLN`)
.PHONY: test
test: .venv/ready  ## All tests but the slow ones, on a real Kafka and Redis: 8 to 12 minutes on two idle cores
	@room=$$(mktemp -d) && trap 'rm -rf "$$room"' EXIT && ROOM_OF_TESTS=$$room $(ROOM) $(BIN)/python -m pytest -m "not slow" -q \
	  --tx '$(JOBS)*popen//python=$(BIN)/python tests/processes.py' --max-worker-restart=4 --dist loadfile --no-loadscope-reorder --durations=20

.PHONY: collect
collect: .venv/ready  ## Compile the tests, once for all processes that run them
	@said=$$($(BIN)/python -m pytest -q --collect-only tests 2>&1) || { echo "$$said" | tail -40; exit 1; }

.PHONY: fetch
fetch: .venv/ready  ## Kafka and the browser, once for all processes that run the tests
	@$(BIN)/python -m tests.fetch

.PHONY: test-slow
test-slow: .venv/ready  ## Slow statistics, more of the same, the site, Prometheus
	@$(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile=many -q
	@$(BIN)/python -m pytest -q benchmarks/checks

FILES ?= tests
.PHONY: durations
durations: .venv/ready  ## Processor seconds of each file of tests: FILES=some of them
	@$(BIN)/python -m pytest -m "not slow" -q -p tests.seconds $(FILES)

.PHONY: golden
golden: .venv/ready  ## Record the golden logs, revisions and facts again, and print what changed
	@$(BIN)/python -m tests.golden.record
	@$(BIN)/python -m tests.golden.revisions
	@$(BIN)/python -m tests.golden.test_facts

.PHONY: wordings
wordings: .venv/ready  ## Write the wording of every error down again, and print what changed
	@$(BIN)/python -m tests.wordings.collect

.PHONY: check
check: .venv/ready  ## Lint, format, types, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

.PHONY: docs
docs: .venv/ready  ## The documentation site, in build/site; warnings are errors, nothing is fetched
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html -c docs -d build/doctrees . build/site
	@echo "open build/site/index.html"

# Of what git tracks, as it is now, and the wheel of the archive: an earlier build leaves nothing in them.
DIST ?= dist
BUILD := -c 'import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])'
.PHONY: dist
dist: .venv/ready  ## Source archive and wheel, in dist
	@rm -rf $(DIST) && mkdir -p $(DIST) && to=$$(cd $(DIST) && pwd) && python=$(abspath $(BIN))/python \
	  && room=$$(mktemp -d) && trap 'rm -rf "$$room"' EXIT \
	  && git ls-files -z | tar -c --null -T - | tar -x -C "$$room" && cd "$$room" \
	  && { "$$python" $(BUILD) build_sdist "$$to" && tar -xzf "$$to"/*.tar.gz && cd veilstream-* \
	  && "$$python" $(BUILD) build_wheel "$$to"; } > log 2>&1 || { cat "$$room/log"; exit 1; }
	@ls $(DIST)

.PHONY: format
format: .venv/ready  ## Format and mend what ruff can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: bench
bench: .venv/ready  ## A worker beside a bare consumer, a client beside a bare script, latency, backtests
	@$(BIN)/python -m benchmarks.client
	@$(BIN)/python -m benchmarks.fold
	@$(BIN)/python -m benchmarks.latency
	@$(BIN)/python -m benchmarks.backtest

.PHONY: peers
peers: .venv/ready  ## The worker beside Quix Streams and Bytewax, which it installs apart
	@$(BIN)/python -m benchmarks.peers

# The documents show the last run of an hour; a shorter one leaves its picture in build.
SECONDS ?= 3600
SOAKED = $(if $(filter 3600,$(SECONDS)),--picture docs/soak.png --out benchmarks/results/soak.json,--picture build/soak.png)
.PHONY: soak
soak: .venv/ready  ## An hour of 16 clients with a kill every minute: memory, state, releases; SECONDS=180 for less
	@mkdir -p build && $(BIN)/python -m benchmarks.soak --seconds $(SECONDS) $(SOAKED)

.PHONY: coverage
coverage: .venv/ready  ## How often intervals of sites cover the truth; FULL=1 for 200 streams of a cell
	@$(BIN)/python -m benchmarks.sites_coverage $(if $(FULL),--full)

.PHONY: attacks
attacks: .venv/ready  ## Lower bounds of epsilon that attacks measure, and planted faults
	@$(BIN)/python -m benchmarks.attacks

N ?= 60
SEED ?= 1
.PHONY: mutants
mutants: .venv/ready  ## Plant N=60 single faults, drawn by SEED=1, and say which no test catches; ALL=1 in all packages
	@$(BIN)/python -m benchmarks.mutants --faults $(N) --seed $(SEED) --jobs $(shell getconf _NPROCESSORS_ONLN) $(if $(ALL),--all)

PAPER ?= dwd
.PHONY: papers
papers: .venv/ready  ## Tables of a paper beside ours: PAPER=dwd, ldp-sgd, noisy-mle or age, FULL=1
	@$(BIN)/python -m benchmarks.papers.$(subst -,_,$(PAPER)) $(if $(FULL),--full)

.PHONY: lock
lock: .venv/ready  ## Pin the newest versions that pyproject.toml allows
	@$(BIN)/uv pip compile --universal --all-extras --generate-hashes --no-emit-index-url --no-header --quiet --upgrade -o requirements.lock pyproject.toml

.PHONY: clean
clean:  ## Remove .venv and everything generated
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
