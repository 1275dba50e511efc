# Two commands for a new user: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
# What is installed where no torch can be imported yet. For another build (a GPU's, say) give
# TORCH="torch==..." with the options of PyTorch's own install page.
TORCH ?=
DEFAULT_TORCH := torch==2.13.0
PYTEST_ARGS ?=
BENCH_ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test cpp-test models report bench bench-operators lint format clean

demo: $(INSTALLED)
	@$(BIN)/ensemble-decode demo

test: $(INSTALLED) models
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# The C++ tests: as they are, under two sanitizers, and as on a processor without vectors of ours.
# Needs CMake and a compiler, no torch.
CPP_VARIANTS := plain address undefined portable
cpp-test: $(CPP_VARIANTS:%=cpp-test-%)

cpp-test-plain: CPP_OPTIONS :=
cpp-test-address: CPP_OPTIONS := -DEK_SANITIZE=address
cpp-test-undefined: CPP_OPTIONS := -DEK_SANITIZE=undefined
cpp-test-portable: CPP_OPTIONS := -DEK_FORCE_PORTABLE=ON
cpp-test-%:
	@cmake -S . -B build/cpp/$* $(CPP_OPTIONS) --log-level=WARNING
	@cmake --build build/cpp/$* --parallel 2
	@echo "C++ tests, $*:"
	@cd build/cpp/$* && ctest --output-on-failure

models: $(INSTALLED)
	@$(BIN)/ensemble-decode models fetch

report: $(INSTALLED) models
	$(BIN)/python -m benchmarks.report $(BENCH_ARGS)

bench: $(INSTALLED) models
	$(BIN)/python -m benchmarks.loop

bench-operators: $(INSTALLED)
	@mkdir -p build
	$(BIN)/python -m pytest benchmarks/operators --benchmark-enable --benchmark-quiet \
		--benchmark-json=build/operators-benchmark.json $(BENCH_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info
	rm -f ensemble_kernels/libensemble_kernels.so ensemble_kernels/_native_build.json

# An editable install keeps the library that it was built with: changed sources build it anew.
$(INSTALLED): pyproject.toml setup.py $(shell find csrc -type f)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "PYTHON=$(PYTHON) is too old: Python 3.11 or later is needed"; exit 1; }
	@if [ -n "$(TORCH)" ] || ! $(PYTHON) -c 'import torch' 2>/dev/null; then \
		echo "creating $(VENV) with $(or $(TORCH),$(DEFAULT_TORCH))"; \
		$(PYTHON) -m venv $(VENV) && $(BIN)/pip install -qq $(or $(TORCH),$(DEFAULT_TORCH)); \
	else \
		echo "creating $(VENV) with the torch that $(PYTHON) has"; \
		$(PYTHON) -m venv --system-site-packages $(VENV); \
	fi
	@echo "installing the package, editable"
	@$(BIN)/pip install -qq -e '.[decoding,dev]'
	@touch $@
