# Each target but gpu-check creates the virtual environment that it needs. Requires make and Python
# 3.11 to 3.13; test-oldest and test-serving require 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# The environment and its extras. CI tests everything in one: `.ci/run` passes both variables.
VENV := .venv
EXTRAS := docs,lint,music,test
RUN := $(VENV)/bin/python
# The environment of test-backends: JAX, PyTorch and transformers in addition to TensorFlow.
BACKENDS_VENV := .venv-backends
IN_BACKENDS_VENV := VENV=$(BACKENDS_VENV) EXTRAS=all-backends,test
BACKENDS := jax torch
# The environments of test-newest-%: one backend without the others, and packages to upgrade, also
# above the upper bounds of setup.cfg.
NEWEST_EXTRAS_jax := jax,test-library
NEWEST_EXTRAS_torch := test-library,transformers
NEWEST_EXTRAS_tensorflow := test
NEWEST_jax := keras numpy jax
NEWEST_torch := keras numpy torch transformers peft
NEWEST_tensorflow := keras numpy tensorflow tensorflow-text
# The environments of test-serving: versions of TensorFlow that run exports.
SERVING_VERSIONS := 2.12 2.20 newest
# The environment of test-oldest: the lower bounds of setup.cfg.
OLDEST_VENV := .venv-oldest
RUN_OLDEST := $(OLDEST_VENV)/bin/python
# The environment of package: the built wheel or sdist.
PACKAGE_VENV := .venv-package
RUN_PACKAGE := $(PACKAGE_VENV)/bin/python
# Triton for test-fused, in no environment.
TRITON := .triton
LIBRARY_TESTS := tests/backend tests/attention tests/integrations tests/layers tests/models \
  tests/decoding tests/t2t tests/test_backends.py tests/test_docstring_examples.py \
  tests/test_first_calls.py tests/test_invariances.py
CORE_TESTS := tests/backend tests/test_backends.py tests/test_first_calls.py \
  tests/test_invariances.py \
  tests/layers/test_relation_multi_head_attention.py \
  tests/layers/test_keras_hub.py tests/layers/test_keras_own_tests.py \
  tests/layers/test_operations.py tests/layers/test_settings.py tests/layers/test_errors.py \
  tests/layers/test_call_arguments.py tests/models/test_generation.py \
  tests/models/test_generation_inputs.py \
  tests/attention/test_recorded.py tests/attention/test_torch.py \
  tests/layers/test_packing.py tests/layers/test_export.py \
  tests/layers/test_torch_synchronization.py tests/layers/test_transforms.py \
  tests/integrations tests/examples/test_jax_translation.py
QUICKSTART := runs/quickstart
# One process more than cores, because some tests wait; at most 4, since each needs a few GB.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); \
  echo $$((cores < 3 ? cores + 1 : 4)))
PARALLEL := -n $(WORKERS) --dist loadfile
FAST := $(PARALLEL) -m 'not slow and not guide and not long' --durations=20
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: quickstart docs notebooks lint format test test-matrix test-peers test-slow test-guides test-long \
  test-oldest test-backends test-backends-core test-fused test-interpreted test-jax test-torch \
  test-tensorflow test-serving gpu-check package clean

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --editable '.[$(EXTRAS)]'
	touch $@

# Trains on the synthetic corpus, evaluates, exports, translates.
quickstart: $(VENV)/installed
	TF_CPP_MIN_LOG_LEVEL=3 PYTHON=$(RUN) examples/quickstart.sh $(QUICKSTART)

# Builds the site in build/site. Fails on broken links, anchors and references.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

# Writes two guides as notebooks to build/notebooks.
notebooks: $(VENV)/installed
	$(RUN) docs/notebooks.py

# Checks style and formatting.
lint: $(VENV)/installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

# Formats all files and fixes style errors that have an automatic fix.
format: $(VENV)/installed
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

test: $(VENV)/installed
	$(RUN) -m pytest $(FAST)

# Tests all combinations of model, operation, dtype, masks, dropout and lengths under XLA.
test-matrix: $(VENV)/installed
	FULL_COMPILE_MATRIX=1 $(RUN) -m pytest -n $(WORKERS) tests/layers/test_operations.py \
	  -k test_operation_on_a_model

# Runs Keras's own layer test on all argument variants of the layers.
test-peers: $(VENV)/installed
	ALL_ARGUMENT_VARIANTS=1 $(RUN) -m pytest -n $(WORKERS) tests/layers/test_operations.py \
	  -k test_run_layer_test

# Runs slow tests, and tests of properties with 200 examples each.
test-slow: $(VENV)/installed
	$(RUN) -m pytest $(PARALLEL) -m '(slow or hypothesis) and not long' \
	  --hypothesis-profile=thorough --durations=20

# Runs tests that take minutes, or whose parts the fast and slow tests cover.
test-long: $(VENV)/installed
	$(MAKE) --no-print-directory test-fused ALL_CASES=1
	$(RUN) -m pytest $(PARALLEL) -m long

# Runs the guides of the documentation that train models, and compares their output with the pages.
test-guides: $(VENV)/installed
	$(RUN) -m pytest -n $(WORKERS) -m guide tests/test_guides.py

# The lower bounds of setup.cfg, as pip constraints.
$(OLDEST_VENV)/installed: setup.cfg pyproject.toml .ci/oldest_constraints.py
	$(PYTHON) -m venv $(OLDEST_VENV)
	$(RUN_OLDEST) -m pip install --quiet --upgrade pip
	$(RUN_OLDEST) .ci/oldest_constraints.py > $(OLDEST_VENV)/constraints.txt
	$(RUN_OLDEST) -m pip install --quiet --constraint $(OLDEST_VENV)/constraints.txt \
	  --editable '.[test]'
	touch $@

# Runs the fast tests on the oldest versions that setup.cfg allows.
test-oldest: $(OLDEST_VENV)/installed
	$(RUN_OLDEST) -m pytest $(FAST)

# Runs all fast tests of the library on JAX and PyTorch.
test-backends:
	$(MAKE) --no-print-directory $(BACKENDS:%=test-%) $(IN_BACKENDS_VENV) TESTS='$(LIBRARY_TESTS)'

# Runs the tests that compare backends on JAX and PyTorch. Fails if either can't be installed.
# BACKENDS=jax selects one of them. JAX runs most compiled functions once, so that compiling them
# takes most of the time. test-backends has all optimizations.
test-backends-core: export JAX_DISABLE_MOST_OPTIMIZATIONS := 1
test-backends-core: $(if $(filter torch,$(BACKENDS)),test-fused)
	$(MAKE) --no-print-directory $(BACKENDS:%=test-%) $(IN_BACKENDS_VENV) TESTS='$(CORE_TESTS)'

# Tests the fused kernel of PyTorch in Triton's interpreter, without a GPU. In the environments,
# Triton could be loaded after TensorFlow, which aborts the process.
test-fused: $(TRITON)/installed
	$(MAKE) --no-print-directory test-interpreted $(IN_BACKENDS_VENV)

test-interpreted: $(VENV)/installed
	TRITON_INTERPRET=1 PYTHONPATH=$(TRITON) KERAS_BACKEND=torch $(RUN) -m pytest \
	  -m '$(if $(ALL_CASES),,not long)' tests/attention/test_fused.py

$(TRITON)/installed: Makefile
	$(PYTHON) -m pip install --quiet --no-deps --upgrade --target $(TRITON) 'triton>=3.7,<3.10'
	touch $@

# Run tests on one backend, in an environment that has it.
test-jax test-torch test-tensorflow: test-%: $(VENV)/installed
	KERAS_BACKEND=$* $(RUN) -m pytest $(FAST) $(TESTS)

# Run the core tests on the newest versions of a backend. `docs/get_started.md` has the results.
test-newest-%: NEWEST_VENV = .venv-newest-$*
test-newest-%:
	$(MAKE) --no-print-directory $(NEWEST_VENV)/installed VENV=$(NEWEST_VENV) EXTRAS=$(NEWEST_EXTRAS_$*)
	$(NEWEST_VENV)/bin/python -m pip install --quiet --upgrade $(NEWEST_$*)
	$(NEWEST_VENV)/bin/python -m pip list
	KERAS_BACKEND=$* $(NEWEST_VENV)/bin/python -m pytest $(FAST) $(CORE_TESTS)

# Test models of transformers in a version of it: 5.18, the lower bound, or newest.
test-transformers-%: VERSION_VENV = .venv-transformers-$*
test-transformers-%:
	$(MAKE) --no-print-directory $(VERSION_VENV)/installed VENV=$(VERSION_VENV) \
	  EXTRAS=$(NEWEST_EXTRAS_torch)
	$(VERSION_VENV)/bin/python -m pip install --quiet --upgrade \
	  $(if $(filter newest,$*),transformers,'transformers==$*.*')
	$(VERSION_VENV)/bin/python -m pip list
	KERAS_BACKEND=torch $(VERSION_VENV)/bin/python -m pytest $(FAST) tests/integrations

.venv-serving-%/installed: Makefile
	$(PYTHON) -m venv .venv-serving-$*
	.venv-serving-$*/bin/python -m pip install --quiet --upgrade pip
	.venv-serving-$*/bin/python -m pip install --quiet $(if $(filter newest,$*), \
	  tensorflow tensorflow-text tensorflow-serving-api, \
	  'tensorflow==$*.*' 'tensorflow-text==$*.*')
	touch $@

# Runs an export in other versions of TensorFlow, and with messages of TensorFlow Serving.
test-serving: $(VENV)/installed $(SERVING_VERSIONS:%=.venv-serving-%/installed)
	SERVING_PYTHONS='$(SERVING_VERSIONS:%=.venv-serving-%/bin/python)' $(RUN) -m pytest -rP -m long \
	  tests/trainer/serving/test_versions_of_tensorflow.py

# Tests and measures attention on the GPU of the Keras backend, in 3 minutes. Creates no environment:
# PYTHON needs the backend, Keras, pytest, hypothesis and absl-py.
gpu-check: PYTHON := python3
gpu-check:
	$(PYTHON) -m benchmarks.accelerator.check

# Builds the wheel and the sdist. Tests each in an environment without the other. Without the extra
# `trainer`, programs print the command that installs it.
package:
	rm -rf dist $(PACKAGE_VENV)
	$(PYTHON) -m venv $(PACKAGE_VENV)
	$(RUN_PACKAGE) -m pip install --quiet --upgrade pip build
	$(RUN_PACKAGE) -m build --outdir dist .
	$(RUN_PACKAGE) -m pip install --quiet dist/*.whl
	$(PACKAGE_VENV)/bin/relpos-train --help; test $$? = 2
	$(RUN_PACKAGE) -m pip install --quiet "$$(ls $(CURDIR)/dist/*.whl)[trainer]"
	$(RUN_PACKAGE) -m pip check
	cd dist && ../.ci/smoke_test.sh ../$(PACKAGE_VENV)/bin
	$(RUN_PACKAGE) -m pip uninstall --quiet --yes t2t_relpos
	$(RUN_PACKAGE) -m pip install --quiet dist/*.tar.gz
	cd dist && ../.ci/smoke_test.sh ../$(PACKAGE_VENV)/bin

clean:
	rm -rf .venv .venv-* runs build dist *.egg-info
