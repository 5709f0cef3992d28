# Every target does its own set-up, all of it in .venv. Needed: Python 3.11 or newer, make, git.

# The first Python that will do; `make PYTHON=/path/to/python3 …` names another.
WILL_DO := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c '$(WILL_DO)' 2>/dev/null && echo $$python && break; done)
PYTEST_FLAGS ?=
KILLS ?= 200
MINUTES ?= 10
MODEL ?= large
UV_FLAGS ?=
SEEDS ?= 2000
SEED ?=
OPTIONS ?=
GUARD ?=
MODULES ?=
PACKAGE ?=
SIZES ?= 100 1000 10000
REPEATS ?= 3

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The model of the protocol and the adversary have targets of their own.
WITHOUT_MODEL := --ignore=tests/submission/test_protocol_model.py --ignore=tests/test_adversary.py
# uv installs in seconds; it asks the indexes that pip would ask, by pip's settings.
SETTINGS := settings=$$($(BIN)/python reconciler/training_service/environments/pip_settings.py) && eval "$$settings"
INSTALL := $(SETTINGS) && $(BIN)/uv pip install --quiet --python $(BIN)/python $$UV_OPTIONS --constraint constraints.txt
WHEELHOUSE := $(VENV)/wheelhouse
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate

# The tool without its extra, and what builds and installs it: where the actions install it, nothing may come
# that nobody looked at.
REQUIRES := $(BIN)/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb")); \
	print(*project["build-system"]["requires"], *project["project"]["dependencies"], "uv", sep="\n")'
LOCK_ACTIONS := $(LOCK) --generate-hashes --only-binary :all: --constraint constraints.txt

# The demo knows no cloud, no GitHub and no environment but the embedded service, wherever it runs.
ALONE := env -u GITHUB_ACTIONS -u GITHUB_TOKEN -u RECONCILER_ENV

define SHAPE
make check: tests/test_architecture.py bounds the sizes and words of the code. The lines above that begin with E name the
file or the count. Move one idea of a long file to a file of its own, split a long function, say a docstring plainly.
endef
export SHAPE

PRINT_HOME := import os; from pathlib import Path; from reconciler.base.state_dir import location_of; \
	print(location_of(Path.cwd(), os.environ))

.DEFAULT_GOAL := help
.PHONY: help demo demo-container test trainers browser pictures quick explore chaos failures kills adversary simulate looks guards model mutate check format bench bench-history wheelhouse constraints clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# The demo's service pulls no image, so one that runs already is ended first; its jobs go on without it.
demo: $(STAMPS)/app  ## train every job under jobs/ on the embedded training service
	@echo "Training every job under jobs/. The first run also installs scikit-learn for them: a minute or two."
	@$(ALONE) $(BIN)/reconciler serve --stop >/dev/null 2>&1 || true
	$(ALONE) RECONCILER_PULL_IMAGES=0 $(BIN)/reconciler apply --wait
	@echo
	$(ALONE) $(BIN)/reconciler status
	@echo
	$(ALONE) $(BIN)/reconciler show breast-cancer
	@echo
	$(ALONE) $(BIN)/reconciler show diabetes
	@echo
	@echo "A pipeline, and the model that it registered:"
	$(ALONE) $(BIN)/reconciler show wine-scaled
	@echo
	@echo "A second plan finds nothing to do:"
	$(ALONE) $(BIN)/reconciler plan --detailed-exitcode
	@echo
	@echo "The published model of breast-cancer, by its one address:"
	$(ALONE) $(BIN)/reconciler fetch breast-cancer "$$(mktemp -d)/breast-cancer"

demo-container: $(STAMPS)/app  ## run the suspended container example, by Docker or Podman; BASE=image
	@$(ALONE) $(if $(BASE),BASE=$(BASE)) $(BIN)/python tests/demo_container.py

test: $(STAMPS)/dev $(STAMPS)/wheelhouse $(STAMPS)/node $(STAMPS)/torch  ## run the tests, but for those of `make model` and `make adversary`; PACKAGE=planning for one package's
	@# Many tests wait for the programs that they start: other processes work meanwhile, on two cores too.
	$(BIN)/pytest -n 4 $(WITHOUT_MODEL) $(PYTEST_FLAGS) $(if $(PACKAGE),tests/$(PACKAGE))

trainers: $(STAMPS)/dev  ## run trainers of all frameworks unmodified: downloads 4 GB once; OPTIONS=--keep renews their table
	$(BIN)/pytest -n 0 $(PYTEST_FLAGS) tests/trainers $(OPTIONS)

browser: $(STAMPS)/dev $(STAMPS)/browser $(STAMPS)/wheelhouse  ## open the pages in a real Chromium: installs it if it is missing, and axe-core
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { [ "$$(id -u)" = 0 ] || SUDO=sudo; \
		$$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }
	$(BIN)/pytest -n 2 --no-skips $(PYTEST_FLAGS) tests/browser

pictures: $(STAMPS)/dev $(STAMPS)/browser  ## take the README's pictures of the pages anew, as `make browser` sees them
	$(BIN)/python -m tests.browser.pictures docs

quick: $(STAMPS)/dev  ## run the tests of all packages that aren't slow: under a minute on two idle cores
	$(BIN)/pytest -m "not slow" --hypothesis-profile=quick $(WITHOUT_MODEL) $(PYTEST_FLAGS) tests

explore: $(STAMPS)/dev  ## try random examples in all property tests, again and again; MINUTES=10
	@end=$$(( $$(date +%s) + 60 * $(MINUTES) )); while [ $$(date +%s) -lt $$end ]; do \
		$(BIN)/pytest -q -m hypothesis --hypothesis-profile=explore $(PYTEST_FLAGS) || exit 1; done

chaos: $(STAMPS)/dev $(STAMPS)/wheelhouse  ## kill reconcilers at random moments; KILLS=200 SEED=1
	CHAOS_KILLS=$(KILLS) CHAOS_SEED=$(or $(SEED),1) $(BIN)/pytest -n 0 -s $(PYTEST_FLAGS) tests/test_chaos.py tests/test_publish_chaos.py

failures: $(STAMPS)/dev $(STAMPS)/wheelhouse  ## fail in eighty ordinary ways, do what is printed, and print the table of it
	@rm -f $(VENV)/failures.md; FAILURES_TABLE=$(CURDIR)/$(VENV)/failures.md $(BIN)/pytest $(PYTEST_FLAGS) tests/failures && \
		printf '| failure | printed | the remedy, followed | afterwards |\n|---|---|---|---|\n' && sort $(VENV)/failures.md

kills: $(STAMPS)/dev $(STAMPS)/wheelhouse  ## kill the embedded service and what it runs at random moments; KILLS=100 SEED=1
	SERVICE_KILLS=$(if $(filter file,$(origin KILLS)),100,$(KILLS)) SERVICE_SEED=$(or $(SEED),1) \
		$(BIN)/pytest -n 0 -s $(PYTEST_FLAGS) tests/training_service/test_kills.py

simulate: $(STAMPS)/dev  ## simulate SEEDS=2000 runs in a world that fails, or SEED=123 again with its trace
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(OPTIONS)

looks: $(STAMPS)/dev  ## compare the plans of short and full looks after each of 100 steps, from SEEDS=2000 seeds
	$(BIN)/python -m tests.simulation.looks $(SEEDS)

guards: $(STAMPS)/dev  ## replace the functions of each guard in turn: the simulation, or the comparison of looks, must notice within 1,000 seeds; GUARD=suspend
	$(BIN)/python -m tests.simulation.guards $(GUARD)

adversary: $(STAMPS)/dev $(STAMPS)/wheelhouse  ## run every command in an adversary's repository, under strace
	@command -v strace >/dev/null || { [ "$$(id -u)" = 0 ] || SUDO=sudo; \
		$$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends strace; }
	$(BIN)/pytest -n 2 --no-skips $(PYTEST_FLAGS) tests/test_adversary.py

model: $(STAMPS)/dev  ## check the model of the submission protocol, in its large worlds too: minutes; MODEL=small without these
	MODEL=$(MODEL) $(BIN)/pytest -n 2 $(PYTEST_FLAGS) tests/submission/test_protocol_model.py

mutate: $(STAMPS)/dev  ## change the modules that decide, here and there: tests must notice, but for what is explained; MODULES="model.claim planning.planner"
	$(BIN)/python -m tests.mutation $(MODULES)

check: $(STAMPS)/dev  ## lint, formatting, types, import layers, generated schemas, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python schemas/generate.py --check || { \
		echo "make check: write the files above anew: $(BIN)/python schemas/generate.py" >&2; exit 1; }
	@# The layers have been checked.
	$(BIN)/pytest -n 0 -q --tb=short --deselect tests/test_architecture.py::test_imports_point_one_way \
		tests/test_architecture.py || { echo "$$SHAPE" >&2; exit 1; }

format: $(STAMPS)/dev  ## rewrite what the linter can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMPS)/bench  ## time and memory at 100, 1,000 and 10,000 manifests: ten minutes; SIZES="100 1000" REPEATS=3
	$(ALONE) $(BIN)/python -m tests.bench --sizes $(SIZES) --repeats $(REPEATS) $(OPTIONS)

bench-history: $(STAMPS)/app  ## calls and time of a plan and an apply beside 0, 10,000 and 100,000 ended runs: minutes; MANIFESTS=100
	$(ALONE) $(BIN)/python -m tests.bench.history --manifests $(or $(MANIFESTS),100)

wheelhouse: $(STAMPS)/wheelhouse  ## fetch the wheels that the tests install for trainers

constraints: $(STAMPS)/venv  ## lock all dependencies anew; UV_FLAGS=--upgrade takes newer versions
	$(SETTINGS) && $(REQUIRES) | $(LOCK) $$UV_OPTIONS --extra local --group dev --group bench --group browser $(UV_FLAGS) --output-file constraints.txt pyproject.toml -
	$(SETTINGS) && $(REQUIRES) | $(LOCK_ACTIONS) $$UV_OPTIONS --output-file .github/actions/requirements.txt -
	$(SETTINGS) && $(REQUIRES) | $(LOCK_ACTIONS) $$UV_OPTIONS --extra local --output-file .github/actions/requirements-local.txt pyproject.toml -

clean:  ## end the embedded service; remove its state, .venv and all caches
	@if [ -x $(BIN)/reconciler ]; then $(ALONE) env -u RECONCILER_HOME $(BIN)/reconciler serve --stop >/dev/null 2>&1 || true; fi
	@home=$$(env -u RECONCILER_HOME "$(PYTHON)" -c '$(PRINT_HOME)') && rm -rf "$$home" || true
	rm -rf $(VENV) .reconciler build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What each target stands on. One installer at a time in .venv, also under `make -j`.
.NOTPARALLEL:

$(STAMPS)/venv:
	@"$(or $(PYTHON),false)" -c '$(WILL_DO)' 2>/dev/null || { \
		echo "make: Python 3.11 or newer with venv and ensurepip is needed; $(or $(PYTHON),what is on the path) won't do." >&2; \
		echo "On Debian and Ubuntu: apt-get install python3-venv. Otherwise: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt uv
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/app: $(STAMPS)/venv pyproject.toml constraints.txt
	$(INSTALL) --editable '.[local]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/app
	$(INSTALL) --group dev
	@touch $@

$(STAMPS)/bench: $(STAMPS)/app
	$(INSTALL) --group bench
	@touch $@

$(STAMPS)/browser: $(STAMPS)/dev tests/browser/package.json
	$(INSTALL) --group browser
	@mkdir -p $(VENV)/browser && cp tests/browser/package.json $(VENV)/browser/
	npm install --prefix $(VENV)/browser --no-package-lock --ignore-scripts --no-audit --no-fund --silent
	@touch $@

# Into a new folder first: an interrupted download leaves no half wheelhouse behind.
$(STAMPS)/wheelhouse: $(STAMPS)/dev tests/wheelhouse.txt
	rm -rf $(WHEELHOUSE).new
	$(REQUIRES) | $(PIP) wheel --quiet --constraint constraints.txt --requirement tests/wheelhouse.txt \
		--requirement /dev/stdin --wheel-dir $(WHEELHOUSE).new
	rm -rf $(WHEELHOUSE) && mv $(WHEELHOUSE).new $(WHEELHOUSE)
	@touch $@

# Without it the proof of distributed training is skipped; continuous integration skips nothing.
$(STAMPS)/torch: $(STAMPS)/venv tests/torch.txt tests/torch-constraints.txt
	@rm -rf $(VENV)/torch && \
	$(PIP) wheel --quiet --only-binary :all: --constraint tests/torch-constraints.txt --requirement tests/torch.txt \
		--wheel-dir $(VENV)/torch/new && mv $(VENV)/torch/new $(VENV)/torch/wheels && touch $@ || \
		echo "make: there is no build of PyTorch for CPUs here: the proof of distributed training is skipped" >&2

# Without it, and without npm, the tests that need Node are skipped; continuous integration skips none.
$(STAMPS)/node: $(STAMPS)/venv tests/node/package.json
	@if command -v npm >/dev/null; then \
		mkdir -p $(VENV)/node && cp tests/node/package.json $(VENV)/node/ && \
		npm install --prefix $(VENV)/node --no-package-lock --ignore-scripts --no-audit --no-fund --silent && \
		touch $@ || echo "make: npm couldn't install what tests/node/package.json names: those tests are skipped" >&2; \
	fi
