import importlib.util

import numpy as np
import pytest

from trainer.visualization import matplotlib_figures, png_plots
from trainer.visualization.attention_maps import tables
from trainer.visualization.learning_curves import LearningCurves
from trainer.visualization.table_statistics import row_norms

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None,
    reason="needs matplotlib: pip install '.[plots]'",
)
CURVES = LearningCurves([(100, 5.5), (200, 4.25)], [(150, 4.5)], [(150, 12.5)], 0.125)
NONE = LearningCurves([], [], [], 0.0)


def lines(axis):
    return {
        line.get_label(): list(zip(*(values.tolist() for values in line.get_data())))
        for line in axis.lines
    }


@needs_matplotlib
def test_curves():
    losses, bleu = png_plots._draw_curves(CURVES).axes
    assert lines(losses) == {
        "training (label smoothing 0.125)": [(100, 5.5), (200, 4.25)],
        "dev": [(150, 4.5)],
    }
    assert list(lines(bleu).values()) == [[(150, 12.5)]] and bleu.get_ylabel() == "sacreBLEU"
    (losses,) = png_plots._draw_curves(CURVES._replace(dev_bleu=[], label_smoothing=0.0)).axes
    assert lines(losses).keys() == {"training", "dev"} and losses.get_xlabel() == "step"


@needs_matplotlib
@pytest.mark.parametrize(
    "kind, parts",
    [("shared tables", 2), ("tables per head", 2), ("relative cross-attention", 3), ("K = 0", 2)],
)
def test_norms(make_transformer, kind, parts):
    learned = tables(make_transformer(kind))
    axes = png_plots._draw_norms(learned).axes
    assert len(axes) == 2 * parts
    for axis, (part, column) in zip(
        axes, [(part, column) for part in list(learned)[:parts] for column in (0, 1)]
    ):
        expected = np.concatenate([row_norms(layer[column]) for layer in learned[part]])
        np.testing.assert_allclose([line.get_ydata() for line in axis.lines], expected)
        labels = [line.get_label() for line in axis.lines if line.get_label().startswith("layer")]
        assert labels == [f"layer {n + 1}" for n in range(len(learned[part]))]


@needs_matplotlib
def test_table_that_the_model_lacks(make_transformer):
    key_axis, value_axis = png_plots._draw_norms(tables(make_transformer("a^V alone"))).axes[:2]
    assert [text.get_text() for text in key_axis.texts] == ["the model has no such table"]
    assert len(value_axis.lines) == 2


@needs_matplotlib
def test_files(make_transformer, tmp_path):
    files, missing = png_plots.write_plots(
        tmp_path / "a" / "b", CURVES, tables(make_transformer("shared tables"))
    )
    assert [file.name for file in files] == [
        "learning_curves.png",
        "table_norms.png",
    ] and missing == []
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    files, missing = png_plots.write_plots(tmp_path / "c", NONE, tables(make_transformer("sinusoidal")))
    assert files == [] and missing == [
        "No learning curves: the model directory records no training.",
        "No norms of tables: the model has no relative position tables.",
    ]


def test_without_matplotlib(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"Expected matplotlib, .*Received: none. Run `pip install '.\[plots\]'`."
    ):
        matplotlib_figures.check_matplotlib()
