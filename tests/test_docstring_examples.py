"""Tests that the example of every docstring of `t2t_relpos` runs in an empty namespace.

`generate` and `fit` run eagerly, because compilation takes seconds per example.
"""

import doctest
import importlib
import pkgutil

import keras
import pytest

import t2t_relpos


def examples():
    """Returns the doctests of all modules of the package, without the names of the modules."""
    found = []
    finder = doctest.DocTestFinder()
    backends = {"tensorflow", "jax", "torch"} - {keras.backend.backend()}
    of_others = tuple(f"t2t_relpos.backend.{name}" for name in backends)
    if keras.backend.backend() != "torch":
        of_others += tuple(f"t2t_relpos.integrations.{x}" for x in ("torch", "speech_modules"))
    for info in pkgutil.walk_packages([*t2t_relpos.__path__], "t2t_relpos."):
        if not info.name.startswith(of_others):
            found += finder.find(importlib.import_module(info.name), globs={})
    return [pytest.param(test, id=test.name) for test in found if test.examples]


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
