"""Tests of models whose source and target have separate vocabularies."""

import contextlib
import io

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
    sides = {"source_vocab": "vocab.source.model", "vocab": "vocab.target.model"}
    files = {flag: str(trained / name) for flag, name in sides.items()}
    prepared = prepare(tmp_path / "model", small_run, **NO_SIZES, **files)
    assert {name: getattr(prepared.config, name) for name in SIZES} == SIZES
    assert prepared.architecture.source_vocab_size == 31
    assert not prepared.architecture.tie_embeddings and not prepared.is_new
    for name in FILES:
        assert (tmp_path / "model" / name).read_bytes() == (trained / name).read_bytes()


def test_start_that_trained_nothing_can_change_the_number_of_vocabularies(small_run, tmp_path):
    for sizes, files in ((SIZES, FILES), ({}, {"vocab.model"}), (SIZES, FILES)):
        prepare(tmp_path / "model", small_run, **sizes)
        assert vocabularies(tmp_path / "model") == files


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
