"""Tests of exports for CTranslate2: files, scores and errors."""

import json
import platform
import shutil
import sys

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from model_directories import bare_model_directory, import_random_model
from programs import Program
from small_transformers import small_config
from subprocesses import environment, run_python

from examples.synthetic_corpus import generate
from t2t_relpos.models import Transformer
from trainer import export_ctranslate2
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.tokenizer import Tokenizers
from trainer.model_dir import ModelDirectory

run = Program(export_ctranslate2)
# On AMD processors without VNNI, CTranslate2 multiplies int8 with sums that saturate, unless it
# uses MKL, which is in its packages for x86. It reads the variable once a process.
EXACT_INT8 = {"CT2_USE_MKL": "1"} if platform.machine() == "x86_64" else {}
SCORE = """
import ctranslate2, json, sys
path, *texts = json.load(sys.stdin)
model = ctranslate2.Translator(path, device="cpu", intra_threads=1)
scores = [result.log_probs for result in model.score_batch(*texts)]
print(json.dumps([model.compute_type, scores]))
"""


@pytest.fixture(scope="module")
def load():
    """Returns a function that loads a model with CTranslate2. Skips tests without the package."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs: pip install '.[ctranslate2]'")
    return lambda path: ctranslate2.Translator(str(path), device="cpu", intra_threads=1)


@pytest.fixture(scope="module")
def written(load, trained_model_dir, tmp_path_factory):
    """Returns the path of the tiny trained model in CTranslate2's format."""
    directory = tmp_path_factory.mktemp("ctranslate2") / "tiny"
    run(f"--model_dir={trained_model_dir}", f"--output_dir={directory}")
    return directory


@pytest.fixture(scope="module")
def int8(load, trained_model_dir, tmp_path_factory):
    """Returns the path of the tiny trained model in CTranslate2's format with int8 weights."""
    directory = tmp_path_factory.mktemp("ctranslate2") / "int8"
    export_ctranslate2.export(trained_model_dir, directory, "int8")
    return directory


@pytest.fixture
def int8_scores(load):
    """Returns the module `trainer.serving.int8_scores`."""
    from trainer.serving import int8_scores

    return int8_scores


def token_scores(model, source, target):
    """Returns the log-probabilities of the ids of a target and EOS. Padding has probability 0."""
    inputs = {"inputs": np.array([source + [1]]), "targets": np.array([target + [1]])}
    logits = model(inputs)[0].numpy()
    logits[:, 0] = -1e9
    return tf.nn.log_softmax(logits).numpy()[range(len(target) + 1), target + [1]]


def test_scores_in_int8_are_close_to_the_trained_model(written, trained_model_dir, int8):
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(written / "vocab.model"))
    model = ModelDirectory.open(trained_model_dir).load_model()
    texts = [list(side) for side in zip(*generate("test", size=11))]
    arguments = [str(int8), *([pieces.encode(side, out_type=str) for side in texts])]
    done = run_python("-c", SCORE, env=environment(**EXACT_INT8), input=json.dumps(arguments))
    compute_type, found = json.loads(done.stdout)
    assert compute_type == "int8_float32"
    expected = [token_scores(model, *pair) for pair in zip(*map(pieces.encode, texts))]
    found, expected = map(np.concatenate, (found, expected))
    assert 1e-4 < np.abs(found - expected).mean() < 0.02 * np.abs(expected).mean()


@pytest.mark.slow
def test_int8_is_compared_with_float32(
    written, load, trained_model_dir, int8, int8_scores, tmp_path
):
    directory = ModelDirectory.open(shutil.copytree(trained_model_dir, tmp_path / "model"))
    pairs = [("", "leer"), *generate("dev", size=18)]
    for side, lines in zip(("source", "target"), zip(*pairs)):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    directory.write_run({f"dev_{side}": str(tmp_path / side) for side in ("source", "target")})
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(written / "vocab.model"))
    tokens = [pieces.encode(list(side), out_type=str) for side in zip(*pairs[1:17])]
    # The same processor as in the comparison, whatever it computes in int8.
    exact, quantized = (
        np.concatenate([result.log_probs for result in load(path).score_batch(*tokens)])
        for path in (written, int8)
    )
    found = int8_scores.compare(directory.path, int8)
    assert found.texts == "16 dev sentences"
    assert found.measured == pytest.approx(np.abs(quantized - exact).mean(), abs=1e-4)
    assert 0 < found.simulated < 0.02 * np.abs(exact).mean()
    (tmp_path / "source").unlink()
    found = int8_scores.compare(directory.path, int8)
    assert found.texts == "16 random sentences"
    assert found.measured > 0 and found.simulated > 0


@pytest.mark.parametrize(("measured", "warned"), [(0.029, False), (0.031, True)])
def test_inexact_int8_is_reported(
    measured, warned, int8_scores, tmp_path, monkeypatch, capsys, caplog
):
    scores = int8_scores.Int8Scores("16 dev sentences", measured, 0.01)
    monkeypatch.setattr(export_ctranslate2, "export", lambda *arguments, force: None)
    monkeypatch.setattr(int8_scores, "compare", lambda *paths: scores)
    directory = ModelDirectory.create(tmp_path / "model")
    directory.write_config({})
    run(f"--model_dir={directory.path}", "--output_dir=ct2", "--quantization=int8_float32")
    assert capsys.readouterr().out.splitlines() == [
        "Wrote ct2",
        f"Scores of 16 dev sentences in int8 differ from float32 by {measured:.4f} per token "
        "on this machine (simulated: 0.0100).",
        "On AMD processors without VNNI, set CT2_USE_MKL=1 when you translate.",
    ]
    assert ("int8 is not exact on this processor. Set CT2_USE_MKL=1" in caplog.text) == warned


def check_scores_and_files(directory, texts, load, written):
    """Writes a model and asserts that CT2's score of a pair of texts is that of the model.

    Without a vocabulary, the names of ids are numbers.
    """
    run(f"--model_dir={directory.path}", f"--output_dir={written}")
    model, vocabularies = directory.load_model(), directory.vocabulary_files
    sides = ["source", "target"] if len(vocabularies) == 2 else ["shared"]
    files = [f"{side}_vocabulary.json" for side in sides]
    assert {path.name for path in written.iterdir()} == {
        *("config.json", "model.bin", *files, *(file.name for file in vocabularies))
    }
    for file in vocabularies:
        assert (written / file.name).read_bytes() == file.read_bytes()
    names = [json.loads((written / file).read_text()) for file in (files[0], files[-1])]
    start = json.loads((written / "config.json").read_text())["decoder_start_token"]
    assert start == names[1][0]
    if vocabularies:
        tokenizers = directory.load_tokenizers()
        ids = [each.tokenize([text]).to_list()[0][:-1] for each, text in zip(tokenizers, texts)]
        if directory.tokenizer_kind == "sentencepiece":
            assert names == [[*each.names] for each in tokenizers]
    else:
        ids = [5, 9], [7, 5]
        assert names[0] == [str(i) for i in range(model.config.vocab_size)]
    tokens = [[each[i] for i in row] for each, row in zip(names, ids)]
    (result,) = load(written).score_batch(*([side] for side in tokens))
    np.testing.assert_allclose(result.log_probs, token_scores(model, *ids), atol=1e-4)
    return names, tokens


@pytest.mark.parametrize("kind", ["pair", "two vocabularies"])
def test_scores_and_files_of_each_kind_of_vocabulary(load, finish, kind, tmp_path):
    texts = "the dog sees a man", "der cat sieht einen man"
    check_scores_and_files(finish(kind).directory, texts, load, tmp_path / "ct2")


def test_scores_and_files_of_an_imported_model(load, tmp_path):
    """Some subtokens are equal or empty. The model has a target space."""
    words = ["the_", "dog_", "", "dog_", "abcdefghijklmnopqrstuvwxyz_"]
    hparams = "hidden_size=8,filter_size=10,num_heads=2,num_hidden_layers=1,max_relative_position=3"
    directory = ModelDirectory.open(
        import_random_model(tmp_path, hparams, words, target_space_id=5)
    )
    texts = "the dog, a dog", "dog the 7"
    names, _ = check_scores_and_files(directory, texts, load, tmp_path / "ct2")
    assert names[0][:6] == ["<pad>_", "<EOS>_", "the_", "<id 3>", "<id 4>", "dog_"]
    bare = bare_model_directory(tmp_path / "bare", directory.load_model())
    check_scores_and_files(bare, texts, load, tmp_path / "ids")


def test_scores_and_files_of_a_vocabulary_with_bytes(load, tmp_path):
    lines = [text for pair in generate("dev", size=31) for text in pair]
    tokenizer = SentencePieceTokenizer.train(lines, vocab_size=320, byte_fallback=True)
    model = Transformer(small_config(vocab_size=320))
    directory = bare_model_directory(tmp_path / "model", model)
    directory.save_tokenizers(tokenizers := Tokenizers.shared(tokenizer))
    directory.write_config(model.config.to_dict(), tokenizers)
    texts = ["the 好"] * 2
    _, (tokens, _) = check_scores_and_files(directory, texts, load, tmp_path / "ct2")
    assert tokens[-3:] == ["<0xE5>", "<0xA5>", "<0xBD>"]
    pieces = sentencepiece.SentencePieceProcessor(model_file=f"{tmp_path}/ct2/vocab.model")
    assert pieces.encode(texts[0], out_type=str) == tokens


def test_limit_of_training_above_that_of_ctranslate2_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(export_ctranslate2, "export", lambda *arguments, force: None)
    directory = ModelDirectory.create(tmp_path / "model")
    directory.write_config({})
    for trained, lines in ((1024, 1), (1025, 2)):
        directory.write_run({"max_length": trained})
        run(f"--model_dir={directory.path}", f"--output_dir={tmp_path}/ct2")
        printed = capsys.readouterr().out
        assert len(printed.splitlines()) == lines
        assert ("Give max_input_length=1025 to translate_batch." in printed) == (lines == 2)


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


def test_failed_write_leaves_no_files(load, trained_model_dir, tmp_path, fill_disk):
    fill_disk(export_ctranslate2.shutil, "copy")
    message = (
        r"Expected a file that can be read or written. Received: .*ct2 \(No space left on device\)."
    )
    run.fails(message, f"--model_dir={trained_model_dir}", f"--output_dir={tmp_path}/ct2")
    assert list(tmp_path.iterdir()) == []


def test_invalid_flags_and_missing_package_raise(load, tmp_path, monkeypatch, capsys):
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
    with pytest.raises(SystemExit, match="^2$"):
        run("--model_dir=x", output)
    assert capsys.readouterr().err == (
        "trainer.export_ctranslate2: Expected the package ctranslate2. Received: an environment "
        "without it. Install it: pip install 't2t-relpos[ctranslate2]'.\n"
    )


def test_vocabulary_of_another_size_raises(load, trained_model_dir, tmp_path):
    config = small_config(vocab_size=11)
    directory = bare_model_directory(tmp_path / "model", Transformer(config))
    tokenizers = ModelDirectory.open(trained_model_dir).load_tokenizers()
    directory.save_tokenizers(tokenizers)
    directory.write_config(config.to_dict(), tokenizers)
    run.fails(
        "Expected a vocabulary of 11 ids, .* model. Received: .*vocab.model with 211 ids.",
        f"--model_dir={directory.path}", f"--output_dir={tmp_path}/ct2",
    )  # fmt: skip
