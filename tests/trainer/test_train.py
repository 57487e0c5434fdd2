"""Tests of `trainer.train`: files, printed lines, and errors before the first step."""

import errno
import itertools
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import keras
import pytest
from programs import Program
from saved_runs import assert_model_equals_last_checkpoint

from t2t_relpos.models import PRESETS, TransformerConfig
from t2t_relpos.t2t import config_from_hparams, parse_hparams
from trainer import atomic_files, train
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translator
from trainer.training import preparation
from trainer.training.dry_run import forecast
from trainer.training.training_run import TrainingRun

FINISHED = {"checkpoint_every": 3, "evaluate_every": 4, "train_steps": 9}
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


SIZES = "num_hidden_layers=1,hidden_size=64,filter_size=24"


def test_hparams_give_the_architecture_of_a_run_that_resumes(small_run, tmp_path, capsys):
    settings = {"preset": None, "hparams_set": "transformer_base", "hparams": SIZES}
    small_run(tmp_path / "model", **settings, train_steps=2, clip_norm=1.0)
    directory = ModelDirectory.open(tmp_path / "model")
    hparams = parse_hparams("transformer_base", SIZES)
    expected = config_from_hparams(hparams, vocab_size=40, target_space_id=None)
    assert directory.load_model().config == expected
    assert directory.read_run()["label_smoothing"] == 0.1
    small_run(tmp_path / "model", **settings, train_steps=3, clip_norm=1.0)
    assert "Training from step 2 to 3." in capsys.readouterr().out
    changed = settings | {"hparams": f"{SIZES},num_heads=4"}
    assert "hparams is " in small_run.fails(tmp_path / "model", **changed, clip_norm=1.0)
    # As --dry_run and a child see it.
    text = forecast(small_run.config(tmp_path / "new", **settings))
    assert "hidden_dim = 64" in text and not (tmp_path / "new").exists()
    inherited = {"preset": None, "vocab_size": None, "init_from": str(tmp_path / "model")}
    small_run(tmp_path / "child", **inherited, train_steps=1)
    assert ModelDirectory.open(tmp_path / "child").load_model().config == expected


def test_config_file_gives_the_architecture_of_a_run_that_resumes(small_run, tmp_path):
    config = TransformerConfig(
        vocab_size=40,
        num_encoder_layers=1,
        num_decoder_layers=2,
        hidden_dim=12,
        intermediate_dim=7,
        num_heads=3,
        position="learned",
        max_length=31,
    )
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()))
    settings = {"preset": None, "vocab_size": None, "config": str(file)}
    small_run(tmp_path / "model", **settings, train_steps=2)
    directory = ModelDirectory.open(tmp_path / "model")
    assert directory.load_model().config == config
    assert directory.read_run()["max_length"] == 31
    small_run(tmp_path / "model", **settings, train_steps=3)
    changes = {"hidden_dim is 12": {"hidden_dim": 24}, "'hiden_dim'. Did you": {"hiden_dim": 12}}
    for message, change in changes.items():
        file.write_text(json.dumps(config.to_dict() | change))
        assert message in small_run.fails(tmp_path / "model", **settings)


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


@pytest.fixture
def vocabulary(finished_run, tmp_path):
    """Returns the path of a SentencePiece model of 40 pieces."""
    return str(shutil.copy(finished_run / "vocab.model", tmp_path / "mine.model"))


def test_given_vocabulary_is_used_by_a_run_that_resumes(tmp_path, vocabulary, small_run, capsys):
    settings = {"vocab": vocabulary, "vocab_size": None}
    for steps in (1, 2):
        small_run(tmp_path / "model", **settings, train_steps=steps)
    out = capsys.readouterr().out
    assert "Training from step 1 to 2." in out and "Training a vocabulary" not in out
    assert out.count("\nVocabulary: 40 pieces (existing)\n") == 2
    directory = ModelDirectory.open(tmp_path / "model")
    assert directory.read_run()["vocab_size"] == 40
    assert directory.vocabulary_file().read_bytes() == Path(vocabulary).read_bytes()
    # A resumed run may leave the flag out, but not give another file.
    small_run(directory.path, vocab_size=None, train_steps=3)
    SentencePieceTokenizer.train(small_run.target, vocab_size=37).save(vocabulary)
    message = small_run.fails(directory.path, **settings)
    assert "Expected a model directory created with the vocabulary of this run." in message
    assert " vocab.model sha256 is " in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 41}, "Expected the vocab_size of {}, 40. Received: 41. Leave --vocab_size"),
        (
            {"vocab_size": None, "source_vocab_size": 40},
            "source_vocab_size of {}, none (one vocabulary). Received: 40. Leave --source_vocab",
        ),
        ({"byte_fallback": True}, "byte_fallback of {}, False. Received: True. Leave --byte_fall"),
    ],
)
def test_settings_that_differ_from_a_given_vocabulary_exit(
    tmp_path, vocabulary, small_run, settings, message
):
    received = small_run.fails(tmp_path / "model", vocab=vocabulary, **settings)
    assert message.format(vocabulary) in received and "or give another --vocab." in received
    assert not (tmp_path / "model").exists()


def test_missing_vocabulary_exits(tmp_path, small_run):
    message = small_run.fails(tmp_path / "model", vocab="missing.model")
    assert "Expected a SentencePiece model at missing.model. Received: no such file." in message


@pytest.mark.parametrize(
    ("name", "flag"), [("vocab.model", "--vocab"), ("vocab.source.model", "--source_vocab")]
)
def test_vocabulary_that_no_run_has_written_is_not_replaced(
    tmp_path, vocabulary, small_run, finished_run, name, flag
):
    directory = ModelDirectory.create(tmp_path / "model")
    prepare_run = lambda **settings: preparation.prepare(
        small_run.config(directory.path, **settings), directory
    )
    prepare_run()
    content = b"another vocabulary"
    inherited = dict.fromkeys(("preset", "vocab_size", "batch_tokens", "checkpoint_every"))
    file = directory.path / name
    for settings in ({}, {"vocab": vocabulary}, inherited | {"init_from": str(finished_run)}):
        file.write_bytes(content)
        message = small_run.fails(directory.path, **settings)
        assert message.endswith(
            "Expected a --model_dir without vocabularies that no run has written. Received: "
            f"{file}. Move it to another folder. To train with it, give its new path with {flag}."
        )
        assert file.read_bytes() == content
    file.unlink()
    prepare_run()
    # Earlier versions took a user's file, and recorded no `made_from`.
    config = directory.read_config()
    del config["tokenizer"]["made_from"]
    directory.config_file.write_text(json.dumps(config))
    assert f"Received: {directory.vocabulary_file()}. Move" in small_run.fails(directory.path)


def test_start_that_trained_nothing_is_replaced(tmp_path, vocabulary, small_run, monkeypatch):
    directory = ModelDirectory.create(tmp_path / "model")

    def prepare(*, is_chief=True, **settings):
        config = small_run.config(directory.path, **settings)
        return preparation.prepare(config, directory, is_chief=is_chief)

    def fail(*arguments):
        raise ValueError("at step 0")

    with monkeypatch.context() as patched:
        patched.setattr(TrainingRun, "fit", fail)
        with pytest.raises(ValueError, match="at step 0"):
            small_run(directory.path, vocab=vocabulary)
    first = directory.read_run()
    assert first["vocab"] == vocabulary and directory.load_tokenizer().vocab_size == 40
    changes = {"batch_tokens": 60, "dropout": 0.25, "max_relative_position": 3, "seed": 7}
    assert prepare(vocab_size=37, **changes).tokenizers.target.vocab_size == 37
    # Other workers use the vocabulary of the chief.
    assert prepare(is_chief=False, vocab_size=None, **changes).config.vocab_size == 37
    small_run(directory.path, vocab_size=41, **changes)
    recorded = directory.read_run()
    assert {name: recorded[name] for name in changes} == changes
    assert recorded["vocab"] is None and directory.load_tokenizer().vocab_size == 41
    # A run that has trained keeps its settings.
    message = small_run.fails(directory.path, vocab_size=41, **changes | {"batch_tokens": 30})
    assert " batch_tokens is 60 in the directory and 30 in this run" in message


def test_replaced_files_are_printed(tmp_path, small_run, capsys):
    directory = ModelDirectory.create(tmp_path / "model")
    for size in (40, 37):
        preparation.prepare(small_run.config(directory.path, vocab_size=size), directory)
    assert capsys.readouterr().out.splitlines() == [
        "Training a vocabulary of 40 pieces.",
        "Training a vocabulary of 37 pieces.",
        f"{directory.path}: replacing config.json, vocab.model of a start that trained nothing.",
    ]


def test_start_of_an_earlier_version_is_replaced(tmp_path, small_run):
    directory = ModelDirectory.create(tmp_path / "model")
    prepare_run = lambda **settings: preparation.prepare(
        small_run.config(directory.path, **settings), directory
    )
    prepare_run()
    config = directory.read_config()
    config["tokenizer"]["made_from"] = "5e8b0c"  # a digest of the text in version 1.0.0rc1
    directory.config_file.write_text(json.dumps(config))
    assert prepare_run(vocab_size=37).config.vocab_size == 37
    assert directory.load_tokenizer().vocab_size == 37


@pytest.mark.parametrize("folder", ["checkpoints", "best"])
def test_run_with_any_checkpoint_keeps_its_vocabulary(tmp_path, small_run, folder):
    """A run that is killed before its first checkpoint may have one in `best`."""
    directory = ModelDirectory.create(tmp_path / "model")
    prepared = preparation.prepare(small_run.config(directory.path), directory)
    (directory.path / folder / "step-000001").mkdir(parents=True)
    config = small_run.config(directory.path, vocab_size=None)
    assert not preparation.prepare(config, directory).is_new
    message = small_run.fails(directory.path, vocab_size=37)
    assert "Expected the vocab_size of" in message and "or give another --model_dir." in message
    sha256 = directory.read_config()["tokenizer"]["sha256"]
    assert sha256 == prepared.tokenizers.target.sha256


@pytest.mark.parametrize("write", range(1, 5))
def test_start_that_was_killed_at_any_write_can_be_repeated(
    tmp_path, small_run, monkeypatch, write
):
    """The files are config.json, two vocabularies and the ids."""
    directory = ModelDirectory.create(tmp_path / "model")
    prepare_run = lambda **settings: preparation.prepare(
        small_run.config(directory.path, **settings), directory
    )
    for sizes in ({}, {"source_vocab_size": 31}):
        writes = itertools.count(1)

        def kill(path, atomic=atomic_files._temporary_directory, writes=writes):
            if next(writes) == write:
                raise KeyboardInterrupt
            return atomic(path)

        with monkeypatch.context() as patched:
            patched.setattr(atomic_files, "_temporary_directory", kill)
            with pytest.raises(KeyboardInterrupt):
                prepare_run(**{"source_vocab_size": 33} | sizes)
    prepared = prepare_run(source_vocab_size=35)
    assert directory.load_tokenizers().sizes == {"vocab_size": 40, "source_vocab_size": 35}
    assert prepared.is_new


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "smal"}, "Expected preset to be one of shaw_base, shaw_big,"),
        ({"batch_tokens": 3}, "Expected batch_tokens of at least 16, the bucket of the longest"),
        (
            {"preset": "transformer_tiny", "max_relative_position": 5},
            r"Expected max_relative_position only with relative positions\. Received: 5 with the "
            r"position sinusoidal\.",
        ),
        ({"early_stopping": 2}, "Expected a dev set with evaluate_every, dev_bleu, keep_best or"),
        ({"evaluate_every": 3}, "Expected a dev set with evaluate_every"),
        ({"train_source": "missing"}, r"Expected a text file at .*/missing\. Received: no such"),
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
        "trainer.train: Expected a file that can be read or written. Received: x/evaluations.json "
        "(No space left on device). Free space. Rerun the same command to resume from step 0."
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


def test_run_with_two_distances_resumes_and_translates(tmp_path, small_run, eager_searches):
    for steps in (2, 3):
        small_run(tmp_path, max_relative_position=(3, 2), train_steps=steps)
    directory = ModelDirectory.open(tmp_path)
    assert directory.read_config()["architecture"]["max_relative_position"] == [3, 2]
    assert directory.read_run()["max_relative_position"] == [3, 2]
    message = small_run.fails(tmp_path, max_relative_position=3, train_steps=4)
    assert "max_relative_position is [3, 2] in the directory and 3 in this run" in message

    model, tokenizer = directory.load_model(), directory.load_tokenizer()
    assert model.encoder_layers[0].self_attention.key_embedding.table.shape == (6, 4)
    module = TranslationModule.from_model_dir(tmp_path, TranslationSettings(extra_length=5))
    (answer,) = Translator(module.serve, module)(small_run.source[:1])
    source = tokenizer.tokenize(small_run.source[:1]).to_tensor()
    ids = model.generate(source, max_length=source.shape[1] + 5)
    assert tokenizer.detokenize(ids).numpy().tolist() == [answer.text]


def test_learned_positions_cover_max_length(tmp_path, small_run):
    config = small_run.config(tmp_path, position="learned", max_length=300)
    prepared = preparation.prepare(config, ModelDirectory.create(tmp_path))
    assert prepared.architecture.max_length == 300
    assert ModelDirectory(tmp_path).read_config()["architecture"]["max_length"] == 300


def test_invalid_flags_exit():
    run.fails("Expected training data. Received: none", preset="tiny", model_dir="x")


def test_dry_run_writes_no_files(tmp_path, small_run, capsys):
    model_dir = tmp_path / "model"
    run("--dry_run", preset="small", model_dir=model_dir, vocab_size=40, **small_run.text)
    assert "Memory per device:" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"batch_tokens": 31, "learning_rate": 0.25},
            "Expected a model directory created with the settings of this run. .* batch_tokens is "
            "30 in the directory and 31 in this run; learning_rate is 2.0 in the directory and 0",
        ),
        ({"vocab_size": 37}, "Expected the vocab_size of .*, 40. Received: 37. Leave --vocab_size"),
        ({"byte_fallback": True}, "Expected the byte_fallback of .*, False. Received: True. Leave"),
        ({"normalization": "nfkc"}, "Expected the normalization of .*, nmt_nfkc. Received: nfkc."),
        ({"train_steps": 2}, "Expected --train_steps of at least 9, the step of the last checkp"),
    ],
)
def test_resume_with_other_settings_exits(small_run, finished, rerun, settings, message):
    before = sorted(path.name for path in finished.rglob("*"))
    assert re.search(message, rerun(small_run.fails, **settings))
    assert sorted(path.name for path in finished.rglob("*")) == before


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


def test_resume_compares_contents_of_text_files(finished, small_run, rerun, tmp_path, caplog):
    """Neither paths nor times matter."""
    files = {name: str(tmp_path / "source") for name in ("train_source", "dev_source")}
    (tmp_path / "source").write_text("\n".join(small_run.source) + "\n")
    rerun(small_run, **files)
    assert "different data" not in caplog.text
    status = (tmp_path / "source").stat()
    (tmp_path / "source").write_text("\n".join(small_run.source).replace("dog", "cow") + "\n")
    os.utime(tmp_path / "source", ns=(status.st_atime_ns, status.st_mtime_ns))
    rerun(small_run, **files)
    for split in ("training text", "dev set"):
        warning = f"Resuming with different data: the {split} of this run has changed. It is now "
        assert f"{warning}{tmp_path}/source and " in caplog.text
    # Runs of earlier versions recorded only the names.
    caplog.clear()
    directory = ModelDirectory(finished)
    directory.write_run({k: v for k, v in directory.read_run().items() if k != "contents"})
    rerun(small_run, **files | {"train_source": small_run.text["train_source"]})
    assert "the training text of this run" in caplog.text and "dev set" not in caplog.text


def test_resumed_run_keeps_the_limit_of_its_lengths(small_run, finished, rerun, capsys):
    """The implementations of attention depend on it. Runs of earlier versions had none."""
    directory = ModelDirectory(finished)
    run = directory.read_run()
    assert run["first_step_seconds"] > 0
    for recorded, kept in ((run["longest"] + 30, run["longest"] + 30), (None, None)):
        directory.write_run(run | {"longest": recorded, "first_step_seconds": 7.4})
        rerun(small_run)
        found = directory.read_run()
        assert (found["longest"], found["first_step_seconds"]) == (kept, 7.4)
    del run["longest"]
    directory.write_run(run)
    rerun(small_run, train_steps=10)
    assert directory.read_run()["longest"] is None
    assert "first training step. It took " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recorded", "given"),
    [
        ({"best_metric": "dev_chrf", "bleu_tokenize": "13a"}, {"best_metric": "dev_bleu"}),
        ({"best_metric": "dev_bleu", "bleu_tokenize": "zh"}, {"bleu_tokenize": "13a"}),
        ({}, {"best_metric": "dev_chrf"}),
    ],
)
def test_resumed_run_keeps_its_metric(tmp_path, small_run, finished, rerun, recorded, given):
    """Runs of earlier versions recorded no metric. They compared dev BLEU."""
    directory = ModelDirectory(finished)
    names = ("best_metric", "bleu_tokenize")
    run = {name: value for name, value in directory.read_run().items() if name not in names}
    directory.write_run(run | {"dev_bleu": True} | recorded)
    prepare = lambda **settings: preparation.prepare(
        small_run.config(finished, **settings), directory
    )
    settings = FINISHED | small_run.dev | {"keep_best": 1}
    kept = prepare(**settings).config
    assert (kept.best_metric, kept.bleu_tokenize) == (
        recorded.get("best_metric", "dev_bleu"),
        recorded.get("bleu_tokenize", "13a"),
    )
    ((name, value),) = given.items()
    message = f'{name} is "{getattr(kept, name)}" in the directory and "{value}" in this run'
    with pytest.raises(ValueError, match=message):
        prepare(**settings, **given)
    directory.write_run(directory.read_run() | {"dev_bleu": False})
    assert getattr(prepare(**settings, **given).config, name) == value


def test_report_of_the_text(tmp_path, small_run, capsys):
    lines = [line.replace("man", "½ man") for line in small_run.target]
    (tmp_path / "target").write_text("\n".join(lines) + "\n")
    (tmp_path / "chinese").write_text("你好世界。\n" * 12)
    directory = ModelDirectory.create(tmp_path / "model")
    files = small_run.dev | {"train_target": str(tmp_path / "target")}
    files |= {"dev_target": str(tmp_path / "chinese"), "dev_bleu": True}
    prepared = preparation.prepare(small_run.config(directory.path, **files), directory)
    assert prepared.config.normalization == "nmt_nfkc" and prepared.config.byte_fallback is False
    lines = preparation.describe(prepared, SimpleNamespace(trainable_variables=[]), 1).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Training data: "))
    train, source, target, dev, _, dev_target, unknown, bleu = lines[start : start + 8]
    assert " 0 unknown (0.00%), normalization changes 0 of 12 lines" in source
    assert "  target: " in target and "normalization changes 6 of 12 lines" in target
    assert dev == "Dev data: 12 pairs, 0 with a blank side, 0 sources cut."
    assert dev_target.startswith("  target: 24 tokens, 12 unknown (50.00%)")
    assert "warning: 50.00% of the tokens of the target are unknown" in unknown
    assert "Train the vocabulary with --byte_fallback, or on text" in unknown
    assert "warning: with the tokenizer 13a, the references have almost no" in bleu
