"""Tests of `trainer.visualize`: the page, the plots, and errors."""

import importlib.util
import json
import re
import shutil

import pytest
from markers import needs_matplotlib
from programs import Program

from trainer import visualize
from trainer.model_dir import ModelDirectory

SENTENCE, TRANSLATION = "The dog sleeps .", "Der Hund schläft ."


run = Program(visualize)


def test_page_of_a_given_translation(trained_model_dir, tmp_path, capsys):
    page = tmp_path / "page.html"
    run(model_dir=trained_model_dir, source=SENTENCE, target=TRANSLATION, output=page)
    output = capsys.readouterr().out
    assert re.fullmatch(rf"Wrote {page} \([0-9.]+ MB\): {SENTENCE} -> {TRANSLATION}\n", output)
    text = page.read_text()
    assert f"<h1>{SENTENCE}</h1>\n<p>{TRANSLATION} (given translation)</p>" in text
    labels = re.findall(r'"ticktext":(\[[^]]*\])', text)
    assert "".join(json.loads(labels[0])) == "▁The▁dog▁sleeps▁.&lt;/s&gt;"


def test_page_of_a_generated_translation(trained_model_dir, tmp_path):
    page = tmp_path / "page.html"
    run(model_dir=trained_model_dir, source="</script><script>alert(1)", output=page)
    text = page.read_text()
    assert "<h1>&lt;/script&gt;&lt;script&gt;alert(1)</h1>" in text
    assert "(translation by the model)</p>" in text and "<script>alert" not in text


@needs_matplotlib
@pytest.mark.slow
def test_plots_of_a_checkpoint(small_run, tmp_path, capsys):
    small_run(tmp_path / "run")
    capsys.readouterr()
    plots = tmp_path / "plots"
    run(model_dir=tmp_path / "run", checkpoint=4, plots=plots)
    assert capsys.readouterr().out.splitlines() == [
        f"checkpoint {tmp_path}/run/checkpoints/step-000004",
        f"Wrote {plots}/learning_curves.png",
        f"Wrote {plots}/table_norms.png",
    ]
    names = sorted(file.name for file in plots.iterdir())
    assert names == ["learning_curves.png", "table_norms.png"]
    run.fails(".*3", model_dir=tmp_path / "run", checkpoint=3, plots=plots)


def test_plots_without_matplotlib_raise(trained_model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"Expected matplotlib. Received: none. Run `pip install '.\[plots\]'`."
    run.fails(message, model_dir=trained_model_dir, plots=tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


def test_invalid_flags_raise(trained_model_dir, tmp_path):
    model, page = trained_model_dir, tmp_path / "page.html"
    neither = "Expected --source and --output, or --plots. Received: neither."
    run.fails(neither, model_dir=model)
    run.fails(neither, model_dir=model, source=SENTENCE)
    run.fails("Expected --source with --output. Received: none.", model_dir=model, output=page)
    run.fails(
        "Expected --source with --target. Received: none.", model_dir=model, target="x", plots="x"
    )
    run.fails(".*/absent", model_dir=tmp_path / "absent", source=SENTENCE, output=page)
    run.fails("--source must be a sentence, got ' '.", model_dir=model, source=" ", output=page)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name, reason",
    [
        ("absent/page.html", "No such file or directory"),
        ("file/page.html", "Not a directory"),
        (".", ".*"),
    ],
)
def test_unwritable_output_raises(trained_model_dir, tmp_path, name, reason):
    (tmp_path / "file").touch()
    message = rf"Expected a file that can be written. Received: .* \({reason}\). Choose an "
    message += "--output in a folder that exists and can be written."
    options = {"source": SENTENCE, "target": TRANSLATION, "output": tmp_path / name}
    run.fails(message, model_dir=trained_model_dir, **options)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@needs_matplotlib
def test_unwritable_plots_folder_raises(trained_model_dir, tmp_path):
    (tmp_path / "file").touch()
    message = r"Expected a folder that can be written. Received: .*file \(File exists\)."
    run.fails(message, model_dir=trained_model_dir, plots=tmp_path / "file")


def test_model_without_vocabulary_raises(trained_model_dir, tmp_path):
    directory = ModelDirectory(tmp_path / "ids")
    shutil.copytree(trained_model_dir, directory.path)
    directory.write_config(directory.read_config()["architecture"], tokenizer="none")
    page = tmp_path / "page.html"
    run.fails(".*vocabulary", model_dir=directory.path, source=SENTENCE, output=page)
