"""Tests of `trainer.train`: files, printed lines, and errors before the first step."""

import dataclasses
import itertools
import json
import os
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from comparisons import assert_all_equal
from programs import Program
from saved_runs import assert_model_equals_last_checkpoint

from t2t_relpos.models import PRESETS, TransformerConfig
from t2t_relpos.t2t import config_from_hparams, parse_hparams
from trainer import atomic_files, train
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.model_dir import ModelDirectory
from trainer.training import preparation
from trainer.training.checkpoints import read_weights
from trainer.training.dry_run import forecast
from trainer.training.training_run import TrainingRun

run = Program(train)


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


def vocabulary_names(sizes):
    """Returns the names of the vocabularies of these sizes, that of the source first."""
    is_shared = sizes.get("source_vocab_size") is None
    return ["vocab.model"] if is_shared else ["vocab.source.model", "vocab.target.model"]


@pytest.fixture
def prepare(small_run, tmp_path):
    """Returns `prepare(name, **settings)`: prepares a run in a directory below `tmp_path`."""

    def prepare(name="model", *, is_chief=True, **settings):
        directory = ModelDirectory.create(tmp_path / name)
        config = small_run.config(directory.path, **settings)
        return preparation.prepare(config, directory, is_chief=is_chief)

    return prepare


def pretend_to_train(prepared, folder="checkpoints"):
    """Writes what lets the next start resume: run.json and the directory of a checkpoint."""
    prepared.directory.write_run(prepared.config.to_dict())
    (prepared.directory.path / folder / "step-000001").mkdir(parents=True)


def test_model_directory_is_complete(each_run):
    assert names(each_run.path) == [
        *(".lock", "checkpoints", "config.json", "evaluations.json", "ids", "logs", "model.keras"),
        *("run.json", *vocabulary_names(each_run.sizes)),
    ]
    checkpoints = ["step-000003", "step-000006", "step-000009"]
    assert names(each_run.path / "checkpoints") == checkpoints
    assert names(each_run.path / "logs") == ["dev", "train"]
    recorded = json.loads((each_run.path / "run.json").read_text())
    expected = {"preset": "small", "adam_beta2": 0.98, "warmup_steps": 5, "strategy": "one"}
    expected |= each_run.sizes
    assert {name: recorded[name] for name in expected} == expected


def test_model_and_vocabularies_can_be_loaded(each_run, small_run):
    directory, sizes = each_run.directory, each_run.sizes
    model, tokenizers = directory.load_model(), directory.load_tokenizers()
    assert directory.kind == ("language_model" if each_run.kind == "text" else "translation")
    assert model.config.to_dict() == directory.read_config()["architecture"]
    found = model.config.vocab_size, model.config.source_vocab_size, model.config.tie_embeddings
    is_shared = each_run.kind != "two vocabularies"
    assert found == (*sizes.values(), is_shared)
    assert tokenizers.sizes == sizes and tokenizers.is_shared == is_shared
    assert [file.name for file in directory.vocabulary_files] == vocabulary_names(sizes)
    assert_model_equals_last_checkpoint(each_run.path)

    # Each vocabulary is trained on the text of its side, and encodes it.
    source, target = small_run.source, small_run.target
    texts = {"pair": [source + target], "text": [source]}.get(each_run.kind, [source, target])
    for tokenizer, lines in zip(dict.fromkeys(tokenizers), texts, strict=True):
        learned = SentencePieceTokenizer.train(lines, vocab_size=tokenizer.vocab_size)
        assert tokenizer.fingerprint == learned.fingerprint
    (ids,) = (each_run.path / "ids" / "train").iterdir()
    sides = {"source": source, "target": target}
    sides = {"text": source} if each_run.kind == "text" else sides
    for (side, lines), tokenizer in zip(sides.items(), tokenizers):
        expected = tokenizer.tokenize(lines).flat_values
        np.testing.assert_array_equal(np.fromfile(ids / f"{side}.ids", "int32"), expected)


def test_one_tokenizer_of_two_vocabularies_raises(finish):
    with pytest.raises(ValueError, match=r"has two. Load them with `load_tokenizers\(\)`"):
        finish("two vocabularies").directory.load_tokenizer()


LINES = {
    "pair": (
        "Training a vocabulary of 40 pieces.\n",
        "\nVocabulary: 40 pieces (new)\n",
        "Training data: 12 of 12 pairs are used",
        "  num_encoder_layers = 1\n",
        "source+target tokens/s",
    ),
    "two vocabularies": (
        "Training a source vocabulary of 31 pieces.\n",
        "Training a target vocabulary of 37 pieces.\n",
        "  source_vocab_size = 31\n",
        "\nVocabularies: 31 source and 37 target pieces (new)\n",
    ),
    "text": (
        "Training a vocabulary of 40 pieces.\n",
        "Training data: 12 of 12 texts are used. Skipped: 0 longer than 256",
    ),
}


def test_training_prints_status_lines(each_run):
    out = (each_run.path.parent / "output").read_text()
    for line in (
        *LINES[each_run.kind],
        "  learning_rate = 2.0\n",
        "\nDevices: 1 CPU\n",
        "Training from step 0 to 9.",
        "step 2/9: loss ",
        "dev loss",
        f"checkpoint {each_run.path / 'checkpoints' / 'step-000003'}",
        f"Trained model: {each_run.path}/model.keras (step 9)",
    ):
        assert line in out
    assert ("num_encoder_layers" in out) == (each_run.kind != "text")
    assert "Stopped early" not in out
    model = each_run.directory.load_model()
    parameters = sum(variable.value.numpy().size for variable in model.trainable_variables)
    assert f"Parameters: {parameters:,}\n" in out


def test_resumed_run_equals_an_uninterrupted_one(each_run, small_run, tmp_path, capsys):
    small_run(tmp_path, **each_run.settings | {"train_steps": 4})
    capsys.readouterr()
    # The sizes of the directory are the default.
    small_run(tmp_path, **each_run.settings | dict.fromkeys(each_run.sizes))
    out = capsys.readouterr().out
    assert " pieces (existing)\n" in out and "Training a" not in out
    whole, resumed = (x / "checkpoints" / "step-000009" for x in (each_run.path, tmp_path))
    assert read_weights(whole).keys() == read_weights(resumed).keys()
    assert_all_equal(read_weights(whole).values(), read_weights(resumed).values())
    evaluations = [x / "evaluations.json" for x in (each_run.path, tmp_path)]
    assert evaluations[0].read_text() == evaluations[1].read_text()


HPARAMS = "num_hidden_layers=1,hidden_size=64,filter_size=24"


def test_hparams_give_the_architecture(prepare, small_run, tmp_path):
    settings = {"preset": None, "hparams_set": "transformer_base", "clip_norm": 1.0}
    settings["hparams"] = HPARAMS
    prepared = prepare(**settings)
    hparams = parse_hparams("transformer_base", HPARAMS)
    expected = config_from_hparams(hparams, vocab_size=40, target_space_id=None)
    assert prepared.directory.read_config()["architecture"] == expected.to_dict()
    assert prepared.config.label_smoothing == 0.1
    # As a run that resumes, --dry_run and a child see it. A run that is killed before its first
    # checkpoint may have one in `best`.
    pretend_to_train(prepared, "best")
    resumed = prepare(**settings)
    assert resumed.architecture == expected and not resumed.is_new
    with pytest.raises(ValueError, match="hparams is "):
        prepare(**settings | {"hparams": f"{HPARAMS},num_heads=4"})
    text = forecast(small_run.config(tmp_path / "new", **settings))
    assert "hidden_dim = 64" in text and not (tmp_path / "new").exists()
    inherited = {"preset": None, "vocab_size": None, "init_from": str(tmp_path / "model")}
    assert prepare("child", **inherited).architecture == expected


def test_config_file_gives_the_architecture(prepare, tmp_path):
    config = TransformerConfig(vocab_size=40, num_heads=3, hidden_dim=12, intermediate_dim=7)
    config = dataclasses.replace(config, position="learned", max_length=31)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()))
    settings = {"preset": None, "vocab_size": None, "config": str(file)}
    prepared = prepare(**settings)
    assert prepared.directory.read_config()["architecture"] == config.to_dict()
    assert prepared.config.max_length == 31
    pretend_to_train(prepared)
    assert prepare(**settings).architecture == config
    changes = {"hidden_dim is 12": {"hidden_dim": 24}, "'hiden_dim'. Did you": {"hiden_dim": 12}}
    for message, change in changes.items():
        file.write_text(json.dumps(config.to_dict() | change))
        with pytest.raises(ValueError, match=message):
            prepare(**settings)


def given_files(found):
    """Returns settings that give the vocabularies of a `FinishedRun`, and no sizes."""
    files = map(str, reversed(found.directory.vocabulary_files))
    return dict.fromkeys(found.sizes) | dict(zip(("vocab", "source_vocab"), files))


def test_given_vocabularies_are_used_by_a_run_that_resumes(each_run, prepare, small_run, tmp_path):
    settings = each_run.settings | given_files(each_run)
    prepared = prepare(**settings)
    directory, architecture = prepared.directory, prepared.architecture
    found = architecture.vocab_size, architecture.source_vocab_size
    assert found == tuple(each_run.sizes.values()) and not prepared.is_new
    assert architecture.tie_embeddings == (each_run.kind != "two vocabularies")
    vocabularies = each_run.directory.vocabulary_files
    for file, given in zip(directory.vocabulary_files, vocabularies, strict=True):
        assert file.name == given.name and file.read_bytes() == given.read_bytes()
    # A resumed run may leave the flag out, but not give another file.
    pretend_to_train(prepared)
    for given in {}, {"vocab": None, "source_vocab": None}:
        config = prepare(**settings | given).config
        assert {name: getattr(config, name) for name in each_run.sizes} == each_run.sizes
    SentencePieceTokenizer.train(small_run.target, vocab_size=35).save(tmp_path / "other")
    message = "Expected a model directory created with the vocabulary of this run. .* vocab"
    with pytest.raises(ValueError, match=rf"{message}\S* sha256 is "):
        prepare(**settings | {"vocab": str(tmp_path / "other")})


@pytest.mark.parametrize(
    ("kind", "name", "value", "kept"),
    [
        ("pair", "vocab_size", 41, "40"),
        ("pair", "source_vocab_size", 31, "none (one vocabulary)"),
        ("pair", "byte_fallback", True, "False"),
        ("pair", "normalization", "nfkc", "nmt_nfkc"),
        ("two vocabularies", "vocab_size", 31, "37"),
        ("two vocabularies", "source_vocab_size", 32, "31"),
        ("text", "vocab_size", 41, "40"),
    ],
)
def test_settings_that_differ_from_the_vocabulary_exit(
    finish, small_run, tmp_path, kind, name, value, kept
):
    """That of the directory, of `init_from`, and a given one."""
    found = finish(kind)
    before, files = names(found.path), given_files(found)
    settings = found.settings | dict.fromkeys(found.sizes)
    parent = {"preset": None, "init_from": str(found.path)}
    new = tmp_path / "new"
    for flag, directory, given, path in (
        ("model_dir", found.path, {}, found.path),
        ("vocab", new, files, files["vocab"]),
        ("init_from", new, parent, found.path),
    ):
        message = small_run.fails(directory, **settings | given | {name: value})
        expected = f"Expected the {name} of {path}, {kept}. Received: {value}. Leave --{name} out "
        assert f"{expected}to use that vocabulary, or give another --{flag}." in message
    assert names(found.path) == before and not new.exists()


def test_vocabulary_that_no_run_has_written_is_not_replaced(finish, prepare):
    directory, found = prepare().directory, finish("pair")
    inherited = dict.fromkeys(("preset", "vocab_size", "batch_tokens", "checkpoint_every"))
    inherited["init_from"] = str(found.path)
    for name, flag in ("vocab.model", "--vocab"), ("vocab.source.model", "--source_vocab"):
        file = directory.path / name
        for settings in {}, given_files(found), inherited:
            file.write_bytes(b"another vocabulary")
            with pytest.raises(ValueError) as raised:
                prepare(**settings)
            assert str(raised.value) == (
                "Expected a --model_dir without vocabularies that no run has written. Received: "
                f"{file}. Move it to another folder. To train with it, give its new path with "
                f"{flag}."
            )
            assert file.read_bytes() == b"another vocabulary"
        file.unlink()
    prepare()
    # Earlier versions took a user's file, and recorded no `made_from`.
    config = directory.read_config()
    del config["tokenizer"]["made_from"]
    directory.config_file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"Received: {directory.vocabulary_file()}. Move"):
        prepare()


def test_start_that_trained_nothing_is_replaced(finish, prepare, small_run, monkeypatch, capsys):
    def fail(*arguments):
        raise ValueError("at step 0")

    directory, files = prepare().directory, given_files(finish("pair"))
    two = finish("two vocabularies").sizes
    with monkeypatch.context() as patched:
        patched.setattr(TrainingRun, "fit", fail)
        with pytest.raises(ValueError, match="at step 0"):
            small_run(directory.path, **files)
    first = directory.read_run()
    assert first["vocab"] == files["vocab"] and directory.load_tokenizer().vocab_size == 40
    capsys.readouterr()
    changes = {"batch_tokens": 60, "dropout": 0.25, "max_relative_position": 3, "seed": 7}
    prepare(**two, **changes)
    assert capsys.readouterr().out.splitlines() == [
        "Training a source vocabulary of 31 pieces.",
        "Training a target vocabulary of 37 pieces.",
        f"{directory.path}: replacing config.json, run.json, vocab.model of a start that trained "
        "nothing.",
    ]
    # Version 1.0.0rc1 recorded a digest of the text.
    config = directory.read_config()
    config["tokenizer"]["made_from"] = "5e8b0c"
    directory.config_file.write_text(json.dumps(config))
    for sizes in {"vocab_size": 38}, two:
        assert prepare(**sizes, **changes).tokenizers.target.vocab_size == sizes["vocab_size"]
        found = sorted(file.name for file in directory.path.glob("vocab*"))
        assert found == vocabulary_names(sizes)
    # Other workers use the vocabulary of the chief.
    assert prepare(is_chief=False, vocab_size=None, **changes).config.vocab_size == 37
    small_run(directory.path, vocab_size=41, **changes)
    recorded = directory.read_run()
    assert {name: recorded[name] for name in changes} == changes
    assert recorded["vocab"] is None and directory.load_tokenizer().vocab_size == 41
    # A run that has trained keeps its settings.
    message = small_run.fails(directory.path, vocab_size=41, **changes | {"batch_tokens": 30})
    assert " batch_tokens is 60 in the directory and 30 in this run" in message


@pytest.mark.parametrize("write", range(1, 5))
def test_start_that_was_killed_at_any_write_can_be_repeated(prepare, monkeypatch, write):
    """The files are config.json, two vocabularies and the ids."""
    for sizes in ({}, {"source_vocab_size": 31}):
        writes = itertools.count(1)

        def kill(path, atomic=atomic_files._temporary_directory, writes=writes):
            if next(writes) == write:
                raise KeyboardInterrupt
            return atomic(path)

        with monkeypatch.context() as patched:
            patched.setattr(atomic_files, "_temporary_directory", kill)
            with pytest.raises(KeyboardInterrupt):
                prepare(**{"source_vocab_size": 33} | sizes)
    prepared = prepare(source_vocab_size=35)
    sizes = prepared.directory.load_tokenizers().sizes
    assert sizes == {"vocab_size": 40, "source_vocab_size": 35} and prepared.is_new


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
        (
            {"vocab": "missing"},
            "Expected a SentencePiece model at missing. Received: no such file.",
        ),
        ({"source_vocab_size": 300}, "Expected a source_vocab_size of at most .* Lower source_voc"),
        ({"vocab_size": 300, "source_vocab_size": 31}, "a vocab_size of at most .* Lower vocab_si"),
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


def test_two_distances_are_kept(prepare):
    prepared = prepare(max_relative_position=(3, 2))
    assert prepared.directory.read_config()["architecture"]["max_relative_position"] == [3, 2]
    pretend_to_train(prepared)
    assert prepare(max_relative_position=(3, 2)).architecture.max_relative_position == (3, 2)
    message = r"max_relative_position is \[3, 2\] in the directory and 3 in this run"
    with pytest.raises(ValueError, match=message):
        prepare(max_relative_position=3)


def test_learned_positions_cover_max_length(prepare):
    prepared = prepare(position="learned", max_length=300)
    assert prepared.architecture.max_length == 300
    assert prepared.directory.read_config()["architecture"]["max_length"] == 300


def test_invalid_flags_exit():
    run.fails("Expected training data. Received: none", preset="tiny", model_dir="x")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"batch_tokens": 31, "learning_rate": 0.25},
            "Expected a model directory created with the settings of this run. .* batch_tokens is "
            "30 in the directory and 31 in this run; learning_rate is 2.0 in the directory and 0",
        ),
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


def test_resume_compares_architectures_and_not_presets(finished, finish, prepare, monkeypatch):
    """Explicit settings may equal those of the preset. A preset may change between runs."""
    settings, dropout = finish("pair").settings, PRESETS["small"]["dropout"]
    prepare("finished", **settings, dropout=dropout, position="relative")
    monkeypatch.setitem(PRESETS["small"], "dropout", 0.25)
    assert not prepare("finished", **settings, dropout=dropout).is_new
    message = f"dropout is {dropout} in the directory and 0.25 in this run"
    with pytest.raises(ValueError, match=message):
        prepare("finished", **settings)


def test_resume_compares_contents_of_text_files(
    finished, finish, prepare, small_run, tmp_path, caplog
):
    """Neither paths nor times matter."""
    files = {name: str(tmp_path / "source") for name in ("train_source", "dev_source")}
    (tmp_path / "source").write_text("\n".join(small_run.source) + "\n")
    settings = finish("pair").settings | files
    prepare("finished", **settings)
    assert "different data" not in caplog.text
    status = (tmp_path / "source").stat()
    (tmp_path / "source").write_text("\n".join(small_run.source).replace("dog", "cow") + "\n")
    os.utime(tmp_path / "source", ns=(status.st_atime_ns, status.st_mtime_ns))
    prepare("finished", **settings)
    for split in ("training text", "dev set"):
        warning = f"Resuming with different data: the {split} of this run has changed. It is now "
        assert f"{warning}{tmp_path}/source and " in caplog.text
    # Runs of earlier versions recorded only the names.
    caplog.clear()
    directory = ModelDirectory(finished)
    recorded = {k: v for k, v in directory.read_run().items() if k != "contents"}
    directory.write_run(recorded | {"dev_source": files["dev_source"]})
    prepare("finished", **settings)
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
def test_resumed_run_keeps_its_metric(finish, finished, prepare, recorded, given):
    """Runs of earlier versions recorded no metric. They compared dev BLEU."""
    directory = ModelDirectory(finished)
    names = ("best_metric", "bleu_tokenize")
    run = {name: value for name, value in directory.read_run().items() if name not in names}
    directory.write_run(run | {"dev_bleu": True} | recorded)
    settings = finish("pair").settings | {"keep_best": 1}
    kept = prepare("finished", **settings).config
    assert (kept.best_metric, kept.bleu_tokenize) == (
        recorded.get("best_metric", "dev_bleu"),
        recorded.get("bleu_tokenize", "13a"),
    )
    ((name, value),) = given.items()
    message = f'{name} is "{getattr(kept, name)}" in the directory and "{value}" in this run'
    with pytest.raises(ValueError, match=message):
        prepare("finished", **settings, **given)
    directory.write_run(directory.read_run() | {"dev_bleu": False})
    assert getattr(prepare("finished", **settings, **given).config, name) == value


def test_report_of_the_text(tmp_path, small_run, prepare):
    lines = [line.replace("man", "½ man") for line in small_run.target]
    (tmp_path / "target").write_text("\n".join(lines) + "\n")
    (tmp_path / "chinese").write_text("你好世界。\n" * 12)
    files = small_run.dev | {"train_target": str(tmp_path / "target")}
    prepared = prepare(**files | {"dev_target": str(tmp_path / "chinese"), "dev_bleu": True})
    assert prepared.config.normalization == "nmt_nfkc" and prepared.config.byte_fallback is False
    describe = lambda x: preparation.describe(x, SimpleNamespace(trainable_variables=[]), 1)
    lines = describe(prepared).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Training data: "))
    train, source, target, dev, _, dev_target, unknown, bleu = lines[start : start + 8]
    assert " 0 unknown (0.00%), normalization changes 0 of 12 lines" in source
    assert "  target: " in target and "normalization changes 6 of 12 lines" in target
    assert dev == "Dev data: 12 pairs, 0 with a blank side, 0 sources cut."
    assert dev_target.startswith("  target: 24 tokens, 12 unknown (50.00%)")
    assert "warning: 50.00% of the tokens of the target are unknown" in unknown
    assert "Train the vocabulary with --byte_fallback, or on text" in unknown
    existing = describe(dataclasses.replace(prepared, is_new=False))
    assert "Replace these characters in the text, or train a new model with --preset" in existing
    assert "Train the vocabulary" not in existing
    assert "warning: with the tokenizer 13a, the references have almost no" in bleu
