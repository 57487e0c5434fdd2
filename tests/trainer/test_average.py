"""Tests of `trainer.average`: the written model directory, and errors."""

import json
import shutil

import pytest
from absl import flags
from comparisons import assert_all_equal
from programs import Program

from trainer import average, evaluate, weights
from trainer.model_dir import ModelDirectory

run = Program(average)


@pytest.fixture(scope="module")
def model_dir(small_run, tmp_path_factory):
    """Returns the model directory of a run with checkpoints of the steps 2, 4 and 5."""
    path = tmp_path_factory.mktemp("runs") / "run"
    small_run(path)
    return path


@pytest.fixture(scope="module")
def averaged(model_dir):
    """Returns a model directory with the mean of the last two checkpoints of `model_dir`."""
    path = model_dir.parent / "average"
    run(f"--model_dir={model_dir}", "--last=2", f"--output_dir={path}")
    return path


def test_output_is_a_model_directory_with_mean_weights(averaged, model_dir):
    assert sorted(entry.name for entry in averaged.iterdir()) == [
        "config.json",
        "model.keras",
        "run.json",
        "vocab.model",
    ]
    original = ModelDirectory.open(model_dir)
    paths = weights.last_checkpoints(original, 2)
    expected = weights.average(original, paths).weights
    assert_all_equal(ModelDirectory.open(averaged).load_model().weights, expected)
    recorded = json.loads((averaged / "run.json").read_text())
    assert recorded.pop("averaged") == {
        "model_dir": str(model_dir),
        "checkpoints": ["checkpoints/step-000004", "checkpoints/step-000005"],
    }
    assert recorded == original.read_run()


def test_steps_flag_selects_checkpoints(model_dir, tmp_path, capsys):
    run(f"--model_dir={model_dir}", "--steps=2, 5", f"--output_dir={tmp_path / 'average'}")
    assert capsys.readouterr().out == (
        f"Wrote the mean of 2 checkpoints of {model_dir} to {tmp_path / 'average'}: "
        "step-000002, step-000005\n"
    )
    assert (
        ModelDirectory(tmp_path / "average").read_run()["averaged"]["checkpoints"][0]
        == "checkpoints/step-000002"
    )


@pytest.mark.slow
def test_output_works_with_evaluate_and_train(averaged, small_run, tmp_path, capsys):
    values = flags.FlagValues()
    evaluate.define_flags(values)
    arguments = [
        f"--model_dir={averaged}",
        f"--source={small_run.text['train_source']}",
        f"--target={small_run.text['train_target']}",
    ]
    evaluate.main(values(["evaluate", *arguments]), values)
    assert capsys.readouterr().out.startswith("test BLEU = ")
    small_run(
        tmp_path / "tuned", preset=None, init_from=str(averaged), vocab_size=None, train_steps=1
    )
    assert ModelDirectory.open(tmp_path / "tuned").read_run()["init_from"] == str(averaged)


def test_invalid_flags_raise(model_dir, averaged, tmp_path):
    model = f"--model_dir={model_dir}"
    output = f"--output_dir={tmp_path / 'out'}"
    run.fails("Expected either --last or --steps. Received: neither.", model, output)
    run.fails(
        "Expected either --last or --steps. Received: both.", model, output, "--last=2", "--steps=2"
    )
    run.fails(
        "Expected a checkpoint of step 3 in .*Received: checkpoints of steps 2, 4, 5.",
        model,
        output,
        "--steps=2,3",
    )
    run.fails("Expected the step of a checkpoint, .*Received: 'x'.", model, output, "--steps=2,x")
    run.fails("Expected different steps. Received: --steps=2,2.", model, output, "--steps=2,2")
    assert list(tmp_path.iterdir()) == []
    shutil.copytree(model_dir, tmp_path / "copy")
    copy, step = ModelDirectory.open(tmp_path / "copy"), "step-000005"
    shutil.copytree(copy.checkpoints / step, copy.best / step)
    state = json.loads((copy.best / step / "state.json").read_text())
    (copy.best / step / "state.json").write_text(json.dumps(state | {"dev_bleu": 3.5}))
    run.fails(
        "Expected different steps. Received: --steps=5,best.",
        f"--model_dir={copy.path}",
        output,
        "--steps=5,best",
    )
    shutil.rmtree(copy.path)
    run.fails(
        "Expected a model directory, .*/absent, which does not exist.",
        f"--model_dir={tmp_path / 'absent'}",
        output,
        "--last=1",
    )
    assert list(tmp_path.iterdir()) == []
    run.fails(
        "Expected an --output_dir that does not exist. Received: .*average, which exists.",
        model,
        "--last=2",
        f"--output_dir={averaged}",
    )
    (tmp_path / "file").touch()
    message = (
        r"Expected an --output_dir that can be written. Received: .*/file/out \(.*\). Choose "
        r"another."
    )
    run.fails(message, model, "--last=2", f"--output_dir={tmp_path / 'file' / 'out'}")


def test_training_in_an_average_exits(averaged, small_run):
    before = (averaged / "model.keras").read_bytes()
    message = small_run.fails(averaged)
    assert f"Received: {averaged}, which has a model and no checkpoint. Start from" in message
    assert (averaged / "model.keras").read_bytes() == before
