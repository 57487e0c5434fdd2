"""Tests of `examples.python_trees`: graphs of a small function, features and training."""

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
# The nodes of SOURCE in order.
FUNCTION, ARGUMENTS, VALUES, FACTOR, ASSIGN, TOTAL, CALL, SUM, USE_VALUES = range(9)
RETURN, PRODUCT, USE_TOTAL, USE_FACTOR = range(9, 13)
USES = (USE_VALUES, USE_TOTAL, USE_FACTOR)


@pytest.fixture
def tree():
    (function,) = graphs.find_functions(SOURCE)
    return graphs.make_tree(function)


def example_at(tree, hole, seed=0):
    return next(e for e in graphs.make_examples(tree, random.Random(seed)) if e.hole == hole)


def test_make_tree_nodes(tree):
    assert tree.kinds == (
        "FunctionDef", "arguments", "arg", "arg", "Assign", "Name/Store", "Call", "Name/Load",
        "Name/Load", "Return", "BinOp/Mult", "Name/Load", "Name/Load",
    )  # fmt: skip
    assert tree.roles == (
        "", "args", "args", "args", "body", "targets", "value", "func", "args", "body", "value",
        "left", "right",
    )  # fmt: skip
    assert tree.parents == (
        -1, FUNCTION, ARGUMENTS, ARGUMENTS, FUNCTION, ASSIGN, ASSIGN, CALL, CALL, FUNCTION, RETURN,
        PRODUCT, PRODUCT,
    )  # fmt: skip
    assert tree.names[SUM] == "sum" and tree.names[TOTAL] == ""
    assert tree.variables == (-1, -1, 0, 1, -1, 2, -1, -1, 0, -1, -1, 2, 1)


def test_label_tree_edges_of_paths(tree):
    labels = graphs.label_tree_edges(tree.parents)
    # Steps up and down from TOTAL to each node, and whether the node comes after TOTAL.
    paths = [(2, 0, 0), (2, 1, 0), (2, 2, 0), (2, 2, 0), (1, 0, 0), (0, 0, 0), (1, 1, 1)]
    paths += [(1, 2, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (2, 3, 1), (2, 3, 1)]
    for node, (up, down, after) in enumerate(paths):
        assert labels[TOTAL, node] == graphs.label_path(up, down, after), node
        assert labels[node, TOTAL] == graphs.label_path(down, up, 1 - after), node
    # The longest path with an edge.
    assert labels[USE_TOTAL, USE_VALUES] == graphs.label_path(3, 3)
    chain = graphs.label_tree_edges((-1, 0, 1, 2, 3))
    assert chain[4, 0] == chain[0, 4] == graphs.NO_EDGE and chain[3, 0] == graphs.label_path(3, 0)


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


def test_permute_variables_keeps_equal_names_equal(tree, rng):
    examples = [example_at(tree, hole) for hole in USES]
    inputs, answers = data.make_batch(examples, data.make_vocabulary(examples, min_count=1))
    names = inputs["names"].copy()
    new_answers = data.permute_variables(names, answers, rng)
    is_variable = (names >= data.FIRST_VARIABLE) & (names < data.FIRST_WORD)
    np.testing.assert_array_equal(names[~is_variable], inputs["names"][~is_variable])
    assert is_variable.sum(1).tolist() == [5, 5, 5] and (names != inputs["names"]).any()
    assert names[1, TOTAL] == data.FIRST_VARIABLE + new_answers[1]
    assert names[1, VALUES] == names[1, USE_VALUES] != names[1, TOTAL]


@pytest.mark.parametrize("kind", models.ATTENTION)
def test_models_train_and_only_positions_depend_on_order(kind, tree):
    examples = [example_at(tree, hole, seed) for seed in range(8) for hole in USES]
    vocabulary = data.make_vocabulary(examples, min_count=1)
    batches = data.Batches(examples, vocabulary, 12, edges=kind == "relations")
    model = models.make_model(kind, vocabulary, width=20, num_layers=1, num_heads=2, dropout=0.0)
    inputs, answers = data.make_batch(examples[:3], vocabulary, edges=kind == "relations")
    logits = model.predict(inputs, verbose=0)
    present = np.array(
        [
            [number in example.variables for number in range(graphs.MAX_VARIABLES)]
            for example in examples[:3]
        ]
    )
    np.testing.assert_array_equal(logits > -1e8, present)
    # Only the model with positions depends on the order of the nodes.
    order = np.random.default_rng(0).permutation(13)
    permuted = {
        field: array[:, order] if array.ndim == 2 else array[:, order][:, :, order]
        for field, array in inputs.items()
    }
    same = np.allclose(model.predict(permuted, verbose=0), logits, atol=1e-4)
    assert same == (kind != "positions")
    model.compile(
        keras.optimizers.Adam(5e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    losses = model.fit(batches, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
