"""Tests that the examples of the docstrings of the packages run in an empty namespace.

`generate` and `fit` run eagerly, because compilation takes seconds per example.
"""

import doctest
import importlib.util
import pkgutil

import keras
import pytest

import t2t_relpos


def examples():
    """Returns the doctests of all modules of the packages, without the names of the modules."""
    found = []
    packages = [t2t_relpos]
    if keras.backend.backend() == "tensorflow":
        packages += [importlib.import_module(x) for x in ("trainer", "examples.synthetic_corpus")]
    finder = doctest.DocTestFinder()
    backends = {"tensorflow", "jax", "torch"} - {keras.backend.backend()}
    of_others = tuple(f"t2t_relpos.backend.{name}" for name in backends)
    if keras.backend.backend() != "torch":
        of_torch = "torch", "exchange", "comparison", "families."
        of_others += tuple(f"t2t_relpos.integrations.{name}" for name in of_torch)
    if importlib.util.find_spec("triton") is None:
        of_others += ("t2t_relpos.backend.torch_fused",)
    for package in packages:
        found += finder.find(package, globs={})
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
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
