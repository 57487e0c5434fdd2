"""Tests of language models: training, evaluation, export, and the programs that refuse them."""

import contextlib
import functools
import io
import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from comparisons import assert_all_equal
from programs import Program
from subprocesses import run_python

from t2t_relpos.decoding import score_tokens
from t2t_relpos.models import CausalLM
from trainer import evaluate, export, export_ctranslate2, train, translate, visualize
from trainer.config import RunConfig
from trainer.model_dir import ModelDirectory
from trainer.training.training_model import TrainingModel


@pytest.fixture
def text_model(finish):
    """Returns the path of a language model, which tests must not change."""
    return finish("text").path


def test_other_commands_refuse_a_language_model(text_model, tmp_path):
    message = (
        f"Expected a model directory with a model of kind translation. Received: {text_model}, "
        r"with a model of kind language_model. .*`python -m trainer.export`"
    )
    model_dir, output = f"--model_dir={text_model}", f"--output_dir={tmp_path / 'out'}"
    text = [f"--source={__file__}", f"--target={__file__}"]
    Program(evaluate).fails(message, model_dir, *text)
    Program(visualize).fails(message, model_dir, "--source=a", f"--output={tmp_path / 'out'}")
    Program(export_ctranslate2).fails(message, model_dir, output)
    files = dict.fromkeys(("train_source", "train_target"), __file__)
    for settings in (
        {"preset": "tiny", "model_dir": str(text_model)},
        {"init_from": str(text_model), "model_dir": str(tmp_path / "out")},
    ):
        with pytest.raises(SystemExit, match=f"trainer.train: {message}"):
            train.train(RunConfig(**settings, **files))
    assert not (tmp_path / "out").exists()


def train_on_text(small_run, path, *train_steps):
    """Trains with real steps, in as many runs as numbers of steps. Returns the printed lines."""
    eager = functools.partialmethod(TrainingModel.compile, run_eagerly=True)
    settings = {"checkpoint_every": 6, "keep_best": 1, "learning_rate": 1.0}
    settings |= small_run.settings("text")
    with mock.patch.object(TrainingModel, "compile", eager):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            for steps in train_steps:
                small_run(path, real_steps=True, train_steps=steps, **settings)
    return output.getvalue()


@pytest.fixture(scope="module")
def learned(small_run, made_once):
    """Returns the directory of a language model that was trained with real steps."""
    path = made_once("learned_text", lambda path: train_on_text(small_run, path, 12))
    return ModelDirectory.open(path)


def test_resumed_training_equals_the_whole(learned, small_run, tmp_path):
    printed = train_on_text(small_run, tmp_path, 6, 12)
    assert "Best on dev: step " in printed and ", dev loss = " in printed
    assert " tokens/s" in printed and "source+target" not in printed
    parts = ModelDirectory.open(tmp_path)
    assert_all_equal(learned.load_model().get_weights(), parts.load_model().get_weights())
    assert parts.evaluations_file.read_text() == learned.evaluations_file.read_text()


def test_perplexity_of_a_text(learned, tmp_path, capsys):
    model, tokenizer = learned.load_model(), learned.load_tokenizer()
    assert type(model) is CausalLM
    # The loss of the text that it was trained on, and of a text with a blank line.
    lines = ["the dog sees a man", "", " the cat sees  a tree"]
    (tmp_path / "text").write_text("\n".join(lines))
    Program(evaluate)(model_dir=learned.path, text=tmp_path / "text", checkpoint="latest")
    output = capsys.readouterr()
    scores = model.score(tokenizer.tokenize([lines[0], lines[2].strip()]).to_tensor())
    loss, pieces = -float(sum(scores.scores)), int(sum(scores.lengths))
    assert output.err.startswith("test data: 3 texts, 1 blank.\n  text: ")
    assert loss / pieces < 2.5 < np.log(40)
    expected = [
        f"test perplexity per piece = {np.exp(loss / pieces):.2f}  ({pieces} pieces, ",
        f"test perplexity per word = {np.exp(loss / 12):.2f}  (12 words, ",
    ]
    for line, start in zip(output.out.splitlines()[1:], expected, strict=True):
        assert line == f"{start}with the end of each of 2 texts)"

    (tmp_path / "text").write_text("thedogseesaman" * 90)
    Program(evaluate)(model_dir=learned.path, text=tmp_path / "text")
    assert re.search(r"per word = (inf|\d\.\d*e\+\d+)  \(2 words", capsys.readouterr().out)

    message = "Expected no --beam_size with --text, which evaluates a language model. Received: 2."
    Program(evaluate).fails(message, model_dir=learned.path, text=tmp_path / "text", beam_size=2)


def test_export_has_signatures_for_ids_and_text(learned, eager_searches, tmp_path, capsys):
    saved = tmp_path / "mine"
    flags = {"export_dir": tmp_path, "name": "mine", "sampler": "greedy", "max_length": 14}
    Program(export)(model_dir=learned.path, **flags)
    assert capsys.readouterr().out.splitlines() == [
        f"Wrote {saved}/1",
        "Signatures: generate, score, generate_text, score_text.",
        "Outputs have at most 14 ids, with the prompt.",
    ]
    signatures = tf.saved_model.load(str(saved / "1")).signatures
    check_signatures(signatures, learned.load_model(), learned.load_tokenizer())
    message = f".*{saved}/1, which returns nothing. Write one with .* for translation."
    Program(translate).fails(message, saved_model=saved, input=__file__)


def check_signatures(signatures, model, tokenizer):
    """Asserts that signatures return what the model returns. Outputs have at most 14 ids."""
    text = tf.constant(["the dog", "a"])
    prompts = tokenizer.tokenize(text)[:, :-1].to_tensor()
    expected = model.generate(prompts, "greedy", max_length=14)
    found = signatures["generate"](prompts=prompts)
    np.testing.assert_array_equal(found["ids"], expected)
    np.testing.assert_array_equal(found["lengths"], (expected != 0).sum(1))
    found = signatures["generate_text"](text=text)["texts"].numpy()
    np.testing.assert_array_equal(found, tokenizer.detokenize(expected))
    ids = tokenizer.tokenize(text).to_tensor()
    expected, from_text = score_tokens(model(ids), ids), signatures["score_text"](text=text)
    for found in signatures["score"](ids=ids), from_text:
        np.testing.assert_allclose(found["token_scores"], expected.token_scores, atol=1e-4)
        np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-4)
        np.testing.assert_array_equal(found["lengths"], np.count_nonzero(ids, axis=1))
    np.testing.assert_array_equal(from_text["tokens"], tokenizer.pieces(ids))


CLIENT = """
import sys
import tensorflow as tf
import tensorflow_text

signature = tf.saved_model.load(sys.argv[1]).signatures["generate_text"]
print(signature(text=tf.constant(["the dog"]))["texts"].numpy()[0].decode())
assert not any(name.startswith("t2t_relpos") for name in sys.modules)
"""


@pytest.mark.slow
def test_exported_language_model_needs_no_package(text_model, tmp_path):
    Program(export)(model_dir=text_model, export_dir=tmp_path, max_length=14)
    done = run_python("-c", CLIENT, tmp_path / "model" / "1", cwd=tmp_path)
    assert done.stdout.startswith("the dog")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--extra_length=3"], "Expected no --extra_length with a model of kind language_model"),
        (["--precision=bfloat16"], "Expected no --precision with a model of kind language_model"),
        (["--temperature=0.5"], "Expected no --temperature with a model of kind language_model"),
        (["--sampler=random", "--beam_size=2"], "Expected no --beam_size .* --sampler=random"),
        (["--sampler=random", "--top_p=1.5"], "Expected top_p to be at most 1. Received: 1.5"),
        (["--sampler=random", "--top_k=0"], "Expected top_k to be at least 1. Received: 0"),
        (["--max_length=0"], "Expected max_length to be at least 1. Received: 0"),
    ],
)
def test_flags_of_an_export_fit_the_sampler(text_model, flags, message):
    Program(export).fails(message, f"--model_dir={text_model}", *flags)


def test_export_of_a_translation_model_rejects_samplers(finished_run):
    flags = f"--model_dir={finished_run}", "--sampler=greedy"
    Program(export).fails("Expected no --sampler with a model of kind translation", *flags)
