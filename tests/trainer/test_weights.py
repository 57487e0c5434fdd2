"""Tests of functions that find, load and average the checkpoints of a run."""

import shutil

import numpy as np
import pytest
from comparisons import assert_all_equal

from trainer import weights
from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import read_weights


@pytest.fixture(scope="module")
def directory(small_run, tmp_path_factory):
    """Returns a run with checkpoints of the steps 2, 4 and 5, and a best checkpoint of step 5."""
    path = tmp_path_factory.mktemp("runs") / "run"
    small_run(path, keep_best=1, evaluate_every=5, **small_run.dev)
    return ModelDirectory.open(path)


@pytest.fixture
def copy(directory, tmp_path):
    """Returns a copy of the run that tests may change."""
    return ModelDirectory.open(shutil.copytree(directory.path, tmp_path / "copy"))


def is_weight(array):
    return array.dtype == np.float32


def test_find_checkpoint_by_step_or_name(directory):
    folder = directory.checkpoints
    assert weights.find_checkpoint(directory, "latest") == folder / "step-000005"
    assert (
        weights.find_checkpoint(directory, "4")
        == weights.find_checkpoint(directory, 4)
        == folder / "step-000004"
    )
    assert weights.find_checkpoint(directory, "best") == directory.best / "step-000005"
    assert weights.last_checkpoints(directory, 2) == [
        folder / "step-000004",
        folder / "step-000005",
    ]


def test_find_checkpoint_among_the_best(copy):
    shutil.move(copy.best / "step-000005", copy.best / "step-000003")
    assert weights.find_checkpoint(copy, 3) == copy.best / "step-000003"
    with pytest.raises(
        ValueError,
        match="of step 7 in .*copy. Received: checkpoints of steps 2, 3, 4, 5.$",
    ):
        weights.find_checkpoint(copy, 7)


def test_load_transformer_of_a_checkpoint(directory):
    path = weights.find_checkpoint(directory, 2)
    transformer = weights.load_transformer(directory, path)
    assert_all_equal(transformer.variables, read_weights(path).values())
    latest = weights.load_transformer(directory, weights.find_checkpoint(directory, "latest"))
    assert_all_equal(latest.weights, directory.load_model().weights)


def test_average_is_the_mean_in_float64_with_the_last_states(directory):
    paths = weights.last_checkpoints(directory, 3)
    read = [read_weights(path).values() for path in paths]
    averaged = [variable.numpy() for variable in weights.average(directory, paths).variables]
    kinds = [is_weight(array) for array in averaged]
    assert True in kinds and False in kinds
    for array, *others in zip(averaged, *read, strict=True):
        expected = (
            np.mean(np.float64(others), axis=0).astype("float32")
            if is_weight(array)
            else others[-1]
        )
        np.testing.assert_array_equal(array, expected)
    differing = [not np.array_equal(*others[1:]) for others in zip(*read)]
    assert sum(differing) > len(differing) / 2, "the checkpoints are equal"


def test_average_of_one_checkpoint_equals_it(directory):
    path = weights.find_checkpoint(directory, 4)
    assert_all_equal(weights.average(directory, [path]).variables, read_weights(path).values())


def test_missing_checkpoints_raise(directory, trained_model_dir):
    with pytest.raises(
        ValueError,
        match="Expected the step of a checkpoint, 'latest' or 'best'. Received: 'newest'.",
    ):
        weights.find_checkpoint(directory, "newest")
    with pytest.raises(
        ValueError,
        match=("Expected at least 20 checkpoints in .*Received: 3, of steps 2, 4, 5. Use fewer"),
    ):
        weights.last_checkpoints(directory, 20)
    empty = ModelDirectory.open(trained_model_dir)
    with pytest.raises(
        ValueError,
        match="Expected at least 1 checkpoints in .*/checkpoints. Received: none. .* train longer",
    ):
        weights.find_checkpoint(empty, "latest")
    with pytest.raises(
        ValueError,
        match=(
            "Expected a checkpoint chosen by dev BLEU in .*/best. Received: none. Train with "
            "--keep_best"
        ),
    ):
        weights.find_checkpoint(empty, "best")
    with pytest.raises(ValueError, match="Received: no checkpoints.$"):
        weights.find_checkpoint(empty, 3)
    with pytest.raises(ValueError, match="Expected at least 1 checkpoints in .* Received: none."):
        weights.last_checkpoints(empty, 1)


def test_average_of_a_corrupt_checkpoint_raises(copy):
    (copy.checkpoints / "step-000004" / "model.npz").write_bytes(b"PK")
    with pytest.raises(
        ValueError, match="Can't read the checkpoint .*step-000004 .*Use another one"
    ):
        weights.average(copy, weights.last_checkpoints(copy, 2))
