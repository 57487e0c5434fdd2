"""Tests of `trainer.visualize`: the page, the plots, and errors."""

import html
import json
import re
import sys
from types import SimpleNamespace

import pytest
from programs import Program

from t2t_relpos.models import TransformerConfig, attention_maps
from trainer import attention_page, visualize
from trainer.model_dir import ModelDirectory
from trainer.training import checkpoints

SENTENCE, TRANSLATION = "The dog sleeps .", "Der Hund schläft ."


run = Program(visualize)


@pytest.fixture
def without_model(monkeypatch):
    """Replaces the model, its tables and its page."""
    model = SimpleNamespace(config=TransformerConfig(vocab_size=211))
    monkeypatch.setattr(checkpoints, "load_model", lambda *_: model)
    monkeypatch.setattr(attention_maps, "record_attention_maps", lambda *_: None)
    norms = dict.fromkeys(("encoder", "decoder", "cross"), [])
    monkeypatch.setattr(attention_maps, "read_table_norms", lambda _: norms)
    monkeypatch.setattr(attention_page, "render_page", lambda *_: "page")


def test_page_of_a_given_translation(each_model_dir, tmp_path, capsys):
    """Tokens have the names of the vocabulary of their side."""
    page = tmp_path / "page.html"
    run(model_dir=each_model_dir, source=SENTENCE, target=TRANSLATION, output=page)
    text = page.read_text()
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    assert capsys.readouterr().out == f"Wrote {page} ({size}): {SENTENCE} -> {TRANSLATION}\n"
    assert f"<h1>{SENTENCE}</h1>\n<p>{TRANSLATION} (given translation)</p>" in text
    labels = [json.loads(found) for found in re.findall(r'"ticktext":(\[[^]]*\])', text)]
    for tokenizer, side in zip(
        ModelDirectory.open(each_model_dir).load_tokenizers(), (SENTENCE, TRANSLATION)
    ):
        ids = tokenizer.tokenize([side]).to_list()[0]
        assert [html.escape(tokenizer.names[i], quote=False) for i in ids] in labels


def test_page_of_a_generated_translation(
    without_model, trained_model_dir, tokenizer, tmp_path, monkeypatch, capsys
):
    ids = tokenizer.tokenize([TRANSLATION])[0].numpy().tolist()
    monkeypatch.setattr(attention_page, "translate_ids", lambda *_: ids)
    monkeypatch.setattr(attention_page, "render_page", lambda config, pair, *_: repr(pair))
    page = tmp_path / "page.html"
    run(model_dir=trained_model_dir, source=SENTENCE, output=page)
    assert capsys.readouterr().out == f"Wrote {page} (0.0 MB): {SENTENCE} -> {TRANSLATION}\n"
    assert page.read_text().endswith(f"target_ids={ids}, is_given=False)")


def test_plots_of_a_checkpoint(finished_run, tmp_path, capsys):
    plots = tmp_path / "plots"
    run(model_dir=finished_run, checkpoint=6, plots=plots)
    assert capsys.readouterr().out.splitlines() == [
        f"checkpoint {finished_run}/checkpoints/step-000006",
        f"Wrote {plots}/learning_curves.html",
        f"Wrote {plots}/table_norms.html",
    ]
    names = sorted(file.name for file in plots.iterdir())
    assert names == ["learning_curves.html", "table_norms.html"]
    run.fails(".*7", model_dir=finished_run, checkpoint=7, plots=plots)


def test_plots_without_data_are_skipped(without_model, trained_model_dir, tmp_path, capsys):
    run(model_dir=trained_model_dir, plots=tmp_path / "a" / "plots")
    assert capsys.readouterr().out.splitlines() == [
        "Skipped learning_curves.html: the model directory has no logs.",
        "Skipped table_norms.html: the model has no relative-position tables.",
    ]


def test_without_plotly_the_error_names_the_command_that_installs_it(
    without_model, trained_model_dir, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "plotly", None)
    for flags in {"plots": tmp_path / "plots"}, {"source": SENTENCE, "output": tmp_path / "page"}:
        with pytest.raises(SystemExit, match="^2$"):
            run(model_dir=trained_model_dir, **flags)
        assert capsys.readouterr().err == (
            "trainer.visualize: Expected the package plotly. Received: an environment without it. "
            "Install it: pip install 't2t-relpos[visualize]'.\n"
        )
    assert list(tmp_path.iterdir()) == []


def test_invalid_flags_raise(without_model, trained_model_dir, tmp_path):
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
def test_unwritable_output_raises(without_model, trained_model_dir, tmp_path, name, reason):
    (tmp_path / "file").touch()
    message = rf"Expected a file that can be read or written. Received: .* \({reason}\)."
    options = {"source": SENTENCE, "target": TRANSLATION, "output": tmp_path / name}
    run.fails(message, model_dir=trained_model_dir, **options)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_unwritable_plots_folder_raises(without_model, trained_model_dir, tmp_path):
    (tmp_path / "file").touch()
    message = r"Expected a file that can be read or written. Received: .*file \(File exists\)."
    run.fails(message, model_dir=trained_model_dir, plots=tmp_path / "file")


def test_model_without_vocabulary_raises(without_model, tmp_path):
    directory = ModelDirectory.create(tmp_path / "ids")
    directory.write_config({}, tokenizer="none")
    page = tmp_path / "page.html"
    run.fails(".*vocabulary", model_dir=directory.path, source=SENTENCE, output=page)
