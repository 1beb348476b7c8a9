# Mirbad: `make up` runs everything, `make test` passes the tests. See README.md.

.PHONY: help up test check figures lock clean bench-gateway mutants
.DEFAULT_GOAL := help

PYTHON ?=
ONLY ?=
VENV := .venv
BIN := $(VENV)/bin

# A Python of 3.11 or newer: the one that PYTHON names, else the newest on PATH. $$py holds it afterwards.
define find_python
	py=""; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3 python); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then py="$$candidate"; break; fi; \
	done; \
	if [ -z "$$py" ]; then \
		echo "Mirbad needs Python 3.11 or newer. Install it, or say where it is: make $@ PYTHON=/path/to/python3" >&2; exit 1; \
	fi
endef

help:
	@echo "make up       set up and run everything on this machine"
	@echo "make test     set up what the tests need, and run them all"
	@echo "make check    style, types, import contracts, architecture (under a minute)"
	@echo "make figures  measure the product (ONLY=name for one figure)"
	@echo "make lock     compile requirements/*.in with versions and hashes"
	@echo "make bench-gateway  measure /v1 beside nginx, Caddy, Envoy and LiteLLM"
	@echo "make mutants  change the code and see whether a test notices (ONLY=part of a module's path)"
	@echo "make clean    remove what make made; the data folder stays"

up:
	@$(find_python); "$$py" mirbad/up/install.py $(VENV) base $(if $(filter none,$(MIRBAD_STARTER_MODEL)),,engine)
	@exec $(BIN)/python -m mirbad.up

test:
	@$(find_python); "$$py" mirbad/up/install.py $(VENV) dev engine
	@exec $(BIN)/python -m tests $(ONLY)

check:
	@$(find_python); "$$py" mirbad/up/install.py $(VENV) dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/djangofmt --quiet --check templates && $(BIN)/djangofmt --quiet check templates
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q -p no:randomly tests/architecture

figures:
	@$(find_python); "$$py" mirbad/up/install.py $(VENV) dev engine
	@exec $(BIN)/python -m tests.figures $(ONLY)

# Versions and hashes for every Python and machine that Mirbad runs on; the files name no host to fetch from.
LOCK = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
lock:
	@$(find_python); "$$py" mirbad/up/install.py $(VENV) dev
	@for name in agent base dev; do $(LOCK) requirements/$$name.in -o requirements/$$name.txt || exit 1; done
	@$(LOCK) --no-deps requirements/engine.in -o requirements/engine.txt

bench-gateway:
	@$(find_python); "$$py" mirbad/up/install.py $(VENV) dev
	@exec $(BIN)/python -m tests.bench.gateway

mutants:
	@$(find_python); "$$py" mirbad/up/install.py $(VENV) dev
	@exec $(BIN)/python -m tests.mutants $(ONLY)

clean:
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis tests/.cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
