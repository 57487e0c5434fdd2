import re

import numpy as np
import pytest
import tensorflow as tf
from programs import Program

from trainer import export
from trainer.serving import saved_models
from trainer.serving.translation_module import TranslationModule
from trainer.serving.translator import Translator

run = Program(export)


def test_exported_model_equals_the_model_in_this_process(make_module, loaded, sentences):
    module = make_module()
    text = tf.constant(sentences)
    for settings in ({}, {"beam_size": 3, "alpha": 0.0, "max_length": 17, "num_results": 2}):
        settings = module.defaults() | {
            name: tf.constant(value) for name, value in settings.items()
        }
        answer, expected = loaded.translate(text, **settings), module.translate(text, **settings)
        assert answer["translations"].numpy().tolist() == expected["translations"].numpy().tolist()
        assert answer["truncated"].numpy().tolist() == expected["truncated"].numpy().tolist()
        np.testing.assert_allclose(answer["scores"], expected["scores"], atol=1e-5)


def test_command_writes_a_version_with_its_settings(
    trained_model_dir, make_module, sentences, tmp_path, capsys
):
    arguments = [f"--model_dir={trained_model_dir}", f"--export_dir={tmp_path}", "--name=mine"]
    run(*arguments, "--beam_size=2", "--alpha=0.25", "--max_input_length=11", "--extra_length=3")
    assert capsys.readouterr().out.splitlines() == [
        f"Wrote {tmp_path}/mine/1",
        f"Translate with it: python -m trainer.translate --saved_model={tmp_path}/mine < "
        "source.txt",
    ]
    module = make_module(max_input_length=11, beam_size=2, alpha=0.25, extra_length=3)
    expected = [answer.text for answer in Translator(module.serve, module)(sentences)]
    assert [answer.text for answer in saved_models.load(tmp_path / "mine")(sentences)] == expected
    run.fails(
        "Expected a version that does not exist yet. Received: .*/mine/1, which exists.",
        *arguments,
        "--version=1",
    )


def test_bfloat16_makes_the_export_smaller_and_keeps_scores(
    trained_model_dir, exported_dir, loaded, sentences, tmp_path
):
    arguments = [f"--model_dir={trained_model_dir}", f"--export_dir={tmp_path}", "--name=mine"]
    run(*arguments, "--precision=bfloat16", "--max_input_length=47")

    def size(path):
        return sum(file.stat().st_size for file in path.rglob("variables.data*"))

    assert size(tmp_path / "mine") < 0.9 * size(exported_dir)
    text = tf.constant(sentences)
    translation = loaded.serve(text)["translations"]
    bfloat16 = tf.saved_model.load(str(tmp_path / "mine" / "1"))
    found = bfloat16.score(text, translation)
    expected = loaded.score(text, translation)
    np.testing.assert_allclose(found["token_scores"], expected["token_scores"], atol=0.1)
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=0.02)


def test_name_defaults_to_the_model_directory(trained_model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(TranslationModule, "from_model_dir", lambda *arguments: None)
    monkeypatch.setattr(
        export, "export", lambda module, directory, version: written.append(directory)
    )
    written = []
    monkeypatch.chdir(trained_model_dir)
    for model_dir in (trained_model_dir, f"{trained_model_dir}/", "."):
        run(f"--model_dir={model_dir}", f"--export_dir={tmp_path}")
    assert written == [tmp_path / "tiny"] * 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        *(
            (
                [f"--name={name}"],
                "Expected --name to be the name of one folder. Received: "
                f"{re.escape(repr(name))}. Set its parent folder",
            )
            for name in ("", "..", ".", "a/b", "/a")
        ),
        (
            ["--model_dir=empty"],
            "Expected a model directory, which has a config.json. Received: .*empty, which has "
            "none.",
        ),
        (
            ["--export_dir=file"],
            r"Expected an export folder that can be written. Received: .*file/tiny "
            r"\(Not a directory\)\.",
        ),
        (["--beam_size=0"], "Expected beam_size to be at least 1. Received: 0."),
    ],
)
def test_invalid_flags_raise(flags, message, trained_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    run.fails(message, f"--model_dir={trained_model_dir}", "--export_dir=out", *flags)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]
