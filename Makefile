# Two commands on a fresh clone with Python 3.11+ and make:  make demo,  make test.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help install demo test attack fuzz docs docs-serve docs-outputs lint types format clean

help:
	@echo "make demo     train ERM, IRM, GroupDRO and TRM on embedded data and write runs/demo/report.html"
	@echo "make test     lint, types and the test suite"
	@echo "make attack   5000 bad inputs, 100 kills and a look at sockets; ATTACK_CASES=500 ATTACK_SEED=1 make attack"
	@echo "make fuzz     fit, predict and audit 2000 odd tables at random; FUZZ_CASES=500 make fuzz tries fewer"
	@echo "make docs     build the documentation into site/, strictly; make docs-serve shows it while you write"
	@echo "make docs-outputs  run the commands and the gallery whose outputs README and docs show, and refresh these"
	@echo "make install  the set-up alone: $(VENV) with every extra the tests use"
	@echo "make format   let ruff rewrite the code"
	@echo "make clean    remove $(VENV) and caches"

$(STAMP): pyproject.toml constraints.txt
	@echo "==> Creating $(VENV) and installing transferrisk (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; run with PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,coco,vision,pretrained,tracking,onnx,ray,slurm,boosting,interop,search,hub]'
	@touch $@
	@echo "==> Installed"

DOCS_STAMP := $(VENV)/.docs-installed

$(DOCS_STAMP): $(STAMP)
	@echo "==> Installing what builds the documentation"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	@echo "==> Running the demo"
	@$(BIN)/trm demo

test: lint types
	@echo "==> Running the test suite"
	@$(BIN)/python -m pytest -n 2

fuzz: $(STAMP)
	@echo "==> Trying odd tables"
	@FUZZ_CASES=$${FUZZ_CASES:-2000} $(BIN)/python -m pytest -n 2 tests/fuzz

attack: $(STAMP)
	@echo "==> Attacking the command line"
	@$(BIN)/python tests/attack/attack.py

docs: $(DOCS_STAMP)
	@echo "==> Building site/"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "==> site/index.html"

docs-serve: $(DOCS_STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

docs-outputs: $(DOCS_STAMP)
	@$(BIN)/python docs/tools/outputs.py
	@$(BIN)/python docs/tools/pictures.py

lint: $(STAMP)
	@echo "==> Checking format and lint"
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .

types: $(STAMP)
	@echo "==> Checking types"
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
