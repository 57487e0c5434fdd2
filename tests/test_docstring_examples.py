"""Tests that the example of every docstring of `t2t_relpos` runs in an empty namespace."""

import doctest
import importlib
import pkgutil

import pytest

import t2t_relpos


def examples():
    """Returns the doctests of all modules of the package, without the names of their modules."""
    found = []
    finder = doctest.DocTestFinder()
    for info in pkgutil.walk_packages([*t2t_relpos.__path__], "t2t_relpos."):
        found += finder.find(importlib.import_module(info.name), globs={})
    return [pytest.param(test, id=test.name) for test in found if test.examples]


@pytest.mark.parametrize("test", examples())
def test_example_prints_the_documented_output(test):
    output = []
    doctest.DocTestRunner(verbose=False).run(test, out=output.append)
    assert not output, "".join(output)
