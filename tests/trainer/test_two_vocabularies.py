"""Tests of models whose source and target have separate vocabularies."""

import contextlib
import errno
import io
import json
import os
import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from programs import Program
from saved_runs import assert_model_equals_last_checkpoint
from subprocesses import run_python

from trainer import average, evaluate, export, export_ctranslate2, translate, visualize
from trainer.data.corpus import read_tfds
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.text_files import read_text
from trainer.data.tokenizer import EOS_ID
from trainer.model_dir import ModelDirectory
from trainer.training import preparation
from trainer.training.checkpoints import model_keys, read_weights
from trainer.training.dry_run import forecast

SIZES = {"source_vocab_size": 31, "vocab_size": 37}
NO_SIZES = dict.fromkeys(SIZES)
FILES = {"vocab.source.model", "vocab.target.model"}
SENTENCES = ["the dog sees a tree", "the child sees a bird", ""]
# The exported graph must not need this project.
LOAD_AND_TRANSLATE = """
import json, sys
import tensorflow as tf
import tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
texts = tf.constant(sys.argv[2:])
found = loaded.signatures["serving_default"](text=texts)["translations"]
scored = loaded.signatures["score"](text=texts, translation=found)
decode = lambda strings: [text.decode() for text in strings.numpy().ravel()]
print(json.dumps([decode(found), scored["scores"].numpy().tolist(), decode(scored["tokens"])]))
"""


@pytest.fixture(scope="module")
def trained(small_run, made_once):
    """Returns the path of a trained model, which tests must not change.

    The file `output` next to it has the lines that the run printed.
    """

    def make(path):
        steps = {"train_steps": 60, "checkpoint_every": 30}
        with contextlib.redirect_stdout(io.StringIO()) as output:
            small_run(path / "model", real_steps=True, dropout=0.0, **SIZES, **steps)
        (path / "output").write_text(output.getvalue())

    return made_once("two_vocabularies", make) / "model"


@pytest.fixture
def directory(trained):
    return ModelDirectory.open(trained)


@pytest.fixture
def expected(directory):
    """Returns the translations of `SENTENCES` by `Transformer.generate`."""
    model, tokenizers = directory.load_model(), directory.load_tokenizers()
    texts = []
    for sentence in SENTENCES[:2]:
        ids = tokenizers.source.tokenize([sentence]).to_tensor()
        found = model.generate(ids, max_length=ids.shape[1] + 50, jit_compile=False)
        texts.append(tokenizers.target.detokenize(found).numpy()[0].decode())
    return [*texts, ""]


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


def check_encoded(prepared, corpus):
    """Asserts that each side was encoded with its own vocabulary."""
    pairs = prepared.train_pairs
    sides = zip((pairs.sources, pairs.targets), prepared.tokenizers, zip(*corpus))
    for side, tokenizer, texts in sides:
        np.testing.assert_array_equal(side.ids, tokenizer.tokenize(texts).flat_values)
    assert all(counts.unknown == 0 for counts in pairs.counts.values())


def test_each_side_is_encoded_with_its_vocabulary(small_run, tmp_path):
    prepared = prepare(tmp_path / "model", small_run, **SIZES)
    check_encoded(prepared, read_text(*small_run.text.values()))


def test_resumed_run_equals_an_uninterrupted_one(small_run, tmp_path):
    small_run(tmp_path / "whole", train_steps=4, **SIZES, **small_run.dev)
    small_run(tmp_path / "resumed", train_steps=2, **SIZES, **small_run.dev)
    # The sizes of the directory are the default.
    small_run(tmp_path / "resumed", train_steps=4, **NO_SIZES, **small_run.dev)
    whole, resumed = (
        read_weights(tmp_path / name / "checkpoints/step-000004") for name in ("whole", "resumed")
    )
    assert whole.keys() == resumed.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, resumed[name], err_msg=name)


def test_dry_run_leaves_no_files(small_run, tmp_path):
    text = forecast(small_run.config(tmp_path / "model", **SIZES))
    assert "\nVocabularies: 31 source and 37 target pieces (new)\n" in text
    assert list(tmp_path.iterdir()) == []


def test_corpus_of_tensorflow_datasets(small_run, wmt14, tmp_path):
    sizes = {"source_vocab_size": 150, "vocab_size": 170}
    data = {"data": "wmt14_translate/de-en", "data_dir": wmt14.data_dir}
    data |= {"train_source": None, "train_target": None}
    prepared = prepare(tmp_path / "model", small_run, batch_tokens=2000, **sizes, **data)
    assert prepared.tokenizers.sizes == sizes
    check_encoded(prepared, read_tfds(data["data"], "train", data_dir=wmt14.data_dir))


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
    found = small_run.fails(trained, **NO_SIZES | settings)
    assert message.format(trained) in found


def test_resume_of_a_shared_vocabulary_with_a_source_size_raises(finished_run, small_run):
    message = small_run.fails(finished_run, source_vocab_size=31)
    assert f"Expected the source_vocab_size of {finished_run}, none (one vocabulary)." in message
    assert "Leave --source_vocab_size out to use that vocabulary" in message


def test_sizes_that_do_not_fit_the_text_name_the_setting(small_run, tmp_path):
    message = small_run.fails(tmp_path / "model", source_vocab_size=300)
    assert "Expected a source_vocab_size of at most " in message
    assert "Lower source_vocab_size" in message
    message = small_run.fails(tmp_path / "model", vocab_size=300, source_vocab_size=31)
    assert "Expected a vocab_size of at most " in message
    assert not vocabularies(tmp_path / "model")


def test_fine_tuning_inherits_both_vocabularies(directory, small_run, tmp_path):
    inherited = dict.fromkeys(("preset", "vocab_size", "batch_tokens", "checkpoint_every"))
    settings = inherited | {"init_from": str(directory.path), "train_steps": 1}
    small_run(tmp_path / "child", **settings)
    child = ModelDirectory.open(tmp_path / "child")
    assert child.vocabularies == [x | {"made_from": "init_from"} for x in directory.vocabularies]
    assert child.read_config()["architecture"] == directory.read_config()["architecture"]
    other = prepare(tmp_path / "other", small_run, **SIZES | {"source_vocab_size": 32})
    other.directory.write_run(directory.read_run())
    settings["init_from"] = str(other.directory.path)
    message = small_run.fails(tmp_path / "child", **settings)
    assert "created with the vocabulary of this run" in message
    assert "vocab.source.model sha256 is" in message
    assert "vocab.target.model" not in message


def test_average_copies_both_vocabularies(trained, directory, tmp_path):
    Program(average)(model_dir=trained, last=2, output_dir=tmp_path / "mean")
    mean = ModelDirectory.open(tmp_path / "mean")
    assert vocabularies(mean.path) == FILES
    assert mean.load_tokenizers().sizes == SIZES
    assert mean.read_config() == directory.read_config()
    paths = [trained / f"checkpoints/step-0000{step}" for step in (30, 60)]
    first, last = (read_weights(path) for path in paths)
    for name, variable in model_keys(mean.load_model()).items():
        expected = last[name]
        if variable.trainable:
            expected = (first[name].astype("float64") + last[name]) / 2
        np.testing.assert_allclose(variable, expected, rtol=1e-6, err_msg=name)


def test_evaluate_translates_as_generate(trained, directory, expected, tmp_path, capsys):
    for name in ("source", "target"):
        (tmp_path / name).write_text("\n".join(SENTENCES) + "\n")
    output = tmp_path / "output"
    files = {name: tmp_path / name for name in ("source", "target")}
    Program(evaluate)(model_dir=trained, output=output, **files)
    assert output.read_text().splitlines() == expected
    report = capsys.readouterr().err
    found = re.findall(r"  (?:source|target): (\d+) tokens, ", report)
    tokenizers = directory.load_tokenizers()
    counts = [sum(map(len, each.tokenize(SENTENCES).to_list())) - 3 for each in tokenizers]
    assert list(map(int, found)) == counts and counts[0] < counts[1]


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """Returns the path of the exported model."""
    folder = tmp_path_factory.mktemp("exported")
    Program(export)(model_dir=trained, export_dir=folder)
    return folder / "model"


def test_export_translates_and_scores_in_another_process(exported, directory, expected):
    done = run_python("-c", LOAD_AND_TRANSLATE, exported / "1", *SENTENCES, cwd=exported, env=None)
    texts, scores, tokens = json.loads(done.stdout.splitlines()[-1])
    assert texts == expected
    model, tokenizers = directory.load_model(), directory.load_tokenizers()
    sides = zip(tokenizers, (SENTENCES, expected))
    source, target = (tokenizer.tokenize(text).to_tensor() for tokenizer, text in sides)
    logits = model({"inputs": source, "targets": target})
    log_probs = tf.gather(tf.nn.log_softmax(logits), target, batch_dims=2)
    log_probs = tf.where(target != 0, log_probs, 0.0)
    np.testing.assert_allclose(scores, tf.reduce_sum(log_probs, axis=1), rtol=1e-4)
    names = tokenizers.target.pieces(target).numpy().ravel()
    assert [name.decode() for name in names] == tokens


def test_signatures_use_the_vocabulary_of_their_side(exported, directory):
    signatures = tf.saved_model.load(str(exported / "1")).signatures
    source, target = directory.load_tokenizers()
    texts = tf.constant(["the dog sees a tree", "der dog"])
    ids = signatures["ids"](text=texts)["ids"]
    np.testing.assert_array_equal(ids, source.tokenize(texts).to_tensor())
    tokens = signatures["tokenize"](text=texts)["tokens"]
    assert tokens.numpy().tolist() == source.pieces(ids).numpy().tolist()
    ids = target.tokenize(texts[1:]).to_tensor()
    assert signatures["detokenize"](ids=ids)["text"].numpy().tolist() == [b"der dog"]


def test_translate_and_evaluate_read_the_export(exported, small_run, expected, tmp_path, capsys):
    (tmp_path / "source").write_text("\n".join(SENTENCES) + "\n")
    output, tokens = tmp_path / "output", tmp_path / "tokens"
    options = {"saved_model": exported, "tokens": tokens}
    Program(translate)(input=tmp_path / "source", output=output, **options)
    assert output.read_text().splitlines() == expected
    assert "▁the▁dog" in tokens.read_text().replace(" ", "")
    assert ", 0 unknown" in capsys.readouterr().err
    files = {f"{name.removeprefix('train_')}": path for name, path in small_run.text.items()}
    Program(evaluate)(saved_model=exported, **files)
    report = capsys.readouterr().err
    assert report.count(", 0 unknown (0.00%), normalization changes 0 of 12 lines") == 2


def test_page_labels_tokens_with_the_pieces_of_their_side(trained, tmp_path):
    page = tmp_path / "page.html"
    sides = {"source": "the dog sees a man", "target": "der dog sieht einen man"}
    Program(visualize)(model_dir=trained, output=page, **sides)
    labels = {
        "".join(json.loads(found))
        for found in re.findall(r'"ticktext":(\[[^]]*\])', page.read_text())
    }
    assert "▁the▁dog▁sees▁a▁man&lt;/s&gt;" in labels
    assert "▁der▁dog▁sieht▁einen▁man&lt;/s&gt;" in labels


def test_ctranslate2_translates_as_the_model(trained, directory, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs: pip install '.[ctranslate2]'")
    Program(export_ctranslate2)(model_dir=trained, output_dir=tmp_path / "ct2")
    names = {file.name for file in (tmp_path / "ct2").iterdir()}
    assert names == FILES | {
        "config.json",
        "model.bin",
        "source_vocabulary.json",
        "target_vocabulary.json",
    }
    model, tokenizers = directory.load_model(), directory.load_tokenizers()
    sources = tokenizers.source.tokenize(SENTENCES[:2])
    pieces = [[tokenizers.source.names[i] for i in row[:-1]] for row in sources.to_list()]
    peer = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu", intra_threads=1)
    results = peer.translate_batch(pieces, beam_size=1, max_decoding_length=20)
    ids = model.generate(sources.to_tensor(), "greedy", 20, jit_compile=False)
    for result, row in zip(results, ids):
        row = row[: row.tolist().index(EOS_ID)] if EOS_ID in row else row
        assert result.hypotheses[0] == [tokenizers.target.names[i] for i in row]
