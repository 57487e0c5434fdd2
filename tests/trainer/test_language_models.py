"""Tests of language models: import from tensor2tensor, training, and other commands."""

import functools
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from model_directories import subword_vocabulary
from programs import Program
from subprocesses import run_python

from t2t_relpos.models import CausalLM
from t2t_relpos.t2t import config_from_hparams, parse_hparams
from trainer import (
    average,
    evaluate,
    export,
    export_ctranslate2,
    import_t2t,
    train,
    translate,
    visualize,
)
from trainer.config import RunConfig
from trainer.import_t2t import write_checkpoint
from trainer.model_dir import ModelDirectory
from trainer.training.training_model import TrainingModel

RECORDED = Path(__file__).parents[1] / "reference/models"
SMALL = "hidden_size=24,filter_size=40,num_heads=4,num_hidden_layers=2"
V2 = f"{SMALL},max_relative_position=5"
VOCABULARY = subword_vocabulary(["the_", "dog_", "runs_"])
CASES = {
    "timing": ("transformer_tpu", SMALL, "transformer_tpu", SMALL),
    "unshared": ("t_rel_len2048_dropout15_tiny", V2, "t_rel_len2048_dropout15_tiny", V2),
    # The checkpoint says what the hparams leave out.
    "K_of_the_tables": ("lmx_relative", V2, "lmx_relative", SMALL),
    "K_of_tables_per_head": (
        "lmx_relative",
        f"{V2},heads_share_relative_embedding=false",
        "lmx_relative",
        f"{SMALL},heads_share_relative_embedding=false",
    ),
}

run = Program(import_t2t)


def write_random(prefix, hparams_set, hparams, vocab_size):
    """Writes a checkpoint of a language model with random weights, and returns the model."""
    values = parse_hparams(hparams_set, hparams)
    keras.utils.set_random_seed(3)
    model = CausalLM(config=config_from_hparams(values, vocab_size, language_model=True))
    rng = np.random.default_rng(5)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * rng.normal(size=variable.shape).astype("float32"))
    write_checkpoint(model, str(prefix), values["symbol_modality_num_shards"])
    return model


@pytest.fixture
def import_flags(tmp_path):
    """Returns flags that import a language model with random weights and a vocabulary."""
    vocab, prefix = tmp_path / "vocab.subwords", tmp_path / "model.ckpt-7"
    vocab.write_text(VOCABULARY)
    write_random(prefix, "lmx_relative", V2, VOCABULARY.count("\n"))
    flags = {"checkpoint": prefix, "hparams_set": "lmx_relative", "hparams": V2, "vocab": vocab}
    return flags | {"model_dir": tmp_path / "imported"}


@pytest.fixture
def imported(import_flags):
    """Returns the path of an imported language model with a vocabulary."""
    run(**import_flags)
    return import_flags["model_dir"]


def test_language_model_has_no_vocabulary_of_inputs(import_flags):
    message = "Expected no --source_vocab with a language model, which has no inputs."
    run.fails(message, **import_flags, source_vocab=import_flags["vocab"])
    assert not import_flags["model_dir"].exists()


@pytest.mark.parametrize("case", CASES)
def test_import_of_a_model_without_inputs(case, tmp_path, capsys):
    hparams_set, written, given_set, given = CASES[case]
    original = write_random(tmp_path / "model.ckpt-7", hparams_set, written, 37)
    flags = {"checkpoint": tmp_path, "vocab_size": 37, "model_dir": tmp_path / "model"}
    run(**flags, hparams_set=given_set, hparams=given)
    printed = capsys.readouterr().out
    assert "(model: language_model): TransformerConfig(" in printed
    assert "target_space_id = " not in printed
    expects_k = case.startswith("K_")
    line = "max_relative_position = 5 (the length of the checkpoint's tables)\n"
    assert (line in printed) is expects_k
    directory = ModelDirectory.open(tmp_path / "model", "language_model")
    model = directory.load_model()
    assert type(model) is CausalLM
    assert model.config == original.config
    for one, other in zip(model.weights, original.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    ids = np.random.default_rng(1).integers(2, 37, (2, 9))
    np.testing.assert_allclose(model(ids), original(ids), atol=1e-5)
    config = json.loads(directory.config_file.read_text())
    assert (config["model"], config["tokenizer"]) == ("language_model", {"kind": "none"})
    assert directory.read_run()["t2t_hparams"]["num_heads"] == 4


@pytest.mark.parametrize("name", ["16_layers", "bfloat16", "v2_long_k"])
def test_logits_equal_tensor2tensor(name, tmp_path):
    folder = RECORDED / f"language_{name}"
    case = json.loads((folder / "model.json").read_text())
    hparams = ",".join(f"{key}={value}" for key, value in case["overrides"].items())
    flags = {"checkpoint": folder, "hparams_set": case["hparams_set"], "hparams": hparams}
    run(**flags, vocab_size=case["vocab_size"], model_dir=tmp_path / "model")
    model = ModelDirectory.open(tmp_path / "model", "language_model").load_model()
    forward = np.load(folder / "forward.npz")
    atol = 1e-5 * np.abs(forward["logits"]).max()
    np.testing.assert_allclose(model(forward["targets"]), forward["logits"], atol=atol)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"language_model": "false"}, "Expected a checkpoint of a model with an encoder,"),
        ({"hparams": f"{SMALL},max_relative_position=4"}, r"[\s\S]*wrong shape: .*relative_v2"),
        ({"hparams": f"{V2},weight_dtype=float16"}, "Expected weight_dtype to be 'float32'"),
        ({"hparams": f"{V2},factored_logits=true"}, "Expected factored_logits to be False"),
        ({"vocab_size": 36}, r"[\s\S]*symbol_modality_36_24/softmax.*check the vocabulary"),
        ({"hparams_set": "transformer_tpu"}, r"[\s\S]*unexpected: .*relative_v2/key_relative"),
    ],
)
def test_mismatched_checkpoints_raise(flags, message, tmp_path):
    write_random(tmp_path / "model.ckpt-7", "lmx_relative", V2, 37)
    given = {"checkpoint": tmp_path, "vocab_size": 37, "model_dir": tmp_path / "model"}
    run.fails(message, **given | {"hparams_set": "lmx_relative", "hparams": V2} | flags)
    assert not (tmp_path / "model").exists()


def test_language_model_flag_rejects_an_encoder(tmp_path):
    flags = {
        "checkpoint": RECORDED / "relative_short_k",
        "vocab_size": 37,
        "hparams": f"{SMALL},max_relative_position=3",
    }
    flags |= {"hparams_set": "transformer_relative_tiny", "model_dir": tmp_path / "model"}
    run.fails("Expected a checkpoint of a model without encoder", "--language_model", **flags)


def test_other_commands_refuse_a_language_model(imported, tmp_path):
    message = (
        "Expected a model directory with a model of kind translation. Received: .*imported, with a "
        r"model of kind language_model. .*`python -m trainer.export`"
    )
    model_dir, output = f"--model_dir={imported}", f"--output_dir={tmp_path / 'out'}"
    text = [f"--source={__file__}", f"--target={__file__}"]
    Program(evaluate).fails(message, model_dir, *text)
    Program(visualize).fails(message, model_dir, "--source=a", f"--output={tmp_path / 'out'}")
    Program(export_ctranslate2).fails(message, model_dir, output)
    files = dict.fromkeys(("train_source", "train_target"), __file__)
    for settings in (
        {"preset": "tiny", "model_dir": str(imported)},
        {"init_from": str(imported), "model_dir": str(tmp_path / "out")},
    ):
        with pytest.raises(SystemExit, match=f"trainer.train: {message}"):
            train.train(RunConfig(**settings, **files))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def text_of(small_run):
    """Returns settings of a language model that train on the sources of `small_run`."""
    text = dict.fromkeys(small_run.text) | {"train_text": small_run.text["train_source"]}
    return text | {"dev_text": small_run.dev["dev_target"], "batch_tokens": 60}


@pytest.fixture
def trained(small_run, text_of, tmp_path, monkeypatch):
    """Returns `trained(name, **settings)`: trains a language model and returns its directory."""
    eager = functools.partialmethod(TrainingModel.compile, run_eagerly=True)
    monkeypatch.setattr(TrainingModel, "compile", eager)
    common = text_of | {"checkpoint_every": 10, "keep_best": 1, "learning_rate": 1.0}

    def train(name, **settings):
        small_run(tmp_path / name, real_steps=True, **common | settings)
        return ModelDirectory.open(tmp_path / name, "language_model")

    return train


def test_training_of_a_language_model(trained, tmp_path, capsys):
    whole = trained("whole", train_steps=20)
    printed = capsys.readouterr().out
    assert "Training data: 12 of 12 texts are used. Skipped: 0 longer than 256" in printed
    assert "num_encoder_layers" not in printed and "source+target" not in printed
    assert "Best on dev: step " in printed and ", dev loss = " in printed
    trained("parts", train_steps=10)
    parts = trained("parts", train_steps=20)
    for one, other in zip(*(x.load_model().get_weights() for x in (whole, parts)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert parts.evaluations_file.read_text() == whole.evaluations_file.read_text()
    model, tokenizer = whole.load_model(), whole.load_tokenizer()
    assert type(model) is CausalLM and model.config.to_dict() == whole.read_config()["architecture"]

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

    Program(average)(model_dir=whole.path, last=2, output_dir=tmp_path / "mean")
    flags = {"export_dir": tmp_path / "saved", "sampler": "greedy", "max_length": 30}
    Program(export)(model_dir=tmp_path / "mean", **flags)
    exported = tf.saved_model.load(str(tmp_path / "saved/mean/1"))
    mean = ModelDirectory.open(tmp_path / "mean", "language_model").load_model()
    prompts = tokenizer.tokenize(["the dog"])[:, :-1].to_tensor()
    found = exported.signatures["generate"](prompts=prompts)["ids"]
    np.testing.assert_array_equal(found, mean.generate(prompts, "greedy", max_length=30))


def test_best_checkpoint_of_a_language_model_has_the_lowest_loss(trained, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.2])
    result = {"accuracy": 0.5}
    evaluate = lambda *_, **__: result | {"loss": next(losses)}
    monkeypatch.setattr(TrainingModel, "evaluate", evaluate)
    settings = {"train_steps": 9, "evaluate_every": 1, "early_stopping": 2}
    directory = trained("best", **settings)
    assert [x.name for x in directory.best.iterdir()] == ["step-000002"]
    assert len(json.loads(directory.evaluations_file.read_text())) == 4


def test_imported_language_model_is_trained_on_text(imported, small_run, text_of, tmp_path):
    settings = {"preset": None, "vocab_size": None, "init_from": str(imported), "train_steps": 2}
    (tmp_path / "text").write_text("the dog runs\nthe dog\n")
    text = dict.fromkeys(("train_text", "dev_text"), str(tmp_path / "text"))
    small_run(tmp_path / "child", **text_of | settings | text)
    child = ModelDirectory.open(tmp_path / "child", "language_model")
    assert child.load_model().config == ModelDirectory.open(imported).load_model().config
    assert child.tokenizer_kind == "subwords"
    message = "Expected no --beam_size with --text, which evaluates a language model. Received: 2."
    flags = {"model_dir": child.path, "text": tmp_path / "text"}
    Program(evaluate).fails(message, **flags, beam_size=2)


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
def test_commands_in_fresh_processes(import_flags, tmp_path):
    """From a checkpoint to a SavedModel that a client without this package calls."""
    from t2t_relpos.decoding import score_tokens

    run(**import_flags | {"hparams": SMALL, "model_dir": tmp_path / "run"})
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
def test_flags_of_an_export_fit_the_sampler(imported, flags, message):
    Program(export).fails(message, f"--model_dir={imported}", *flags)


def test_export_of_a_translation_model_rejects_samplers(trained_model_dir):
    flags = f"--model_dir={trained_model_dir}", "--sampler=greedy"
    Program(export).fails("Expected no --sampler with a model of kind translation", *flags)
