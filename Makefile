# Everything on a fresh Linux machine with Python >= 3.11: `make demo`, `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-slow check bench pages lock clean

demo: $(READY)
	$(BIN)/positionwise demo

test: $(READY)
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# docs/equivalence.md, from what the tests measure.
pages: $(READY)
	WRITE_PAGES=1 $(BIN)/python -m pytest tests/convert/test_equivalence_page.py

bench: $(READY)
	$(BIN)/positionwise bench
	$(BIN)/python benchmarks/imports.py
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/training_split.py

# torch first and at its locked version, so that nothing else pulls another build of it.
$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

# The lock is what a fresh environment holds after `pip install torch==2.13.0 -e '.[dev]'`.
lock: $(READY)
	$(BIN)/pip freeze --exclude-editable --all | grep -v '^pip==' | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf .venv dist
