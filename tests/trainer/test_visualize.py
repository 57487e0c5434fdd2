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

SENTENCE, TRANSLATION = "the dog sees a man", "der dog sieht einen man"


run = Program(visualize)


@pytest.fixture
def without_model(monkeypatch):
    """Replaces the model, its tables and its page."""
    model = SimpleNamespace(config=TransformerConfig(vocab_size=40))
    monkeypatch.setattr(checkpoints, "load_model", lambda *_: model)
    monkeypatch.setattr(attention_maps, "record_attention_maps", lambda *_: None)
    norms = dict.fromkeys(("encoder", "decoder", "cross"), [])
    monkeypatch.setattr(attention_maps, "read_table_norms", lambda _: norms)
    monkeypatch.setattr(attention_page, "render_page", lambda *_: "page")


@pytest.mark.parametrize("kind", ["pair", "two vocabularies"])
def test_page_of_a_given_translation(finish, kind, tmp_path, capsys):
    """Tokens have the names of the vocabulary of their side."""
    page, directory = tmp_path / "page.html", finish(kind).directory
    run(model_dir=directory.path, source=SENTENCE, target=TRANSLATION, output=page)
    text = page.read_text()
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    assert capsys.readouterr().out == f"Wrote {page} ({size}): {SENTENCE} -> {TRANSLATION}\n"
    assert f"<h1>{SENTENCE}</h1>\n<p>{TRANSLATION} (given translation)</p>" in text
    labels = [json.loads(found) for found in re.findall(r'"ticktext":(\[[^]]*\])', text)]
    for tokenizer, side in zip(directory.load_tokenizers(), (SENTENCE, TRANSLATION)):
        ids = tokenizer.tokenize([side]).to_list()[0]
        assert [html.escape(tokenizer.names[i], quote=False) for i in ids] in labels


def test_page_of_a_generated_translation(
    without_model, finished_run, tmp_path, monkeypatch, capsys
):
    tokenizer = ModelDirectory.open(finished_run).load_tokenizer()
    ids = tokenizer.tokenize([TRANSLATION])[0].numpy().tolist()
    monkeypatch.setattr(attention_page, "translate_ids", lambda *_: ids)
    monkeypatch.setattr(attention_page, "render_page", lambda config, pair, *_: repr(pair))
    page = tmp_path / "page.html"
    run(model_dir=finished_run, source=SENTENCE, output=page)
    assert capsys.readouterr().out == f"Wrote {page} (0.0 MB): {SENTENCE} -> {TRANSLATION}\n"
    assert page.read_text().endswith(f"target_ids={ids}, is_given=False)")


def test_plots_of_a_checkpoint(finished_run, tmp_path, capsys):
    plots = tmp_path / "plots"
    run(model_dir=finished_run, checkpoint=6, plots=plots)
    assert capsys.readouterr().out.splitlines() == [
        f"checkpoint {finished_run}/checkpoints/step-000006",
        f"Wrote {plots}/table_norms.html",
    ]
    assert [file.name for file in plots.iterdir()] == ["table_norms.html"]
    run.fails(".*7", model_dir=finished_run, checkpoint=7, plots=plots)


def test_plots_without_data_are_skipped(without_model, finished_run, tmp_path, capsys):
    run(model_dir=finished_run, plots=tmp_path / "a" / "plots")
    assert capsys.readouterr().out.splitlines() == [
        "Skipped table_norms.html: the model has no relative-position tables.",
    ]


def test_without_plotly_the_error_names_the_command_that_installs_it(
    without_model, finished_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "plotly", None)
    for flags in {"plots": tmp_path / "plots"}, {"source": SENTENCE, "output": tmp_path / "page"}:
        with pytest.raises(SystemExit, match="^2$"):
            run(model_dir=finished_run, **flags)
        assert capsys.readouterr().err == (
            "trainer.visualize: Expected the package plotly. Received: an environment without it. "
            "Install it: pip install 't2t-relpos[visualize]'.\n"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "Expected --source and --output, or --plots. Received: neither."),
        ({"source": "a"}, "Expected --source and --output, or --plots. Received: neither."),
        ({"output": "page"}, "Expected --source with --output. Received: none."),
        ({"target": "x", "plots": "x"}, "Expected --source with --target. Received: none."),
        ({"model_dir": "absent", "source": "a", "output": "page"}, "Expected a model directory,"),
        ({"model_dir": "ids", "source": "a", "output": "page"}, ".*vocabulary"),
        ({"source": " ", "output": "page"}, "--source must be a sentence, got ' '."),
        *(
            (flags, rf"Expected a file that can be read or .*: {name} \({reason}")
            for flags, name, reason in (
                ({"source": "a", "target": "b", "output": "absent/page"}, "absent/page", "No such"),
                ({"source": "a", "target": "b", "output": "file/page"}, "file/page", "Not a dir"),
                ({"source": "a", "target": "b", "output": "."}, r"\.", ".*"),
                ({"plots": "file"}, "file", "File exists"),
            )
        ),
    ],
)
def test_invalid_flags_raise(without_model, finished_run, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    ModelDirectory.create("ids").write_config({})
    run.fails(message, **{"model_dir": finished_run} | flags)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "ids"]
