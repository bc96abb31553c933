# make demo        the main job on a real kernel, with no TPU
# make test        every test this machine can run (default and slow tiers)
# make test-fast   the default tier only
# make lint        ruff and the type checker
# Everything is installed into .venv on first use.

SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
MEGASCOPE := $(VENV)/bin/megascope
DEMO := captures/mlp
STAMP := $(VENV)/.installed
# Two of the tests' compiles and interpreters at once is what two cores carry.
PYTEST := $(PY) -m pytest -q -n 2 --dist loadfile

.PHONY: demo test test-fast lint format venv clean

demo: $(STAMP)
	@$(MEGASCOPE) compile mlp --topology 2x2x1 -o $(DEMO) --force
	@$(MEGASCOPE) report $(DEMO)
	@$(MEGASCOPE) report $(DEMO) --format html -o $(DEMO).html
	@if [ -t 0 ] && [ -t 1 ]; then $(MEGASCOPE) dashboard $(DEMO); \
	else echo "To look around: $(MEGASCOPE) dashboard $(DEMO)"; fi

test: $(STAMP)
	$(PYTEST) -m "not tpu"

test-fast: $(STAMP)
	$(PYTEST) -m "not tpu and not slow"

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

venv: $(STAMP)

# Any Python from 3.12 on; the first that answers wins. PYTHON=/path/to/python chooses another.
$(STAMP): pyproject.toml constraints.txt
	@python=""; for candidate in $(PYTHON) python3 python3.12 python3.13 python; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] < (3, 12))' 2>/dev/null; \
	  then python="$$candidate"; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "megascope needs Python 3.12 or newer with venv, and found none." >&2; \
	  echo "python3 here is: $$(python3 --version 2>&1 || echo none). Install Python 3.12 (on Debian also python3.12-venv)," >&2; \
	  echo "or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; fi; \
	echo "Installing megascope into $(VENV) with $$($$python --version) (a minute or two)" >&2; \
	"$$python" -m venv $(VENV) && \
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' && touch $@

clean:
	rm -rf captures build dist *.egg-info
