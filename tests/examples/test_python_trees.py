"""Tests of `examples.python_trees`: graphs of a small function, features and training."""

import ast
import random

import keras
import numpy as np
import pytest

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


def test_label_path_is_unique():
    vertical = [(0, 0)] + [(n, 0) for n in (1, 2, 3)] + [(0, n) for n in (1, 2, 3)]
    sideways = [
        (up, down, after) for up in (1, 2, 3) for down in (1, 2, 3) for after in (False, True)
    ]
    numbers = [int(graphs.label_path(*steps)) for steps in vertical + sideways]
    assert sorted(numbers) == list(range(graphs.NUM_TREE_LABELS))


def test_label_name_edges_of_variables():
    #            x  .  y  x  ?  x
    variables = (5, -1, 7, 5, -1, 5)
    labels = graphs.label_name_edges(variables, hole=4)
    # The order of the labels: last, next, earlier, later use, variables before and after.
    names = "lneLba"
    rows = ["..an.L", "......", "b..a..", "l.b.an", "...b.a", "e..lb."]
    assert graphs.NO_EDGE == names.find(".")
    np.testing.assert_array_equal(labels, [[names.find(name) for name in row] for row in rows])


def test_make_example_numbers_variables_randomly(tree):
    assert tuple(e.hole for e in graphs.make_examples(tree, random.Random(0))) == USES
    example = example_at(tree, USE_TOTAL)
    assert example.names[USE_TOTAL] == graphs.HOLE and example.variables[USE_TOTAL] == -1
    assert example.answer == example.variables[TOTAL]
    assert example.variables[VALUES] == example.variables[USE_VALUES]
    assert not {"total", "values", "factor"} & set(example.names)
    assert {example_at(tree, USE_TOTAL, seed).answer for seed in range(100)} == set(
        range(graphs.MAX_VARIABLES)
    )


def test_make_example_features_are_independent_of_the_answer(tree):
    """Functions that differ only in the variable at the hole give the same features."""
    (function,) = graphs.find_functions(SOURCE.replace("total * factor", "values * factor"))
    other = graphs.make_tree(function)
    first, second = example_at(tree, USE_TOTAL), example_at(other, USE_TOTAL)
    assert first.answer != second.answer and second.answer == second.variables[VALUES]
    assert first._replace(answer=0) == second._replace(answer=0)


def test_make_examples_of_a_single_variable_are_none():
    (function,) = graphs.find_functions("def f(x):\n    return x + x")
    tree = graphs.make_tree(function)
    assert graphs.make_examples(tree, random.Random(0)) == []


def test_find_functions_skips_nested_scopes():
    source = "def f():\n    def g():\n        pass\n\ndef h():\n    return lambda: 1"
    assert [function.name for function in graphs.find_functions(source)] == ["g"]
    assert isinstance(graphs.find_functions(SOURCE)[0], ast.FunctionDef)


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with one module per split and a copy with a renamed variable."""
    by_split = {split: [] for split in data.SPLITS}
    for i in range(100):
        by_split[data.assign_split(f"m{i}.py")].append(tmp_path / f"m{i}.py")
    for paths, operator in zip(by_split.values(), "*+-"):
        paths[0].write_text(SOURCE.replace("*", operator))
    # The copy comes last in the order of paths.
    last = max(by_split["train"][1:] + by_split["test"][1:], key=lambda path: path.name)
    last.write_text(SOURCE.replace("total", "result"))
    return tmp_path


def test_read_examples_splits_share_no_function(folder):
    splits = data.read_examples(folder)
    sizes = {split: len(examples) for split, examples in splits.items()}
    assert sizes == {"train": 3, "dev": 3, "test": 3}
    operators = {split: examples[0].kinds[PRODUCT] for split, examples in splits.items()}
    assert operators == {"train": "BinOp/Mult", "dev": "BinOp/Add", "test": "BinOp/Sub"}
    again = data.read_examples(folder)
    assert [example.variables for example in again["train"]] == [
        e.variables for e in splits["train"]
    ]


def test_batches_contain_each_example_once(tree):
    examples = [example_at(tree, hole) for hole in USES * 3]
    vocabulary = data.make_vocabulary(examples, min_count=1)
    batches = data.Batches(examples, vocabulary, batch_size=2, seed=1)
    contents = [batches[i] for i in range(len(batches))]
    assert sorted(len(answers) for _, answers in contents) == [1, 2, 2, 2, 2]
    sizes = [(inputs["names"] > 0).sum() for inputs, _ in contents]
    assert sum(sizes) == 9 * 13
    inputs, answers = data.make_batch(examples[:2], vocabulary)
    assert inputs["names"][0, USE_VALUES] == data.HOLE_ID == inputs["names"][1, USE_TOTAL]
    assert inputs["names"][1, TOTAL] == data.FIRST_VARIABLE + answers[1]
    assert inputs["names"][0, SUM] == vocabulary["names"]["sum"] >= data.FIRST_WORD
    assert inputs["kinds"].min() >= 2 and inputs["tree_labels"].shape == (2, 13, 13)


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


def test_baseline_accuracies_values(tree):
    examples = [example_at(tree, hole) for hole in USES]
    # The nearest variables before the uses of values, total and factor are total, values and total.
    assert data.baseline_accuracies(examples)["nearest before"] == 0
    assert data.baseline_accuracies(examples)["chance"] == pytest.approx(1 / 3)
    assert data.baseline_accuracies(examples)["most frequent"] == 0


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
