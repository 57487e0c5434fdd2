"""Tests of `examples.python_trees`: edges and features of a small function, and a run."""

import functools
import random

import keras
import numpy as np
import pytest
from programs import start

from examples.python_trees import data, graphs, models

pytestmark = pytest.mark.slow
SOURCE = '''
def scale(values, factor):
    """Docstring."""
    total = sum(values)
    return total * factor
'''
# Nodes of SOURCE in order: an argument, and uses of variables.
VALUES, USE_VALUES, USE_TOTAL, USE_FACTOR = 2, 8, 11, 12


@pytest.fixture
def tree():
    (function,) = graphs.find_functions(SOURCE)
    return graphs.make_tree(function)


def example_at(tree, hole):
    return next(e for e in graphs.make_examples(tree, random.Random(0)) if e.hole == hole)


def test_label_name_edges_of_variables():
    #            x  .  y  x  ?  x
    variables = (5, -1, 7, 5, -1, 5)
    labels = graphs.label_name_edges(variables, hole=4)
    # The order of the labels: last, next, earlier, later use, variables before and after.
    names = "lneLba"
    rows = ["..an.L", "......", "b..a..", "l.b.an", "...b.a", "e..lb."]
    assert graphs.NO_EDGE == names.find(".")
    np.testing.assert_array_equal(labels, [[names.find(name) for name in row] for row in rows])


def test_make_example_features_are_independent_of_the_answer(tree):
    """Functions that differ only in the variable at the hole give the same features."""
    (function,) = graphs.find_functions(SOURCE.replace("total * factor", "values * factor"))
    other = graphs.make_tree(function)
    first, second = example_at(tree, USE_TOTAL), example_at(other, USE_TOTAL)
    assert first.answer != second.answer and second.answer == second.variables[VALUES]
    assert first._replace(answer=0) == second._replace(answer=0)


def test_run_prints_a_table(tmp_path, capsys, monkeypatch):
    """A module of each split has the function with another operator, the last with other names."""
    by_split = {split: [] for split in data.SPLITS}
    for i in range(100):
        by_split[data.assign_split(f"m{i}.py")].append(tmp_path / f"m{i}.py")
    for paths, operator in zip(by_split.values(), "*+-"):
        paths[0].write_text(SOURCE.replace("*", operator))
    by_split["test"][-1].write_text(SOURCE.replace("total", "result"))
    # XLA takes longer to compile these models than to train them.
    compile = functools.partialmethod(keras.Model.compile, jit_compile=False)
    monkeypatch.setattr(keras.Model, "compile", compile)
    flags = "--seeds=1", "--epochs=2", "--width=8", f"--source={tmp_path}"
    start("examples.python_trees.__main__", *flags)
    lines = capsys.readouterr().out.splitlines()
    # The function with other names is not an example.
    assert lines[0] == "Examples: 3 train, 3 dev, 3 test"
    rows = [line.split(" | ") for line in lines[-len(models.ATTENTION) :]]
    assert [row[0] for row in rows] == [f"| {kind}" for kind in models.ATTENTION]
    # Of three examples.
    assert {cell for row in rows for cell in row[1:2]} <= {"0.0", "33.3", "66.7", "100.0"}


@pytest.mark.parametrize("kind", models.ATTENTION)
def test_only_positions_depend_on_the_order_of_nodes(kind, tree):
    examples = [example_at(tree, hole) for hole in (USE_VALUES, USE_TOTAL, USE_FACTOR)]
    vocabulary = data.make_vocabulary(examples, min_count=1)
    model = models.make_model(kind, vocabulary, width=20, num_layers=1, num_heads=2, dropout=0.0)
    inputs, _ = data.make_batch(examples, vocabulary, edges=kind == "relations")
    logits = model.predict(inputs, verbose=0)
    present = np.array(
        [
            [number in example.variables for number in range(graphs.MAX_VARIABLES)]
            for example in examples
        ]
    )
    np.testing.assert_array_equal(logits > -1e8, present)
    order = np.random.default_rng(0).permutation(13)
    permuted = {
        field: array[:, order] if array.ndim == 2 else array[:, order][:, :, order]
        for field, array in inputs.items()
    }
    same = np.allclose(model.predict(permuted, verbose=0), logits, atol=1e-4)
    assert same == (kind != "positions")
