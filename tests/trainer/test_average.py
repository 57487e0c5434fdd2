"""Tests of the choice of checkpoints and of `trainer.average`."""

import functools
import json
import shutil

import numpy as np
import pytest
from comparisons import assert_all_equal
from programs import Program

from trainer import average
from trainer.model_dir import ModelDirectory
from trainer.training import checkpoints
from trainer.training.checkpoints import model_keys, read_weights

raises = functools.partial(pytest.raises, ValueError)
run = Program(average)


@pytest.fixture
def directory(finished_run):
    """Returns a run with checkpoints of the steps 3, 6 and 9, which tests must not change."""
    return ModelDirectory.open(finished_run)


@pytest.fixture
def with_best(finished):
    """Returns a copy of the run, with best checkpoints of the steps 4 and 9."""
    copy = ModelDirectory.open(finished)
    for step, bleu in (("step-000004", 2.5), ("step-000009", 3.5)):
        shutil.copytree(copy.checkpoints / "step-000009", copy.best / step)
        state = copy.best / step / "state.json"
        state.write_text(json.dumps(json.loads(state.read_text()) | {"dev_bleu": bleu}))
    return copy


def test_find_checkpoint_by_step_or_name(with_best):
    folder, best = with_best.checkpoints, with_best.best
    for which, expected in (
        ("latest", folder / "step-000009"),
        ("6", folder / "step-000006"),
        (6, folder / "step-000006"),
        ("best", best / "step-000009"),
        (9, folder / "step-000009"),
        (4, best / "step-000004"),
    ):
        assert checkpoints.find_checkpoint(with_best, which) == expected, which
    assert checkpoints.last_checkpoints(with_best, 2) == [
        folder / "step-000006",
        folder / "step-000009",
    ]


def test_load_model_of_a_checkpoint(directory):
    transformer = checkpoints.load_model(directory, 3)
    path = checkpoints.find_checkpoint(directory, 3)
    assert_all_equal(transformer.variables, read_weights(path).values())
    latest = checkpoints.load_model(directory, "latest")
    assert_all_equal(latest.weights, directory.load_model().weights)


def test_average_is_the_mean_in_float64_with_the_last_states(directory):
    paths = checkpoints.last_checkpoints(directory, 3)
    read = [read_weights(path).values() for path in paths]
    averaged = list(average.mean_weights(paths).values())
    assert {str(array.dtype) for array in averaged} == {"float32", "int64"}
    for array, *others in zip(averaged, *read, strict=True):
        expected = (
            np.mean(np.float64(others), axis=0).astype("float32")
            if array.dtype == np.float32
            else others[-1]
        )
        np.testing.assert_array_equal(array, expected)
    differing = [not np.array_equal(*others[1:]) for others in zip(*read)]
    assert all(differing), "the checkpoints are equal"
    assert_all_equal(average.mean_weights(paths[:1]).values(), read[0])


def test_missing_checkpoints_raise(directory, tmp_path):
    with raises(match="at least 20 checkpoints in .*Received: 3, of steps 3, 6, 9. Use fewer"):
        checkpoints.last_checkpoints(directory, 20)
    for which in ("newest", 7, "best"):
        message = f"--keep_best 'best'. Received: {which!r}, with checkpoints of the steps 3, 6, 9"
        with raises(match=f"{message}.$"):
            checkpoints.find_checkpoint(directory, which)
    for which in ("latest", 3):
        with raises(match="Received: .*, with checkpoints of the steps none.$"):
            checkpoints.find_checkpoint(ModelDirectory(tmp_path), which)


def test_average_of_a_corrupt_checkpoint_raises(with_best):
    (with_best.checkpoints / "step-000006" / "model.npz").write_bytes(b"PK")
    with raises(match="Can't read the checkpoint .*step-000006 .*Use another one"):
        average.mean_weights(checkpoints.last_checkpoints(with_best, 2))


def test_program_writes_a_model_directory(each_run, tmp_path, capsys):
    is_pair = each_run.kind == "pair"
    flag, steps = ("--steps=3, 9", (3, 9)) if is_pair else ("--last=2", (6, 9))
    output, names = tmp_path / "average", [f"step-{step:06d}" for step in steps]
    directory = each_run.directory
    run(flag, model_dir=directory.path, output_dir=output)
    assert capsys.readouterr().out == (
        f"Wrote the mean of 2 checkpoints of {directory.path} to {output}: {', '.join(names)}\n"
    )
    copied = [directory.config_file, *directory.vocabulary_files]
    assert sorted(entry.name for entry in output.iterdir()) == sorted(
        ["model.keras", "run.json", *(file.name for file in copied)]
    )
    for file in copied:
        assert (output / file.name).read_bytes() == file.read_bytes()
    expected = average.mean_weights([directory.checkpoints / name for name in names])
    for key, variable in model_keys(ModelDirectory.open(output).load_model()).items():
        if variable.dtype == "float32":
            np.testing.assert_array_equal(variable, expected[key])
    averaged = {"model_dir": str(directory.path)}
    averaged["checkpoints"] = [f"checkpoints/{name}" for name in names]
    recorded = json.loads((output / "run.json").read_text())
    assert recorded == directory.read_run() | {"averaged": averaged}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "Expected either --last or --steps. Received: neither."),
        (["--last=2", "--steps=3"], "Expected either --last or --steps. Received: both."),
        (["--steps=3,4,5"], "Expected a checkpoint of .* Received: '5', with checkpoints of"),
        (["--steps=3,3"], "Expected different steps. Received: --steps=3,3."),
        (["--steps=9,best"], "Expected different steps. Received: --steps=9,best."),
        (["--last=2", "--output_dir=."], "Expected an --output_dir that does not exist."),
        (["--last=2", f"--output_dir={__file__}/out"], "Expected a file that can be read or"),
    ],
)
def test_invalid_flags_of_the_program_raise(flags, message, with_best, tmp_path):
    output = tmp_path / "out"
    run.fails(message, f"--model_dir={with_best.path}", f"--output_dir={output}", *flags)
    assert not output.exists()
