import contextlib
import errno
import functools
import io
import json
import os
import re

import keras
import numpy as np
import pytest
import train_small
from absl import flags
from saved_runs import assert_model_equals_last_checkpoint
from subprocesses import run_python

from t2t_relpos.models import PRESETS
from trainer import train
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.model_dir import ModelDirectory
from trainer.training.preparation import Preparation
from trainer.training.training_run import TrainingRun

PROGRAM = train_small.__file__


@pytest.fixture(scope="module")
def trained_and_output(tmp_path_factory, small_run):
    """Returns the directory of a run and the text that the run printed."""
    directory = tmp_path_factory.mktemp("trained") / "model"
    with contextlib.redirect_stdout(io.StringIO()) as output:
        small_run(directory, **small_run.dev)
    return directory, output.getvalue()


@pytest.fixture(scope="module")
def trained(trained_and_output):
    return trained_and_output[0]


def test_model_directory_is_complete(trained):
    assert sorted(entry.name for entry in trained.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.json",
        "evaluations.json",
        "ids",
        "logs",
        "model.keras",
        "run.json",
        "vocab.model",
    ]
    assert [entry.name for entry in sorted((trained / "checkpoints").iterdir())] == [
        "step-000002",
        "step-000004",
        "step-000005",
    ]
    assert {entry.name for entry in (trained / "logs").iterdir()} == {"train", "dev"}
    recorded = json.loads((trained / "run.json").read_text())
    assert (recorded["preset"], recorded["adam_beta2"], recorded["warmup_steps"]) == (
        "small",
        0.98,
        5,
    )


def test_model_and_tokenizer_can_be_loaded(trained):
    directory = ModelDirectory.open(trained)
    model, tokenizer = directory.load_model(), directory.load_tokenizer()
    assert tokenizer.vocab_size == model.config.vocab_size == 40
    assert model.config.to_dict() == directory.read_config()["architecture"]
    assert_model_equals_last_checkpoint(trained)


def test_finished_run_changes_nothing(trained, small_run, capfd):
    before = (trained / "model.keras").read_bytes()
    small_run(trained)
    assert "Training is already complete: step 5 of 5." in capfd.readouterr().out
    assert (trained / "model.keras").read_bytes() == before


def test_training_prints_status_lines(trained_and_output):
    directory, out = trained_and_output
    for line in (
        "Training a vocabulary of 40 pieces.",
        "  learning_rate = 2.0\n",
        "Training data: 12 of 12 pairs are used",
        "Parameters: ",
        "\nDevices: 1 CPU\n",
        "Training from step 0 to 5.",
        "step 2/5: loss ",
        "source+target tokens/s",
        "dev loss",
        f"checkpoint {directory / 'checkpoints' / 'step-000002'}",
        f"Trained model: {directory}/model.keras (step 5)",
    ):
        assert line in out
    parameters = sum(
        variable.value.numpy().size
        for variable in ModelDirectory(directory).load_model().trainable_variables
    )
    assert f"Parameters: {parameters:,}\n" in out


def test_existing_vocabulary_is_used(tmp_path, trained, small_run):
    (tmp_path / "vocab.model").write_bytes((trained / "vocab.model").read_bytes())
    run = TrainingRun(small_run.config(tmp_path, vocab_size=None))
    run.directory.unlock()
    assert json.loads((tmp_path / "run.json").read_text())["vocab_size"] == 40
    assert "\nVocabulary: 40 pieces (existing)\n" in run.describe()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"preset": "smal"},
            "Expected preset to be one of shaw_base, shaw_big, transformer_base.*"
            r"Received: smal\. Did you mean small\?",
        ),
        (
            {"model_dir": "one_line/model"},
            "Expected a model directory that can be written. Received: ",
        ),
        ({"train_target": "one_line"}, "Received: 12 and 1 lines"),
        (
            {"max_length": 2},
            r"Expected training pairs of at most 2 tokens per side\. Received: none\. "
            "0 of 12 pairs are used",
        ),
        (
            {"batch_tokens": 3},
            "Expected batch_tokens of at least 16, the bucket of the longest pair",
        ),
        (
            {"preset": "transformer_tiny", "max_relative_position": 5},
            r"Expected max_relative_position only with relative positions\. Received: 5 with the "
            r"position sinusoidal\.",
        ),
        (
            {"early_stopping": 2},
            r"Expected a dev set with evaluate_every, dev_bleu, keep_best or early_stopping\. "
            r"Received: none\. Give --dev_source",
        ),
        ({"evaluate_every": 3}, "Expected a dev set with evaluate_every"),
    ],
    ids=str,
)
def test_errors_exit_with_a_message(settings, message, small_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one_line").write_text("eine Zeile\n")
    assert re.search(message, small_run.fails("model", **settings))


def test_settings_are_checked_before_the_vocabulary_is_trained(tmp_path, small_run):
    small_run.fails(tmp_path / "model", preset="transformer_tiny", max_relative_position=5)
    assert not (tmp_path / "model").exists()


def test_resume_with_other_settings_exits(trained, small_run):
    message = small_run.fails(trained, batch_tokens=31, learning_rate=0.25)
    assert "Expected a model directory created with the settings of this run." in message
    assert (
        "batch_tokens is 30 in the directory and 31 in this run; learning_rate is 2.0 in the "
        "directory and 0.25 in this run" in message
    )


def test_resume_with_another_architecture_exits(trained, small_run, tmp_path):
    for name in ("config.json", "vocab.model"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    message = small_run.fails(tmp_path, preset="transformer_tiny")
    assert "Expected a model directory created with the configuration of this run." in message
    assert "hidden_dim is 12 in the directory and 128 in this run" in message
    assert 'position is "relative" in the directory and "sinusoidal" in this run' in message


def test_resume_compares_architectures_and_not_presets(trained, small_run, monkeypatch, capfd):
    """Explicit settings may equal those of the preset. A preset may change between runs."""
    dropout = PRESETS["small"]["dropout"]
    small_run(trained, dropout=dropout, position="relative")
    monkeypatch.setitem(PRESETS["small"], "dropout", 0.25)
    small_run(trained, dropout=dropout)
    assert capfd.readouterr().out.count("Training is already complete: step 5 of 5.") == 2
    assert f"dropout is {dropout} in the directory and 0.25 in this run" in small_run.fails(trained)


def test_resume_with_another_vocab_size_exits(trained, small_run):
    message = small_run.fails(trained, vocab_size=37)
    expected = f"Expected the vocab_size of {trained}, 40. Received: 37. Leave --vocab_size out"
    assert expected in message


def test_resume_with_a_changed_vocabulary_exits(trained, small_run, tmp_path):
    (tmp_path / "config.json").write_bytes((trained / "config.json").read_bytes())
    SentencePieceTokenizer.train(reversed(small_run.target), 40).save(tmp_path / "vocab.model")
    assert "Expected the vocabulary that the model was trained with." in small_run.fails(tmp_path)


def test_write_error_exits(tmp_path, small_run, monkeypatch):
    def fail(*arguments, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x/evaluations.json")

    monkeypatch.setattr(keras.Model, "fit", fail)
    assert small_run.fails(tmp_path) == (
        "trainer.train: Can't write x/evaluations.json: No space left on device. Free space or "
        "grant write permission. Rerun the same command to resume from step 0."
    )


def test_resume_with_different_text_warns(trained, small_run, tmp_path, caplog):
    (tmp_path / "source").write_text("\n".join(small_run.source) + "\n")
    small_run(trained, train_source=str(tmp_path / "source"))
    assert "Resuming with different data: train_source was" in caplog.text
    small_run(trained, **small_run.dev)
    changed = {"dev_source": str(tmp_path / "source"), "dev_target": small_run.dev["dev_target"]}
    small_run(trained, **changed)
    expected = f"dev_source was {small_run.dev['dev_source']} and is now {tmp_path / 'source'}"
    assert f"Resuming with different data: {expected}" in caplog.text


def test_second_interrupt_exits_immediately(tmp_path, small_run, monkeypatch, capsys):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.Model, "fit", interrupted)
    with pytest.raises(SystemExit) as stopped:
        small_run(tmp_path)
    assert stopped.value.code == 130
    assert "interrupted. Rerun the same command to resume from step 0." in capsys.readouterr().err


def test_interrupt_before_the_first_step_exits(tmp_path, small_run, monkeypatch, capsys):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(SentencePieceTokenizer, "train", interrupted)
    text = [f"--{name}={value}" for name, value in small_run.text.items()]
    with pytest.raises(SystemExit) as stopped:
        train.main(["train"], parsed("--preset=small", f"--model_dir={tmp_path / 'm'}", *text))
    assert stopped.value.code == 130
    message = "\ntrainer.train: interrupted. Rerun the same command.\n"
    assert capsys.readouterr().err.endswith(message)
    assert not (tmp_path / "m").exists()


def test_learned_positions_cover_max_length(tmp_path, small_run):
    config = small_run.config(tmp_path, position="learned", max_length=300)
    prepared = Preparation(config, ModelDirectory.create(tmp_path))
    assert prepared.architecture.max_length == 300
    assert ModelDirectory(tmp_path).read_config()["architecture"]["max_length"] == 300


def test_missing_flags_exit():
    with pytest.raises(SystemExit, match="trainer.train: Expected training data. Received: none"):
        train.main(["train"], parsed("--preset=tiny", "--model_dir=x"))


def test_dry_run_writes_no_files(tmp_path, small_run, capsys):
    text = [f"--{name}={value}" for name, value in small_run.text.items()]
    train.main(
        ["train"],
        parsed(
            "--preset=small",
            f"--model_dir={tmp_path / 'model'}",
            "--vocab_size=40",
            "--dry_run",
            *text,
        ),
    )
    assert "Memory per device:" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def parsed(*arguments):
    values = flags.FlagValues()
    train.define_flags(values)
    values(["train", *arguments])
    return values


@pytest.fixture
def command(synthetic_files):
    """Returns `command(directory, *flags)`: arguments of Python to train in a separate process."""
    return functools.partial(make_command, synthetic_files)


def make_command(files, directory, *arguments):
    return [
        PROGRAM,
        "--preset=small",
        f"--model_dir={directory}",
        *files,
        "--deterministic",
        "--checkpoint_every=3",
        *arguments,
    ]


def test_misspelled_flag_is_reported(command, tmp_path):
    done = run_python(*command(tmp_path, "--warmup_stepz=3"), returncode=1)
    assert "Unknown command line flag 'warmup_stepz'. Did you mean: warmup_steps" in done.stderr
    assert "Traceback" not in done.stderr


def test_exit_code_of_errors_is_1(command, tmp_path):
    done = run_python(*command(tmp_path, "--preset=smal"), returncode=1)
    assert "\ntrainer.train: Expected preset to be one of" in "\n" + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_training_on_two_devices_resumes(command, tmp_path):
    devices = ("--strategy=mirrored", "--logical_devices=2", "--keep_best=1")
    for steps in (3, 5):
        run_python(*command(tmp_path / "two", f"--train_steps={steps}", *devices))
    recorded = json.loads((tmp_path / "two" / "run.json").read_text())
    assert (recorded["strategy"], recorded["train_steps"]) == ("mirrored", 5)
    assert (
        np.load(tmp_path / "two" / "checkpoints" / "step-000005" / "optimizer.npz")["iteration"]
        == 5
    )
    assert [
        entry["step"] for entry in json.loads((tmp_path / "two" / "evaluations.json").read_text())
    ] == [3, 5]
    assert len(list((tmp_path / "two" / "best").glob("step-*/model.npz"))) == 1
    assert_model_equals_last_checkpoint(tmp_path / "two")
