# Every target does all its own set-up: a virtual environment in .venv, the pinned versions, then the job.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup browser demo test wheel torture lint format bench bench-smoke docs site screenshots gallery federation-demo federation-torture clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "coterie needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/coterie compare --config demo
	$(BIN)/coterie compare --config demo-alike

browser:
	@scripts/browser.sh || echo "the tests in a browser will be skipped"

test: $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup

wheel: $(READY)
	PYTHON=$(BIN)/python scripts/check_wheel.sh

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint docker/Dockerfile; fi

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# all figures of docs/performance.md; BENCH="--only steps --repeats 1" runs a part
bench: $(READY) browser
	$(BIN)/python benchmarks/bench.py $(BENCH) --write docs/performance.md
	$(BIN)/python benchmarks/many_clients.py --write docs/scale.md
	$(BIN)/python benchmarks/large_report.py

bench-smoke: $(READY)
	$(BIN)/python benchmarks/smoke.py

docs: $(READY)
	PYTHONPATH=tests $(BIN)/python -m helpers.catalogue
	$(BIN)/python scripts/architecture.py
	$(BIN)/python scripts/method_pages.py
	$(MAKE) site

# without the generators, whose pages the tests hold current
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

screenshots: $(READY) browser site
	rm -rf runs/screenshots
	$(BIN)/coterie compare --config demo --out runs/screenshots/demo
	$(BIN)/python scripts/screenshots.py runs/screenshots site/index.html runs/pictures
	mkdir -p docs/pictures
	cp runs/pictures/report.png runs/pictures/ui-list.png runs/pictures/ui-compare.png docs/pictures
	cp runs/pictures/client-dark.png docs/pictures/client.png

gallery: $(READY)
	$(BIN)/python scripts/gallery.py runs/gallery docs

torture: $(READY)
	$(BIN)/python scripts/torture.py --markdown docs/reliability.md

federation-demo: $(READY)
	$(BIN)/python examples/federation_demo.py

federation-torture: $(READY)
	$(BIN)/python scripts/federation_torture.py --markdown docs/reliability.md

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
