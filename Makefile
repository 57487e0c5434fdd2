# Every target makes .venv and installs what it needs; nothing but Python 3.11 and make has to be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
# JAX and PyTorch get an environment of their own, beside the TensorFlow that `pip install .` brings.
BACKENDS_VENV := .venv-backends
RUN_BACKENDS := $(BACKENDS_VENV)/bin/python
# The PyTorch that was tested: of this version pip takes the CPU build wherever it is told of one.
TORCH := torch==2.13.*
LIBRARY_TESTS := t2t_relpos tests/attention tests/layers tests/models tests/decoding tests/t2t tests/test_backends.py
CORE_TESTS := tests/test_backends.py tests/layers/test_relation_multi_head_attention.py tests/attention/test_recorded.py
QUICKSTART := runs/quickstart
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: quickstart test test-slow test-backends test-backends-core clean

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --editable '.[test]'
	touch $@

# Trains on the embedded synthetic corpus, evaluates, exports, translates.
quickstart: $(VENV)/installed
	PYTHON=$(RUN) examples/quickstart.sh $(QUICKSTART)

# Files of tests side by side, one more than there are cores, for some wait; but at most four: each holds some GB.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cores < 3 ? cores + 1 : 4)))
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile

test: $(VENV)/installed
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m 'not slow'

test-slow: $(VENV)/installed
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m slow

$(BACKENDS_VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(BACKENDS_VENV)
	$(RUN_BACKENDS) -m pip install --quiet --upgrade pip
	$(RUN_BACKENDS) -m pip install --quiet --editable '.[test]'
	touch $@

# The library on the other backends of Keras.
test-backends: $(BACKENDS_VENV)/installed
	$(RUN_BACKENDS) -m pip install --quiet --editable '.[jax,torch]' '$(TORCH)'
	KERAS_BACKEND=jax $(RUN_BACKENDS) -m pytest -m 'not slow' $(LIBRARY_TESTS)
	KERAS_BACKEND=torch $(RUN_BACKENDS) -m pytest -m 'not slow' $(LIBRARY_TESTS)

# The core of that; a backend that can't be had here is left out, which is said.
test-backends-core: $(BACKENDS_VENV)/installed
	for backend in jax torch; do \
	  package=$$backend; [ $$backend = jax ] || package='$(TORCH)'; \
	  if timeout 300 $(RUN_BACKENDS) -m pip install --quiet --editable ".[$$backend]" "$$package"; then \
	    KERAS_BACKEND=$$backend $(RUN_BACKENDS) -m pytest -m 'not slow' $(CORE_TESTS) || exit 1; \
	  else \
	    echo "$$backend could not be installed: nothing was tested on it."; \
	  fi; \
	done

clean:
	rm -rf $(VENV) $(BACKENDS_VENV) runs build *.egg-info
