"""Tests of `trainer.train`: files, printed lines, and errors before the first step."""

import errno
import json
import os
import re

import keras
import pytest
from absl import flags
from programs import Program
from saved_runs import assert_model_equals_last_checkpoint

from t2t_relpos.models import PRESETS
from trainer import train
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.model_dir import ModelDirectory
from trainer.training.preparation import Preparation
from trainer.training.training_run import TrainingRun

run = Program(train)


def test_model_directory_is_complete(finished_run):
    assert sorted(entry.name for entry in finished_run.iterdir()) == [
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
    assert [entry.name for entry in sorted((finished_run / "checkpoints").iterdir())] == [
        "step-000003",
        "step-000006",
        "step-000009",
    ]
    assert {entry.name for entry in (finished_run / "logs").iterdir()} == {"train", "dev"}
    recorded = json.loads((finished_run / "run.json").read_text())
    expected = {"preset": "small", "adam_beta2": 0.98, "warmup_steps": 5, "strategy": "one"}
    assert {name: recorded[name] for name in expected} == expected


def test_model_and_tokenizer_can_be_loaded(finished_run):
    directory = ModelDirectory.open(finished_run)
    model, tokenizer = directory.load_model(), directory.load_tokenizer()
    assert tokenizer.vocab_size == model.config.vocab_size == 40
    assert model.config.to_dict() == directory.read_config()["architecture"]
    assert_model_equals_last_checkpoint(finished_run)


def test_training_prints_status_lines(finished_run):
    out = (finished_run.parent / "output").read_text()
    for line in (
        "Training a vocabulary of 40 pieces.",
        "  learning_rate = 2.0\n",
        "Training data: 12 of 12 pairs are used",
        "Parameters: ",
        "\nDevices: 1 CPU\n",
        "Training from step 0 to 9.",
        "step 2/9: loss ",
        "source+target tokens/s",
        "dev loss",
        f"checkpoint {finished_run / 'checkpoints' / 'step-000003'}",
        f"Trained model: {finished_run}/model.keras (step 9)",
    ):
        assert line in out
    parameters = sum(
        variable.value.numpy().size
        for variable in ModelDirectory(finished_run).load_model().trainable_variables
    )
    assert f"Parameters: {parameters:,}\n" in out


def test_existing_vocabulary_is_used(tmp_path, finished_run, small_run):
    (tmp_path / "vocab.model").write_bytes((finished_run / "vocab.model").read_bytes())
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
        (
            {"train_source": "missing"},
            r"Expected a text file at .*/missing\. Received: no such file",
        ),
    ],
    ids=str,
)
def test_errors_exit_with_a_message(settings, message, small_run, tmp_path):
    """All settings except `batch_tokens` are checked before the first file is written."""
    assert re.search(message, small_run.fails(tmp_path / "model", **settings))
    assert (tmp_path / "model").exists() == ("batch_tokens" in settings)


def test_write_error_exits(tmp_path, small_run, monkeypatch):
    def fail(*arguments, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x/evaluations.json")

    monkeypatch.setattr(keras.Model, "fit", fail)
    assert small_run.fails(tmp_path) == (
        "trainer.train: Can't write x/evaluations.json: No space left on device. Free space or "
        "grant write permission. Rerun the same command to resume from step 0."
    )


def interrupted(*arguments, **named):
    raise KeyboardInterrupt


def test_second_interrupt_exits_immediately(tmp_path, small_run, monkeypatch, capsys):
    monkeypatch.setattr(keras.Model, "fit", interrupted)
    with pytest.raises(SystemExit) as stopped:
        small_run(tmp_path)
    assert stopped.value.code == 130
    assert "interrupted. Rerun the same command to resume from step 0." in capsys.readouterr().err


def test_interrupt_before_the_first_step_exits(tmp_path, small_run, monkeypatch, capsys):
    monkeypatch.setattr(SentencePieceTokenizer, "train", interrupted)
    with pytest.raises(SystemExit) as stopped:
        run(preset="small", model_dir=tmp_path / "m", **small_run.text)
    assert stopped.value.code == 130
    message = "\ntrainer.train: interrupted. Rerun the same command.\n"
    assert capsys.readouterr().err.endswith(message)
    assert not (tmp_path / "m").exists()


def test_learned_positions_cover_max_length(tmp_path, small_run):
    config = small_run.config(tmp_path, position="learned", max_length=300)
    prepared = Preparation(config, ModelDirectory.create(tmp_path))
    assert prepared.architecture.max_length == 300
    assert ModelDirectory(tmp_path).read_config()["architecture"]["max_length"] == 300


def test_invalid_flags_exit():
    run.fails("Expected training data. Received: none", preset="tiny", model_dir="x")
    message = "Unknown command line flag 'warmup_stepz'. Did you mean: warmup_steps"
    with pytest.raises(flags.UnrecognizedFlagError, match=message):
        run("--warmup_stepz=3")


def test_dry_run_writes_no_files(tmp_path, small_run, capsys):
    model_dir = tmp_path / "model"
    run("--dry_run", preset="small", model_dir=model_dir, vocab_size=40, **small_run.text)
    assert "Memory per device:" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_resume_with_other_settings_exits(finished, small_run, rerun):
    message = rerun(small_run.fails, batch_tokens=31, learning_rate=0.25)
    assert "Expected a model directory created with the settings of this run." in message
    assert (
        "batch_tokens is 30 in the directory and 31 in this run; learning_rate is 2.0 in the "
        "directory and 0.25 in this run" in message
    )


def test_resume_with_another_architecture_exits(finished, small_run, rerun):
    (finished / "run.json").unlink()
    message = rerun(small_run.fails, preset="transformer_tiny")
    assert "Expected a model directory created with the configuration of this run." in message
    assert "hidden_dim is 12 in the directory and 128 in this run" in message
    assert 'position is "relative" in the directory and "sinusoidal" in this run' in message


def test_resume_compares_architectures_and_not_presets(small_run, rerun, monkeypatch, capfd):
    """Explicit settings may equal those of the preset. A preset may change between runs."""
    dropout = PRESETS["small"]["dropout"]
    rerun(small_run, dropout=dropout, position="relative")
    monkeypatch.setitem(PRESETS["small"], "dropout", 0.25)
    rerun(small_run, dropout=dropout)
    assert capfd.readouterr().out.count("Training is already complete: step 9 of 9.") == 2
    message = rerun(small_run.fails)
    assert f"dropout is {dropout} in the directory and 0.25 in this run" in message


def test_resume_with_another_vocab_size_exits(finished, small_run, rerun):
    message = rerun(small_run.fails, vocab_size=37)
    expected = f"Expected the vocab_size of {finished}, 40. Received: 37. Leave --vocab_size out"
    assert expected in message


def test_resume_with_different_text_warns(small_run, rerun, tmp_path, caplog):
    files = {name: str(tmp_path / "source") for name in ("train_source", "dev_source")}
    (tmp_path / "source").write_text("\n".join(small_run.source) + "\n")
    rerun(small_run, **files)
    for name, recorded in (small_run.text | small_run.dev).items():
        warning = f"Resuming with different data: {name} was {recorded} and is now "
        assert (warning in caplog.text) == (name in files)
        assert name not in files or warning + files[name] in caplog.text
