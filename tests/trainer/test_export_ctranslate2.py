"""Tests of exports for CTranslate2: files, translations, scores and errors."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from model_directories import bare_model_directory, import_random_model
from programs import Program
from small_transformers import small_config

from examples.synthetic_corpus import generate
from t2t_relpos.models import Transformer
from t2t_relpos.t2t.subwords import SubwordVocabulary
from trainer import export_ctranslate2
from trainer.model_dir import ModelDirectory

ctranslate2 = pytest.importorskip(
    "ctranslate2", reason="the package ctranslate2 is not installed: pip install '.[ctranslate2]'"
)


run = Program(export_ctranslate2)


def load(directory):
    return ctranslate2.Translator(str(directory), device="cpu", intra_threads=1)


@pytest.fixture(scope="module")
def written(trained_model_dir, tmp_path_factory):
    """Returns the path of the tiny trained model in CTranslate2's format."""
    directory = tmp_path_factory.mktemp("ctranslate2") / "tiny"
    run(f"--model_dir={trained_model_dir}", f"--output_dir={directory}")
    return directory


@pytest.fixture
def sentences():
    """Returns sentences of different lengths that the tiny model was not trained on."""
    return [source for source, _ in generate("test", size=97)]


def test_translations_equal_the_trained_model(written, make_module, sentences):
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(written / "vocab.model"))
    # Without a length penalty, both searches have the same objective but differ in details.
    options = {
        "beam_size": 4,
        "length_penalty": 0,
        "min_decoding_length": 0,
        "max_decoding_length": 60,
    }
    results = load(written).translate_batch(pieces.encode(sentences, out_type=str), **options)
    found = [pieces.decode(result.hypotheses[0]).encode() for result in results]
    module = make_module(beam_size=4, alpha=0.0)
    expected = module.serve(tf.constant(sentences))["translations"].numpy().tolist()
    ended = [
        one == other
        for one, other in zip(found, expected)
        if other.endswith(b".") and len(other) < 60
    ]
    assert len(ended) > 40 and np.mean(ended) > 0.9


def test_quantized_model_scores_translations_like_the_float32_model(
    written, trained_model_dir, tmp_path, sentences
):
    run(f"--model_dir={trained_model_dir}", f"--output_dir={tmp_path}/int8", "--quantization=int8")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "int8/vocab.model"))
    peers = load(written), load(tmp_path / "int8")
    assert peers[1].compute_type == "int8_float32"
    sources = pieces.encode(sentences, out_type=str)
    options = {"beam_size": 4, "length_penalty": 0, "max_decoding_length": 60}
    texts, rounded_texts = (
        [result.hypotheses[0] for result in peer.translate_batch(sources, **options)]
        for peer in peers
    )
    exact, rounded = (
        np.concatenate([result.log_probs for result in peer.score_batch(sources, texts)])
        for peer in peers
    )
    assert 0 < np.abs(exact - rounded).mean() < 0.02 * np.abs(exact).mean()
    # The tiny model is uncertain, so that small errors change about a third of its translations.
    assert np.mean([one == other for one, other in zip(texts, rounded_texts)]) > 0.5


def test_export_contains_weights_vocabulary_and_start_token(written, trained_model_dir):
    assert {path.name for path in written.iterdir()} == {
        "config.json",
        "model.bin",
        "shared_vocabulary.json",
        "vocab.model",
    }
    assert (written / "vocab.model").read_bytes() == (
        trained_model_dir / "vocab.model"
    ).read_bytes()
    names = json.loads((written / "shared_vocabulary.json").read_text())
    assert names[:3] == ["<pad>", "</s>", "<unk>"]
    assert json.loads((written / "config.json").read_text())["decoder_start_token"] == "<pad>"


@pytest.fixture
def imported(tmp_path):
    """Returns the path of an imported t2t model with a subword vocabulary and a target space."""
    subtokens = [
        "<pad>_",
        "<EOS>_",
        "the_",
        "dog_",
        "",
        "dog_",
        *sorted({*"\\_u;0123456789", *"abcdefghijklmnopqrstuvwxyz<>EOSP"}),
    ]
    hparams = (
        "hidden_size=24,filter_size=40,num_heads=4,num_hidden_layers=2,max_relative_position=3"
    )
    return import_random_model(tmp_path, hparams, subtokens, target_space_id=5)


def test_scores_equal_the_imported_model(imported, tmp_path):
    run(f"--model_dir={imported}", f"--output_dir={tmp_path}/ct2")
    vocabulary = SubwordVocabulary.from_bytes((tmp_path / "ct2/vocab.subwords").read_bytes())
    names = json.loads((tmp_path / "ct2/shared_vocabulary.json").read_text())
    assert names[:6] == ["<pad>_", "<EOS>_", "the_", "<id 3>", "<id 4>", "dog_"]
    source, target = vocabulary.encode("the dog, a dog"), vocabulary.encode("dog the 7")
    (result,) = load(tmp_path / "ct2").score_batch(
        [[names[i] for i in source]], [[names[i] for i in target]]
    )
    model = ModelDirectory.open(imported).load_model()
    logits = model({"inputs": np.array([source + [1]]), "targets": np.array([target + [1]])})[
        0
    ].numpy()
    logits[:, 0] = -1e9
    expected = tf.nn.log_softmax(logits).numpy()[range(len(target) + 1), target + [1]]
    np.testing.assert_allclose(result.log_probs, expected, atol=1e-5)


def test_model_without_vocabulary_uses_ids_as_names(imported, tmp_path):
    model = ModelDirectory.open(imported).load_model()
    directory = bare_model_directory(tmp_path / "bare", model)
    run(f"--model_dir={directory.path}", f"--output_dir={tmp_path}/ct2")
    names = json.loads((tmp_path / "ct2/shared_vocabulary.json").read_text())
    assert names == [str(i) for i in range(model.config.vocab_size)]
    (result,) = load(tmp_path / "ct2").translate_batch([["5", "9"]], max_decoding_length=3)
    assert all(name in names for name in result.hypotheses[0])


def test_existing_directory_raises_without_force(trained_model_dir, written, tmp_path):
    arguments = [f"--model_dir={trained_model_dir}", f"--output_dir={written}"]
    run.fails(
        f"Expected an --output_dir that does not exist yet. Received: {written}, which exists. "
        "Replace it with --force.",
        *arguments,
    )
    before = (written / "model.bin").stat().st_ino
    run(*arguments, "--force")
    assert (written / "model.bin").stat().st_ino != before
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    run.fails(
        "Expected --force to replace a CTranslate2 model, which has a model.bin. Received: "
        ".*other, which has none.",
        arguments[0], f"--output_dir={tmp_path}/other", "--force",
    )  # fmt: skip
    assert (tmp_path / "other/thesis.txt").read_text() == "mine"


def test_failed_write_leaves_no_files(trained_model_dir, tmp_path, fill_disk):
    fill_disk(export_ctranslate2.shutil, "copy")
    message = (
        r"Expected an --output_dir that can be written. Received: .*ct2 \(No space left on "
        r"device\). Choose another one."
    )
    run.fails(message, f"--model_dir={trained_model_dir}", f"--output_dir={tmp_path}/ct2")
    assert list(tmp_path.iterdir()) == []


def test_invalid_flags_and_missing_package_raise(tmp_path, monkeypatch):
    output = f"--output_dir={tmp_path}/ct2"
    run.fails(
        "Expected a model directory, which has a config.json. Received: .*nowhere",
        f"--model_dir={tmp_path}/nowhere",
        output,
    )
    run.fails(
        "Expected --quantization to be one of none, int8, .*. Received: 'int4'.",
        "--model_dir=x", output, "--quantization=int4",
    )  # fmt: skip
    monkeypatch.delitem(sys.modules, "trainer.serving.ctranslate2_spec", raising=False)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    run.fails(
        re.escape(
            "Expected the package ctranslate2. Received: an environment without it. Install it: "
            "pip install"
        ),
        "--model_dir=x",
        output,
    )


CONFIG = small_config(vocab_size=11, hidden_dim=4, num_heads=2)


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"share_heads": False},
            "since CTranslate2 has one table for all heads of a layer. Received: "
            "share_heads=False with 2 heads.",
        ),
        (
            {"relative_cross_attention": True},
            "since CTranslate2 does not support them there. Received: "
            "relative_cross_attention=True.",
        ),
        (
            {"position": "relative+sinusoidal", "normalize_first": False},
            "since CTranslate2 adds no sinusoids if the first layer has relative positions. "
            "Received: "
            "position='relative+sinusoidal', normalize_first=False.",
        ),
    ],
)
def test_unsupported_architecture_raises(settings, message, tmp_path):
    config = dataclasses.replace(CONFIG, **settings)
    directory = bare_model_directory(tmp_path / "model", Transformer(config))
    run.fails(
        f"Expected .*{re.escape(message)}",
        f"--model_dir={directory.path}",
        f"--output_dir={tmp_path}/ct2",
    )
    assert not Path(tmp_path / "ct2").exists()


def test_vocabulary_of_another_size_raises(trained_model_dir, tmp_path):
    directory = bare_model_directory(tmp_path / "model", Transformer(CONFIG))
    directory.vocabulary_file().write_bytes((trained_model_dir / "vocab.model").read_bytes())
    directory.write_config(CONFIG.to_dict())
    run.fails(
        "Expected a vocabulary of 11 ids, .* model. Received: .*vocab.model with 211 ids.",
        f"--model_dir={directory.path}", f"--output_dir={tmp_path}/ct2",
    )  # fmt: skip
