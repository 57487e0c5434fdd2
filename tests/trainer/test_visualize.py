"""`trainer.visualize`: a page and plots, or a clear message and nothing."""

import importlib.util
import json
import re
import shutil

import pytest
from absl import app, flags

from trainer import visualize
from trainer.model_dir import ModelDirectory
from trainer.visualization.attention_maps import attention_maps

SENTENCE, TRANSLATION = "The dog sleeps .", "Der Hund schläft ."
needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None,
    reason="needs matplotlib: pip install '.[plots]'",
)


def run(*arguments):
    """Runs the program in this process."""
    values = flags.FlagValues()
    visualize.define_flags(values)
    visualize.main(values(["visualize", *arguments]), values)


def refused(message, *arguments):
    with pytest.raises(SystemExit, match="trainer.visualize: " + message):
        run(*arguments)


def data_of(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())[1]
    )


def test_page_of_a_given_translation(trained_model_dir, tmp_path, capsys):
    page = tmp_path / "page.html"
    run(
        f"--model_dir={trained_model_dir}",
        f"--source={SENTENCE}",
        f"--target={TRANSLATION}",
        f"--output={page}",
    )
    assert re.fullmatch(
        rf"Wrote {page} \([0-9.]+ MB\): {SENTENCE} -> {TRANSLATION}\n", capsys.readouterr().out
    )
    data = data_of(page)
    assert (data["source"]["text"], data["target"]["text"], data["isGiven"]) == (
        SENTENCE,
        TRANSLATION,
        True,
    )
    assert "".join(data["source"]["tokens"]) == "▁The▁dog▁sleeps▁.</s>"
    assert [len(part["layers"]) for part in data["parts"]] == [1, 2, 2]
    directory = ModelDirectory.open(trained_model_dir)
    ids = (
        directory.load_tokenizer().tokenize([text])[0].numpy().tolist()
        for text in (SENTENCE, TRANSLATION)
    )
    weights = attention_maps(directory.load_model(), *ids)["cross"][1].weights[1]
    shown = data["parts"][2]["layers"][1]["heads"][1]["weights"]
    assert shown == [[float(f"{x:.4g}") for x in row] for row in weights.tolist()]


def test_page_of_the_models_own_translation(trained_model_dir, tmp_path):
    page = tmp_path / "page.html"
    run(
        f"--model_dir={trained_model_dir}",
        "--source=</script><script>alert(1)</script> dog",
        f"--output={page}",
    )
    data = data_of(page)
    assert (
        data["source"]["text"] == "</script><script>alert(1)</script> dog" and not data["isGiven"]
    )
    assert len(data["parts"][2]["queries"]) == len(data["target"]["tokens"])


@needs_matplotlib
@pytest.mark.slow
def test_checkpoint_and_plots(small_run, tmp_path, capsys, monkeypatch):
    small_run(tmp_path / "run")
    capsys.readouterr()
    run(f"--model_dir={tmp_path / 'run'}", "--checkpoint=4", f"--plots={tmp_path / 'plots'}")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"Wrote {tmp_path}/plots/learning_curves.png",
        f"Wrote {tmp_path}/plots/table_norms.png",
    ]
    assert sorted(file.name for file in (tmp_path / "plots").iterdir()) == [
        "learning_curves.png",
        "table_norms.png",
    ]
    refused(
        "Expected a checkpoint of step 3 in .*",
        f"--model_dir={tmp_path / 'run'}",
        "--checkpoint=3",
        f"--plots={tmp_path / 'plots'}",
    )


def test_plots_without_matplotlib(trained_model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"Expected matplotlib, which draws what --plots asks for. Received: none. Run `pip install '.\[plots\]'`."
    refused(message, f"--model_dir={trained_model_dir}", f"--plots={tmp_path / 'plots'}")
    assert not (tmp_path / "plots").exists()


def test_what_can_not_be_shown(trained_model_dir, tmp_path):
    model, page = f"--model_dir={trained_model_dir}", f"--output={tmp_path / 'page.html'}"
    source = f"--source={SENTENCE}"
    refused("Expected --model_dir. Received: none.", source, page)
    refused(
        "Expected --source and --output for a page, or --plots for plots. Received: neither.", model
    )
    refused("Expected --source and --output for a page, .*Received: neither.", model, source)
    refused("Expected --source with --output. Received: --output alone.", model, page)
    refused(
        "Expected --source with --target. Received: --target alone.",
        model,
        "--target=x",
        "--plots=x",
    )
    refused(
        "Expected a model directory, .*/absent, which does not exist.",
        f"--model_dir={tmp_path / 'absent'}",
        source,
        page,
    )
    refused(
        "Expected a sentence with --source. Received: ' ', which has no words. Give one.",
        model,
        "--source= ",
        page,
    )
    refused(
        "Expected a sentence with --target. Received: '', which has no words.",
        model,
        source,
        "--target=",
        page,
    )
    assert list(tmp_path.iterdir()) == []


def test_output_that_can_not_be_written(trained_model_dir, tmp_path):
    (tmp_path / "file").touch()
    model, source, target = (
        f"--model_dir={trained_model_dir}",
        f"--source={SENTENCE}",
        f"--target={TRANSLATION}",
    )
    for output, reason in (
        ("absent/page.html", "No such file or directory"),
        ("file/page.html", "Not a directory"),
        (".", ".*"),
    ):
        message = rf"Expected a file that can be written. Received: .*{re.escape(output.strip('.'))} \({reason}\). Choose another --output."
        refused(message, model, source, target, f"--output={tmp_path / output}")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@needs_matplotlib
def test_plots_folder_that_can_not_be_written(trained_model_dir, tmp_path):
    (tmp_path / "file").touch()
    message = r"Expected a folder that can be written. Received: .*file \(File exists\). Choose another --plots."
    refused(message, f"--model_dir={trained_model_dir}", f"--plots={tmp_path / 'file'}")


def test_model_without_a_vocabulary(trained_model_dir, tmp_path):
    directory = ModelDirectory(tmp_path / "ids")
    shutil.copytree(trained_model_dir, directory.path)
    directory.write_config(directory.read_config()["architecture"], tokenizer="none")
    message = "Expected a model with a vocabulary. Received: .*ids, which was imported without one."
    refused(
        message,
        f"--model_dir={directory.path}",
        f"--source={SENTENCE}",
        f"--output={tmp_path / 'page.html'}",
    )


def test_argument_that_is_no_flag():
    with pytest.raises(app.UsageError, match="Expected flags only. Received: 'runs/x'."):
        run("runs/x")
