# Every target makes what it needs: .venv, packages, the build. Variables: USE_CUDA=auto|1|0,
# TORCH_CUDA_ARCH_LIST, DEBUG=1, VENV, PYTEST_ARGS, WHEEL, TORCH.

VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PYTEST_ARGS ?=
PYTEST := -m pytest -n 2
JOBS ?= 2
WHEEL ?= $(lastword $(sort $(wildcard wheels/*.whl)))
TORCH ?= 2.13.0
GPU_PYTHON ?= $(if $(wildcard $(PY)),$(PY),python3)
CXX_SOURCES = $(shell git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cuh' 'csrc/*.cu')

export VENV
export USE_CUDA ?= auto
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.PHONY: help venv build demo test gpu-test need-wheel compat bench figures docs lint format wheel wheels clean
help:  ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv:  ## make .venv and install what is needed
	@scripts/bootstrap

build: venv  ## compile and install into .venv, editable
	@$(PY) -m pip --disable-pip-version-check install -q --no-build-isolation --no-deps -e .

demo: build  ## train an MLP on real images, torch.nn against fusedops
	@$(PY) examples/train_digits.py

test: build  ## build, then all tests this machine can run
	@$(PY) $(PYTEST) $(PYTEST_ARGS)

need-wheel:
	@test -n "$(WHEEL)" || { echo "$(MAKECMDGOALS): no wheel in wheels/; run: make wheel"; exit 1; }

# NOTE: the finder of an editable install comes before PYTHONPATH, in every process of the tests.
define WITHOUT_EDITABLE
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in repr(f)]
endef
define IS_THE_WHEEL
import fusedops, sys
if not fusedops.__file__.startswith("$(CURDIR)/build/gpu-test/"):
    sys.exit("gpu-test: another fusedops is in the way: " + fusedops.__file__)
endef
export WITHOUT_EDITABLE IS_THE_WHEEL

gpu-test: need-wheel  ## the GPU tests against a wheel that is already built: no build, no network
	@rm -rf build/gpu-test && $(GPU_PYTHON) -m pip --disable-pip-version-check install -q \
	  --no-index --no-deps --target build/gpu-test $(WHEEL)
	@echo "$$WITHOUT_EDITABLE" > build/gpu-test/sitecustomize.py
	@export PYTHONPATH=$(CURDIR)/build/gpu-test && $(GPU_PYTHON) -c "$$IS_THE_WHEEL" \
	  && $(GPU_PYTHON) -m fusedops info && $(GPU_PYTHON) -m pytest -m gpu $(PYTEST_ARGS)

compat: need-wheel venv  ## the tests against the newest wheel under another torch (TORCH=2.13.0)
	@$(PY) -m venv build/compat-$(TORCH)
	@build/compat-$(TORCH)/bin/python -m pip --disable-pip-version-check install -q \
	  torch==$(TORCH) pytest pytest-xdist numpy $(WHEEL)
	@build/compat-$(TORCH)/bin/python -m fusedops info
	@build/compat-$(TORCH)/bin/python $(PYTEST) $(PYTEST_ARGS)

bench: build  ## measure every suite against its usual peers
	@$(PY) -m fusedops bench all

figures: build  ## every table and picture of the documents, again from the CSVs of perf/results
	@$(PY) scripts/requirements.py bench \
	  | $(PY) -m pip --disable-pip-version-check install -q -r /dev/stdin
	@$(PY) perf/readme_table.py
	@$(PY) perf/draw_plots.py

docs: build  ## HTML of docs/ and of the docstrings in build/docs; a warning is an error
	@$(PY) scripts/requirements.py docs \
	  | $(PY) -m pip --disable-pip-version-check install -q -r /dev/stdin
	@$(PY) -m sphinx -W --keep-going -E -q -b html docs build/docs

lint: venv  ## ruff, clang-format and mypy
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --no-cache --check .
	@$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)
	@$(BIN)/mypy

format: venv  ## rewrite sources as lint wants them
	@$(BIN)/ruff check -q --fix . && $(BIN)/ruff format -q .
	@$(BIN)/clang-format -i $(CXX_SOURCES)

wheel: export USE_CUDA = 1
wheel: export TORCH_CUDA_ARCH_LIST ?= 8.0;9.0a
wheel:  ## a CUDA wheel for Ampere to Hopper in wheels/
	@scripts/bootstrap
	@mkdir -p wheels
	$(PY) -m pip --disable-pip-version-check wheel --no-build-isolation --no-deps -w wheels \
	  -C build-dir=build/wheel . -v

# PYTHONS="3.10 3.12" builds for some; FUSEDOPS_WHEEL_TORCH="" tries none out.
wheels: venv  ## a wheel for every Python from one compile, tried with the oldest and newest torch
	@$(PY) scripts/requirements.py wheels \
	  | $(PY) -m pip --disable-pip-version-check install -q -r /dev/stdin
	@$(PY) scripts/wheels.py $(PYTHONS)

clean:  ## remove builds and caches, keep .venv
	@rm -rf build wheels .pytest_cache .mypy_cache .ruff_cache
