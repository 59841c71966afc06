# Every target does all its own set-up: a virtual environment in .venv, the pinned versions, then the job.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PACKAGE := $(VENV)/.package
# pip speaks only when it fails
quietly = @said=$$($(BIN)/pip install -c constraints.txt $(1) 2>&1) || { echo "$$said"; exit 1; }

.PHONY: setup browser demo test test-all wheel torture lint format bench bench-smoke docs site screenshots gallery papers federation-demo federation-torture clean

setup: $(READY)

# the package alone, which is all that `make demo` needs; torch first, so that nothing else chooses another build
$(PACKAGE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "coterie needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "set-up: the package and what it needs, into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	$(call quietly,torch)
	$(call quietly,-e .)
	@touch $(PACKAGE)

$(READY): $(PACKAGE)
	@echo "set-up: extras and what developers need"
	$(call quietly,-e '.[dev]')
	@touch $(READY)

demo: $(PACKAGE)
	$(BIN)/coterie compare --config demo
	@echo "One idea per paper, with a picture: $(BIN)/coterie demo"

browser:
	@scripts/browser.sh || echo "the tests in a browser will be skipped"

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m "not thorough"

# with a browser, a second device, the wheel on its own, and a few kills; `make torture` has fifty
test-all: $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup
	$(MAKE) wheel
	$(BIN)/python scripts/torture.py --kills 6

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
	$(BIN)/python benchmarks/many_clients.py --write docs/performance.md
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
	cp runs/pictures/report.png runs/pictures/ui-list.png runs/pictures/ui-compare.png runs/pictures/ui-start.png docs/pictures
	cp runs/pictures/client-dark.png docs/pictures/client.png

gallery: $(READY)
	$(BIN)/python scripts/gallery.py runs/gallery docs

# a page and a notebook per paper, from its demo
papers: $(READY)
	$(BIN)/python scripts/paper_pages.py runs/papers

torture: $(READY)
	$(BIN)/python scripts/torture.py --markdown docs/reliability.md

federation-demo: $(READY)
	$(BIN)/python examples/federation_demo.py

federation-torture: $(READY)
	$(BIN)/python scripts/federation_torture.py --markdown docs/reliability.md

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
