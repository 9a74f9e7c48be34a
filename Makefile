# The commands of the README. Each one sets up what it needs; a second run skips what is there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup run test bench lint clean

setup: $(STAMP)
	@sh packaging/host-packages.sh install

$(STAMP): pyproject.toml packaging/host-packages.sh
	@sh packaging/host-packages.sh install
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

run: setup
	@$(BIN)/boxgrove tour

test: setup
	@scratch=$$(mktemp -d) && \
	$(BIN)/python -m pytest --basetemp="$$scratch/pytest"; status=$$?; \
	chmod -R u+rwX "$$scratch"; rm -rf "$$scratch"; exit $$status

bench: setup
	@$(BIN)/python -m tests.bench

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
