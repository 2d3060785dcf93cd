# make lab: JupyterLab on the first notebook.   make test: every check.   make report: report.html.
# All three make .venv on first use, and again when pyproject.toml changes.

PYTHON ?= python3
# Installed first and pinned, so that every machine runs the version that the kit was tested with.
TORCH ?= torch==2.13.0
# Extra arguments of that one installation. On Linux without a GPU, PyTorch's CPU wheels save gigabytes:
#   make lab PIP_TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu"
PIP_TORCH_ARGS ?=
# With arguments there is one run of pytest, with these; without, all tests in two, see `test`.
PYTEST_ARGS ?=
WORKERS ?= 2
NOTEBOOK ?= notebooks/01_where_does_the_step_go.ipynb
REPORT ?= report.html

comma := ,
# Compiling is most of what these do, and none of them asks what overlaps: they may share the cores.
STEADY := $(addprefix tests/,browser coverage ir jax models reports torch trace widgets \
	test_notebooks.py workloads/test_convnets.py measure/many/test_shipped.py)
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet --quiet
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
EXTRAS := $(if $(GPU),cuda)
TEST_EXTRAS := $(addsuffix $(comma),$(EXTRAS))test,dev

.PHONY: lab test report clean check coverage-table pictures
.DEFAULT_GOAL := lab

lab: $(VENV)/.installed
	@scripts/need graphviz dot
	@$(PY) -m kit lab $(NOTEBOOK)

report: $(VENV)/.installed
	@scripts/need graphviz dot
	$(PY) -m kit report --output $(REPORT)

check: $(VENV)/.installed-test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy kit

test: check
	@scripts/need graphviz dot
	@scripts/need chromium chromium chromium-browser google-chrome
	$(if $(GPU),$(PY) -m pytest -m gpu $(PYTEST_ARGS) || [ $$? = 5 ]  # 5: there are none)
	$(if $(PYTEST_ARGS),,$(PY) -m pytest -n $(WORKERS) --dist loadfile $(STEADY))
	$(PY) -m pytest $(or $(PYTEST_ARGS),$(addprefix --ignore=,$(STEADY)))

# Every float32 entry of torch's own test tables on device kit; writes docs/op_coverage.md.
coverage-table: $(VENV)/.installed-test
	$(PY) scripts/coverage_table.py

# The pictures in docs/images, taken anew.
pictures: $(VENV)/.installed-test
	$(PY) scripts/screenshots.py

clean:
	rm -rf $(VENV) build dist report.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find kit tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	scripts/make-venv $(PYTHON) $(VENV)

$(VENV)/.installed: pyproject.toml | $(PY)
	@echo "installing $(TORCH), then kit$(if $(EXTRAS), with its $(EXTRAS) extra): a few minutes, once"
	$(PIP) install $(PIP_TORCH_ARGS) "$(TORCH)"
	$(PIP) install --editable ".$(if $(EXTRAS),[$(EXTRAS)])"
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install --editable ".[$(TEST_EXTRAS)]"
	@touch $@
