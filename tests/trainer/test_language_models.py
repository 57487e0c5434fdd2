"""Tests of language models: training, evaluation, export, and the programs that refuse them."""

import functools
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from comparisons import assert_all_equal
from model_directories import import_random_model
from programs import Program
from subprocesses import run_python

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


def test_training_of_a_language_model(small_run, eager_searches, tmp_path, monkeypatch, capsys):
    """With real steps. The run that resumes equals the whole one."""
    eager = functools.partialmethod(TrainingModel.compile, run_eagerly=True)
    monkeypatch.setattr(TrainingModel, "compile", eager)
    settings = {"checkpoint_every": 6, "keep_best": 1, "learning_rate": 1.0}
    settings |= small_run.settings("text")
    for name, steps in (("whole", 12), ("parts", 6), ("parts", 12)):
        small_run(tmp_path / name, real_steps=True, train_steps=steps, **settings)
    whole, parts = (ModelDirectory.open(tmp_path / name) for name in ("whole", "parts"))
    printed = capsys.readouterr().out
    assert "Best on dev: step " in printed and ", dev loss = " in printed
    assert " tokens/s" in printed and "source+target" not in printed
    assert_all_equal(whole.load_model().get_weights(), parts.load_model().get_weights())
    assert parts.evaluations_file.read_text() == whole.evaluations_file.read_text()
    model, tokenizer = whole.load_model(), whole.load_tokenizer()
    assert type(model) is CausalLM

    # The loss of the text that it was trained on, and of a text with a blank line.
    lines = ["the dog sees a man", "", " the cat sees  a tree"]
    (tmp_path / "text").write_text("\n".join(lines))
    capsys.readouterr()
    Program(evaluate)(model_dir=whole.path, text=tmp_path / "text", checkpoint="latest")
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
    Program(evaluate)(model_dir=whole.path, text=tmp_path / "text")
    assert re.search(r"per word = (inf|\d\.\d*e\+\d+)  \(2 words", capsys.readouterr().out)

    message = "Expected no --beam_size with --text, which evaluates a language model. Received: 2."
    Program(evaluate).fails(message, model_dir=whole.path, text=tmp_path / "text", beam_size=2)

    flags = {"export_dir": tmp_path / "saved", "sampler": "greedy", "max_length": 30}
    Program(export)(model_dir=whole.path, **flags)
    exported = tf.saved_model.load(str(tmp_path / "saved/whole/1"))
    prompts = tokenizer.tokenize(["the dog"])[:, :-1].to_tensor()
    found = exported.signatures["generate"](prompts=prompts)["ids"]
    np.testing.assert_array_equal(found, model.generate(prompts, "greedy", max_length=30))


CLIENT = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow_text

path, calls = sys.argv[1], json.loads(sys.argv[2])
loaded = tf.saved_model.load(path)
answers = []
for name, arguments in calls:
    arguments = {key: tf.constant(value) for key, value in arguments.items()}
    found = loaded.signatures[name](**arguments)
    answers.append({key: value.numpy().astype(object).tolist() for key, value in found.items()})
assert not any(name.startswith("t2t_relpos") for name in sys.modules)
print(json.dumps(answers, default=bytes.decode))
"""


@pytest.mark.slow
def test_commands_in_fresh_processes(tmp_path):
    """From a checkpoint to a SavedModel that a client without this package calls."""
    from t2t_relpos.decoding import score_tokens

    hparams = "hidden_size=24,filter_size=40,num_heads=4,num_hidden_layers=2"
    hparams += ",max_relative_position=5"
    settings = {"hparams_set": "lmx_relative", "language_model": True}
    path = import_random_model(tmp_path, hparams, ["the_", "dog_", "runs_"], **settings)
    path.rename(tmp_path / "run")
    model = ModelDirectory.open(tmp_path / "run").load_model()
    options = ["--model_dir=run", "--sampler=greedy", "--max_length=14"]
    exported = run_python("-m", "trainer.export", *options, cwd=tmp_path).stdout
    assert exported.splitlines() == [
        "Wrote saved_models/run/1",
        "Signatures: generate, score, generate_text, score_text.",
        "Outputs have at most 14 ids, with the prompt.",
    ]
    prompts, ids = [[2, 3], [4, 0]], [[2, 3, 4, 1], [3, 1, 0, 0]]
    calls = [["generate", {"prompts": prompts}], ["score", {"ids": ids}]]
    calls += [["generate_text", {"text": ["the dog", "runs"]}]]
    calls += [["score_text", {"text": ["the dog runs", "dog"]}]]
    path = tmp_path / "saved_models/run/1"
    command = "-c", CLIENT, path, json.dumps(calls)
    found, scores, texts, text_scores = json.loads(run_python(*command, cwd=tmp_path).stdout)
    expected = model.generate(np.array(prompts), "greedy", max_length=14, jit_compile=False)
    assert found["ids"] == expected.tolist()
    assert found["lengths"] == (expected != 0).sum(1).tolist()
    tokenizer = ModelDirectory.open(tmp_path / "run").load_tokenizer()
    assert texts["texts"] == [t.decode() for t in tokenizer.detokenize(expected).numpy()]
    assert texts["texts"][0].startswith("the dog")
    expected = score_tokens(model(np.array(ids)), ids)
    for answer in (scores, text_scores):
        np.testing.assert_allclose(answer["token_scores"], expected.token_scores, atol=1e-4)
        np.testing.assert_allclose(answer["scores"], expected.scores, rtol=1e-4)
        assert answer["lengths"] == [4, 2]
    assert text_scores["tokens"][1] == ["dog_", "<EOS>_", "", ""]
    message = ".*saved_models/run/1, which returns nothing. Write one with .* for translation."
    Program(translate).fails(message, saved_model=path.parent, input=__file__)


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
