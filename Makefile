# `make help` lists the targets, from the comments after `##` below. Each target makes .venv on its
# first use, and again when pyproject.toml or requirements/ changes.

PYTHON ?= python3
# Installed first and pinned, so that every machine runs the version that the kit was tested with.
TORCH ?= torch==2.13.0
# All else is fetched by version and hash, from requirements/. `make PINS=` takes the newest versions instead.
PINS ?= yes
# Extra arguments of torch's installation. On Linux without a GPU, PyTorch's CPU wheels save gigabytes:
#   make lab PIP_TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu"
PIP_TORCH_ARGS ?=
# With arguments there is one run of pytest, with these. Without, there are three: first the tests that
# may share the cores, then those for which XLA compiles as for a user, then those that measure time.
PYTEST_ARGS ?=
# One more than the cores of a small machine: a browser, a kernel or a socket is waited for often.
WORKERS ?= 3
NOTEBOOK ?= notebooks/01_where_does_the_step_go.ipynb
REPORT ?= report.html

comma := ,
# The tests of `make quick`, but for those that NOT_QUICK's markers name: they read, draw and count,
# and compile next to nothing.
QUICK := $(addprefix tests/,cli formats ir reports runs trace widgets runtime/engine \
	repository/test_docs.py repository/test_environment.py repository/test_makefile.py \
	test_layers.py test_public.py test_sizes.py)
# The order of the files is that of tests/conftest.py: the longest first.
BY_FILE := --dist loadfile --no-loadscope-reorder
# The tests with a mark. One that fails (status 1) runs once more alone, where nothing takes time from
# it, and fails `make test` if it fails again. Both runs are printed: mend it.
tests = $(PY) -m pytest $(1) -m "$(2)" || \
	{ [ $$? = 1 ] && $(PY) -m pytest --last-failed --last-failed-no-failures none -m "$(2)"; }
NOT_QUICK := not browser and not notebook and not slow and not alone
VENV := .venv
BYTECODE := $(VENV)/.bytecode
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet --quiet
# The lists of these names, and then nothing that they lack.
pinned = $(if $(PINS),$(PIP) install --no-deps --require-hashes $(patsubst %,--requirement requirements/%.txt,$(1)))
PINNED := $(if $(PINS),--no-index --no-build-isolation)
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
EXTRAS := $(if $(GPU),cuda)
TEST_EXTRAS := $(addsuffix $(comma),$(EXTRAS))test,dev

.PHONY: help lab report gpu fmt check lint javascript quick test coverage-table pictures notebooks site clean
.DEFAULT_GOAL := lab

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s%s\n", $$1, $$2 }' Makefile

lab: $(VENV)/.installed  ## JupyterLab on the first notebook; LAB_ARGS="--port 9000 -- --collaborative"
	@scripts/need graphviz dot
	@$(PY) -m kit lab $(NOTEBOOK)$(if $(LAB_ARGS), $(LAB_ARGS))

report: $(VENV)/.installed  ## run the main job and write report.html
	@scripts/need graphviz dot
	$(PY) -m kit report --output $(REPORT)

gpu: $(VENV)/.installed  ## what the kit does on this machine's GPU, in nine minutes, as numbers
	$(PY) -m kit.gpu_check

fmt: $(VENV)/.installed-test  ## lay out the code, and correct what the linter can correct
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

check:  ## lint and javascript, side by side
	@$(MAKE) --no-print-directory --jobs 2 lint javascript

lint: $(VENV)/.installed-test  ## the linter, the layout and the types of the Python code
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

javascript: node_modules/.installed  ## lint and types of the JavaScript, and node's tests
	npm run --silent check

quick: check  ## check, and the tests without browser, notebook or long compile: two minutes
	@scripts/need graphviz dot
	$(PY) -m pytest -n $(WORKERS) -m "$(NOT_QUICK)" $(QUICK)

test: $(VENV)/.installed-test  ## check, and every test: what CI runs
	@$(MAKE) --no-print-directory --jobs 2 lint $(BYTECODE) javascript
	@scripts/need graphviz dot
	@scripts/need chromium-headless-shell chromium-headless-shell chromium chromium-browser google-chrome
	$(if $(GPU),$(PY) -m pytest -m gpu $(PYTEST_ARGS) || [ $$? = 5 ]  # 5: there are none)
	$(if $(PYTEST_ARGS),,$(call tests,-n $(WORKERS) $(BY_FILE),not alone and not as_shipped))
	$(if $(PYTEST_ARGS),,$(call tests,-n $(WORKERS) --dist worksteal,as_shipped))
	$(if $(PYTEST_ARGS),$(PY) -m pytest $(PYTEST_ARGS),$(call tests,-n 0,alone))

# pip has compiled nothing (.ci/run), and each worker would compile the same thousands of files: one
# process does that first, while the linter has the other core. The tests say what cannot be imported.
$(BYTECODE): $(VENV)/.installed-test
	@$(PY) -m pytest --collect-only -qq >/dev/null 2>&1 || true
	@touch $@

coverage-table: $(VENV)/.installed-test  ## run torch's op tables, write docs/op_coverage.md and .csv
	$(PY) scripts/coverage_table.py

pictures: $(VENV)/.installed-test  ## take and draw the pictures in docs/images anew
	$(PY) scripts/diagrams.py
	$(PY) scripts/screenshots.py
	$(PY) scripts/animation.py

notebooks: $(VENV)/.installed-test  ## run every notebook, keep small outputs: let nothing else run
	@scripts/need graphviz dot
	@scripts/need chromium-headless-shell chromium-headless-shell chromium chromium-browser google-chrome
	$(PY) scripts/notebooks.py $(NOTEBOOKS)

site: $(VENV)/.installed-site  ## the documentation as a site, in build/site; it needs no network
	NO_MKDOCS_2_WARNING=1 $(PY) scripts/pages.py

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) node_modules build dist report.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find kit tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	scripts/make-venv $(PYTHON) $(VENV)

$(VENV)/.torch: pyproject.toml $(wildcard requirements/*.txt) | $(PY)
	@echo "installing $(TORCH) and kit$(if $(EXTRAS), with its $(EXTRAS) extra): a few minutes, once"
	$(call pinned,pip)
	$(call pinned,kit $(EXTRAS))
	$(PIP) install $(PIP_TORCH_ARGS) "$(TORCH)"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch
	$(PIP) install $(PINNED) --editable ".$(if $(EXTRAS),[$(EXTRAS)])"
	@touch $@

# All that `.installed` stands for, and the tools of the tests.
$(VENV)/.installed-test: $(VENV)/.torch
	$(call pinned,test)
	$(PIP) install $(PINNED) --editable ".[$(TEST_EXTRAS)]"
	@touch $(VENV)/.installed $@

$(VENV)/.installed-site: $(VENV)/.installed-test
	$(call pinned,site)
	$(PIP) install $(PINNED) --editable ".[$(TEST_EXTRAS),site]"
	@touch $@

# eslint and the compiler of TypeScript, which check the JavaScript; the kit itself needs neither.
node_modules/.installed: package.json package-lock.json .npmrc
	@scripts/need npm npm
	npm ci --no-audit --no-fund --loglevel=error
	@touch $@
