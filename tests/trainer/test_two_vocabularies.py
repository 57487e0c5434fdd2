"""Tests of models whose source and target have separate vocabularies."""

import contextlib
import errno
import io
import os
from unittest import mock

import numpy as np
import pytest
from comparisons import assert_all_equal
from programs import Program
from saved_runs import assert_model_equals_last_checkpoint

from trainer import average
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.model_dir import ModelDirectory
from trainer.training import preparation
from trainer.training.checkpoints import read_weights

SIZES = {"source_vocab_size": 31, "vocab_size": 37}
NO_SIZES = dict.fromkeys(SIZES)
FILES = {"vocab.source.model", "vocab.target.model"}


@pytest.fixture(scope="module")
def trained(small_run, made_once):
    """Returns the path of a trained model, which tests must not change.

    The file `output` next to it has the lines that the run printed.
    """

    def make(path):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            small_run(path / "model", train_steps=4, **SIZES, **small_run.dev)
        (path / "output").write_text(output.getvalue())

    return made_once("two_vocabularies", make) / "model"


@pytest.fixture
def directory(trained):
    return ModelDirectory.open(trained)


def vocabularies(path):
    return {file.name for file in path.glob("vocab*")}


def test_each_side_has_a_vocabulary(directory, small_run):
    assert vocabularies(directory.path) == FILES
    tokenizers = directory.load_tokenizers()
    assert tokenizers.sizes == SIZES
    source, target = (set(tokenizer.names) for tokenizer in tokenizers)
    assert "▁the" in source - target and "▁der" in target - source
    for tokenizer, lines, size in zip(tokenizers, (small_run.source, small_run.target), (31, 37)):
        learned = SentencePieceTokenizer.train(lines, vocab_size=size)
        assert tokenizer.fingerprint == learned.fingerprint


def test_model_has_tables_of_both_sizes(directory):
    model = directory.load_model()
    tables = model.source_embedding, model.target_embedding, model.output_embedding
    assert [table.embeddings.shape for table in tables] == [(31, 12), (37, 12), (37, 12)]
    architecture = directory.read_config()["architecture"]
    assert model.config.to_dict() == architecture
    assert {name: architecture[name] for name in SIZES} == SIZES
    assert not architecture["tie_embeddings"]
    assert {name: directory.read_run()[name] for name in SIZES} == SIZES
    assert_model_equals_last_checkpoint(directory.path)


def test_config_has_an_entry_for_each_vocabulary(directory):
    config = directory.read_config()
    entries = config["source_tokenizer"], config["tokenizer"]
    assert [entry["file"] for entry in entries] == sorted(FILES)
    assert directory.vocabulary_files == [directory.path / name for name in sorted(FILES)]
    with pytest.raises(ValueError, match=r"which has two. Load them with `load_tokenizers\(\)`"):
        directory.load_tokenizer()


def test_training_prints_both_sizes(trained):
    out = (trained.parent / "output").read_text()
    for line in (
        "Training a source vocabulary of 31 pieces.\n",
        "Training a target vocabulary of 37 pieces.\n",
        "  source_vocab_size = 31\n",
        "\nVocabularies: 31 source and 37 target pieces (new)\n",
    ):
        assert line in out


def prepare(path, small_run, **settings):
    directory = ModelDirectory.create(path)
    return preparation.prepare(small_run.config(directory.path, **settings), directory)


def test_each_side_is_encoded_with_its_vocabulary(small_run, tmp_path):
    prepared = prepare(tmp_path / "model", small_run, **SIZES)
    pairs = prepared.train_pairs
    sides = zip((pairs.sources, pairs.targets), prepared.tokenizers)
    for (side, tokenizer), texts in zip(sides, (small_run.source, small_run.target)):
        np.testing.assert_array_equal(side.ids, tokenizer.tokenize(texts).flat_values)
    assert all(counts.unknown == 0 for counts in pairs.counts.values())


def test_resumed_run_equals_an_uninterrupted_one(trained, small_run, tmp_path):
    small_run(tmp_path, train_steps=2, **SIZES, **small_run.dev)
    # The sizes of the directory are the default.
    small_run(tmp_path, train_steps=4, **NO_SIZES, **small_run.dev)
    whole, resumed = (read_weights(x / "checkpoints/step-000004") for x in (trained, tmp_path))
    assert whole.keys() == resumed.keys()
    assert_all_equal(whole.values(), resumed.values())


def test_given_vocabularies_are_used(trained, small_run, tmp_path):
    for name in FILES:
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    prepared = prepare(tmp_path, small_run, **NO_SIZES)
    assert {name: getattr(prepared.config, name) for name in SIZES} == SIZES
    assert prepared.architecture.source_vocab_size == 31
    assert not prepared.architecture.tie_embeddings


@pytest.mark.parametrize("names", [["vocab.source.model"], ["vocab.model", "vocab.target.model"]])
def test_incomplete_given_vocabularies_raise(trained, small_run, tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes((trained / "vocab.target.model").read_bytes())
    message = small_run.fails(tmp_path, **NO_SIZES)
    assert (
        "Expected either vocab.model, or both vocab.source.model and vocab.target.model, in "
        f"{tmp_path}. Received: {', '.join(names)}. Add the missing file, or remove"
    ) in message


def test_start_that_was_killed_between_the_vocabularies_resumes(trained, small_run, tmp_path):
    whole, killed, other = (tmp_path / name for name in ("whole", "killed", "other"))
    prepare(whole, small_run, **SIZES)
    for directory, name in ((killed, "vocab.source.model"), (other, "vocab.target.model")):
        directory.mkdir()
        content = (trained / name).read_bytes()
        (directory / "vocab.source.model").write_bytes(content)
    prepare(killed, small_run, **SIZES)
    for name in FILES:
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    # The user's source vocabulary is not replaced.
    assert "Received: vocab.source.model. Add" in small_run.fails(other, **SIZES)
    assert (other / "vocab.source.model").read_bytes() == content


def test_start_that_trained_nothing_can_change_the_number_of_vocabularies(small_run, tmp_path):
    for sizes, files in ((SIZES, FILES), ({}, {"vocab.model"}), (SIZES, FILES)):
        prepare(tmp_path / "model", small_run, **sizes)
        assert vocabularies(tmp_path / "model") == files
    assert "vocab" not in ModelDirectory.open(tmp_path / "model").read_run()


def test_start_that_trained_nothing_learns_a_missing_vocabulary_again(small_run, tmp_path):
    prepare(tmp_path, small_run, **SIZES)
    content = (tmp_path / "vocab.target.model").read_bytes()
    (tmp_path / "vocab.target.model").unlink()
    prepare(tmp_path, small_run, **SIZES)
    assert (tmp_path / "vocab.target.model").read_bytes() == content


def test_vocabulary_given_after_a_start_is_not_replaced(trained, small_run, tmp_path):
    prepare(tmp_path, small_run)
    given = (trained / "vocab.target.model").read_bytes()
    (tmp_path / "vocab.model").write_bytes(given)
    message = small_run.fails(tmp_path)
    assert f"an earlier start left in {tmp_path}. Received: another vocab.model. To" in message
    assert (tmp_path / "vocab.model").read_bytes() == given
    (tmp_path / "config.json").unlink()
    assert prepare(tmp_path, small_run, **NO_SIZES).config.vocab_size == 37


def test_vocabulary_next_to_init_from_is_not_replaced(trained, small_run, tmp_path):
    given = (trained / "vocab.target.model").read_bytes()
    (tmp_path / "vocab.model").write_bytes(given)
    message = small_run.fails(tmp_path, preset=None, init_from=str(trained), **NO_SIZES)
    assert f"with init_from: a run uses that of {trained}. Received: vocab.model. Remove" in message
    assert (tmp_path / "vocab.model").read_bytes() == given


def test_failed_start_leaves_no_vocabulary(small_run, tmp_path):
    directory = ModelDirectory.create(tmp_path / "model")
    saved = []

    def save(self, path):
        if saved:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        saved.append(path)
        path.write_bytes(b"written before the disk was full")

    with mock.patch.object(SentencePieceTokenizer, "save", save):
        with pytest.raises(OSError, match="No space left"):
            preparation.prepare(small_run.config(directory.path, **SIZES), directory)
    assert saved and not vocabularies(directory.path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source_vocab_size": 32}, "Expected the source_vocab_size of {}, 31. Received: 32. "),
        ({"vocab_size": 31}, "Expected the vocab_size of {}, 37. Received: 31. "),
        ({"byte_fallback": True}, "Expected the byte_fallback of {}, False. Received: True. "),
    ],
)
def test_resume_with_other_vocabularies_raises(trained, small_run, settings, message):
    assert message.format(trained) in small_run.fails(trained, **NO_SIZES | settings)


def test_resume_of_a_shared_vocabulary_with_a_source_size_raises(finished_run, small_run):
    message = small_run.fails(finished_run, source_vocab_size=31)
    assert f"Expected the source_vocab_size of {finished_run}, none (one vocabulary)." in message


def test_sizes_that_do_not_fit_the_text_name_the_setting(small_run, tmp_path):
    for name, sizes in (
        ("source_vocab_size", {"source_vocab_size": 300}),
        ("vocab_size", {"vocab_size": 300, "source_vocab_size": 31}),
    ):
        message = small_run.fails(tmp_path / "model", **sizes)
        assert f"Expected a {name} of at most " in message and f"Lower {name}" in message
    assert not vocabularies(tmp_path / "model")


def test_fine_tuning_inherits_both_vocabularies(directory, small_run, tmp_path):
    inherited = dict.fromkeys(("preset", "vocab_size", "batch_tokens", "checkpoint_every"))
    settings = inherited | {"init_from": str(directory.path), "train_steps": 1}
    small_run(tmp_path / "child", **settings)
    child = ModelDirectory.open(tmp_path / "child")
    assert child.vocabularies == [x | {"made_from": "init_from"} for x in directory.vocabularies]
    assert child.read_config()["architecture"] == directory.read_config()["architecture"]


def test_average_copies_both_vocabularies(trained, directory, tmp_path):
    Program(average)(model_dir=trained, last=2, output_dir=tmp_path / "mean")
    mean = ModelDirectory.open(tmp_path / "mean")
    assert vocabularies(mean.path) == FILES
    assert mean.load_tokenizers().sizes == SIZES
    assert mean.read_config() == directory.read_config()
