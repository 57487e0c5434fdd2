import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from programs import Program

from trainer import export
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_module import TranslationModule, TranslationSettings

run = Program(export)


@pytest.fixture
def calls(monkeypatch):
    """Returns the arguments of the calls that load the model and write it. Neither is done."""
    made = []

    def write(module, directory, version):
        made.append((module, directory, version))
        return directory / "7"

    monkeypatch.setattr(export, "export", write)
    monkeypatch.setattr(
        TranslationModule, "from_model_dir", lambda *given: made.append(given) or "module"
    )
    return made


def test_flags_are_settings_of_the_module(calls, trained_model_dir, tmp_path, capsys):
    flags = ["--beam_size=2", "--alpha=0.25", "--max_input_length=11", "--extra_length=3"]
    flags += ["--precision=bfloat16", "--version=7", "--name=my model", f"--export_dir={tmp_path}"]
    run(f"--model_dir={trained_model_dir}", *flags)
    assert capsys.readouterr().out.splitlines() == [
        f"Wrote {tmp_path}/my model/7",
        "Sentences of more than 11 tokens are truncated.",
        f"Translate with it: python -m trainer.translate '--saved_model={tmp_path}/my model' < "
        "source.txt",
    ]
    settings = TranslationSettings(beam_size=2, alpha=0.25, max_input_length=11, extra_length=3)
    assert calls == [
        (trained_model_dir, settings, "bfloat16"),
        ("module", tmp_path / "my model", 7),
    ]


def test_name_defaults_to_the_model_directory(calls, trained_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(trained_model_dir)
    for model_dir in (trained_model_dir, f"{trained_model_dir}/", "."):
        run(f"--model_dir={model_dir}", f"--export_dir={tmp_path}")
        assert calls[-2:] == [
            (Path(model_dir), TranslationSettings(), "float32"),
            ("module", tmp_path / "tiny", None),
        ]


@pytest.mark.parametrize(
    ("trained", "architecture", "expected"),
    [
        (1000, {}, 1000),
        (64, {}, 256),
        (None, {}, 256),
        (1000, {"position": "learned", "max_length": 1000}, 1000),
        (64, {"position": "learned", "max_length": 64}, 64),
        (1000, {"position": "relative", "max_length": 256}, 1000),
    ],
)
def test_maximum_input_length_defaults_to_that_of_the_run(
    calls, tmp_path, capsys, trained, architecture, expected
):
    directory = ModelDirectory.create(tmp_path / "model")
    directory.write_config(architecture)
    directory.write_run({"max_length": trained})
    run(f"--model_dir={directory.path}", f"--export_dir={tmp_path}")
    assert calls[0][1] == TranslationSettings(max_input_length=expected)
    assert f"Sentences of more than {expected:,} tokens are truncated.\n" in capsys.readouterr().out


def test_bfloat16_keeps_scores(trained_model_dir, make_module, sentences):
    module = TranslationModule.from_model_dir(trained_model_dir, precision="bfloat16")
    dtypes = {weight.dtype for weight in module.transformer.variables}
    assert dtypes == {tf.float32, tf.bfloat16}
    ids = module.tokenizers.source.tokenize(sentences).to_tensor()
    found, expected = (each.transformer.score(ids, ids) for each in (module, make_module()))
    # Ten products with weights follow each other. Each rounds its input and its output, and the
    # kernels are rounded too: relative errors of at most half the epsilon of bfloat16, 2**-7. With
    # random signs, their sum is about sqrt(30) * 2**-8 of the largest values.
    tolerance = 30**0.5 * 2**-8
    largest = np.abs(expected.token_scores).max()
    np.testing.assert_allclose(found.token_scores, expected.token_scores, atol=tolerance * largest)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=tolerance)


@pytest.mark.slow
def test_signatures_use_the_vocabulary_of_their_side(each_exported_dir, each_model_dir, sentences):
    signatures = tf.saved_model.load(str(each_exported_dir / "1")).signatures
    directory = ModelDirectory.open(each_model_dir)
    model, (source, target) = directory.load_model(), directory.load_tokenizers()
    texts = tf.constant(sentences[:2])
    ids = source.tokenize(texts).to_tensor()
    np.testing.assert_array_equal(signatures["ids"](text=texts)["ids"], ids)
    tokens = signatures["tokenize"](text=texts)["tokens"]
    assert tokens.numpy().tolist() == source.pieces(ids).numpy().tolist()
    translations = signatures["serving_default"](text=texts)["translations"]
    found = target.tokenize(translations).to_tensor()
    text = signatures["detokenize"](ids=found)["text"]
    assert text.numpy().tolist() == translations.numpy().tolist()
    scored = signatures["score"](text=texts, translation=translations)
    assert scored["tokens"].numpy().tolist() == target.pieces(found).numpy().tolist()
    expected = model.score(ids, found).scores
    np.testing.assert_allclose(scored["scores"], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        *(
            (
                [f"--name={name}"],
                "Expected --name to be the name of one folder. Received: "
                f"{re.escape(repr(name))}. Set its parent folder",
            )
            for name in ("", "..", "a/b")
        ),
        (["--model_dir=empty"], "Expected a model directory, which has a config.json. Received:"),
        (["--export_dir=file"], "Expected a file that can be read or written. Received:"),
        (["--beam_size=0"], "Expected beam_size to be at least 1. Received: 0."),
    ],
)
def test_invalid_flags_raise(flags, message, trained_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    run.fails(message, f"--model_dir={trained_model_dir}", "--export_dir=out", *flags)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]
