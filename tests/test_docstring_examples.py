"""Tests that the example of every docstring of `t2t_relpos` runs.

Examples may use the small `config` of the example of `TransformerConfig`, and nothing else that
they do not define. `generate` and `fit` run eagerly, because compilation takes seconds per example.
"""

import doctest
import importlib
import pkgutil

import keras
import pytest

import t2t_relpos
from t2t_relpos.models import TransformerConfig


def config_of_examples():
    """Returns the `config` that the example of `TransformerConfig` makes."""
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(TransformerConfig, "TransformerConfig", globs={})
    doctest.DocTestRunner(verbose=False).run(test, clear_globs=False)
    return test.globs["config"]


def examples():
    """Returns the doctests of all modules of the package, with `config` as their only name."""
    found, names = [], {"config": config_of_examples()}
    finder = doctest.DocTestFinder()
    for info in pkgutil.walk_packages([*t2t_relpos.__path__], "t2t_relpos."):
        found += finder.find(importlib.import_module(info.name), globs=names)
    return [pytest.param(test, id=test.name) for test in found if test.examples]


def test_config_of_examples_is_small():
    config = config_of_examples()
    assert (config.num_encoder_layers, config.num_decoder_layers, config.hidden_dim) == (1, 1, 8)


@pytest.fixture
def eager_fit(monkeypatch):
    """Lets `fit` run eagerly on TensorFlow. JAX would compile each operation separately."""
    if keras.backend.backend() == "tensorflow":
        always = property(lambda self: True, lambda self, value: None)
        monkeypatch.setattr(keras.Model, "run_eagerly", always, raising=False)


@pytest.mark.usefixtures("eager_fit", "eager_searches")
@pytest.mark.parametrize("test", examples())
def test_example_prints_the_documented_output(test):
    output = []
    doctest.DocTestRunner(verbose=False).run(test, out=output.append)
    assert not output, "".join(output)
