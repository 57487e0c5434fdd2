# Every target makes .venv and installs what it needs; nothing but Python 3.11 and make has to be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
QUICKSTART := runs/quickstart
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: quickstart test test-slow clean

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --editable '.[test]'
	touch $@

# Trains on the embedded synthetic corpus, evaluates, exports, translates.
quickstart: $(VENV)/installed
	PYTHON=$(RUN) examples/quickstart.sh $(QUICKSTART)

test: $(VENV)/installed
	$(RUN) -m pytest -m 'not slow'

test-slow: $(VENV)/installed
	$(RUN) -m pytest -m slow

clean:
	rm -rf $(VENV) runs build *.egg-info
