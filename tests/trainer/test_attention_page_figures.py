"""Tests of the arrays, labels and sliders of the Plotly figures."""

import numpy as np
import pytest

from t2t_relpos.models.attention_maps import (
    AttentionMap,
    NormLine,
    measure_logit_parts,
    subtract_row_means,
)
from trainer import attention_page as figures
from trainer.attention_page import TokenAxes

AXES = TokenAxes("predicts", ["<b>", "a&b", "c" * 20], "has read", ["x", "y", "z"])


@pytest.fixture
def decoder(rng):
    """Returns attention maps of a decoder with three layers and two heads."""
    visible = np.tri(3, dtype=bool)
    return [AttentionMap(*rng.normal(size=[3, 2, 3, 3]), visible) for _ in range(3)]


def titles(figure):
    """Returns the title above each trace."""
    found = []
    for trace in figure.data:
        x_axis = figure.layout["xaxis" + trace.xaxis[1:]]
        y_axis = figure.layout["yaxis" + trace.yaxis[1:]]
        distances = {
            abs(title.x - sum(x_axis.domain) / 2) + abs(title.y - y_axis.domain[1]): title.text
            for title in figure.layout.annotations
        }
        assert min(distances) < 1e-6
        found.append(distances[min(distances)])
    return found


def visible(values, layer):
    return np.where(layer.visible, values, np.nan)


def test_weights_have_a_frame_per_layer_and_a_map_per_head(decoder):
    figure = figures.draw_weights(decoder, AXES)
    assert titles(figure) == ["Head 1", "Head 2"]
    assert figure.layout.margin.t >= 60, "the mode bar has 30 pixels above the titles"
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps] == ["layer 1", "layer 2", "layer 3"]
    for traces in (figure.data, figure.frames[0].data):
        for head, trace in enumerate(traces):
            np.testing.assert_allclose(trace.z, visible(decoder[0].weights[head], decoder[0]))
    for frame, step, layer in zip(figure.frames, slider.steps, decoder, strict=True):
        assert step.args[0] == (frame.name,)
        for head, trace in enumerate(frame.data):
            np.testing.assert_allclose(trace.z, visible(layer.weights[head], layer))


def test_logits_have_a_frame_per_head_with_content_and_position(decoder):
    figure = figures.draw_logits(decoder, AXES)
    names = ["Logit: content + position", "Content: q·k", "Position: q·a<sup>K</sup>"]
    assert titles(figure) == names + [f"{name}, minus mean" for name in names]
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps][:3] == [
        "layer 1, head 1",
        "layer 1, head 2",
        "layer 2, head 1",
    ]
    for index, frame in enumerate(figure.frames):
        layer, head = decoder[index // 2], index % 2
        parts = [layer.content + layer.position, layer.content, layer.position]
        parts += [subtract_row_means(part, layer.visible) for part in parts]
        for trace, part in zip(frame.data, parts, strict=True):
            values = visible(part[head], layer)
            np.testing.assert_allclose(trace.z, values, rtol=1e-5, atol=1e-6)
    assert len(figure.frames) == 6


def test_logits_without_relative_positions_have_one_part(decoder):
    figure = figures.draw_logits([decoder[0]._replace(position=None)], AXES)
    assert titles(figure) == ["Logit: q·k", "Logit: q·k, minus mean"]
    assert len(figure.frames) == 2


def test_single_layer_has_no_slider(decoder):
    figure = figures.draw_weights(decoder[:1], AXES)
    assert figure.layout.sliders == ()
    expected = visible(decoder[0].weights[1], decoder[0])
    np.testing.assert_allclose(figure.data[1].z, expected)


def test_token_labels_are_escaped_and_shortened(decoder):
    for figure in (figures.draw_weights(decoder, AXES), figures.draw_logits(decoder, AXES)):
        assert list(figure.layout.xaxis2.ticktext) == ["x", "y", "z"]
        labels = ["&lt;b&gt;", "a&amp;b", "c" * 11 + "…"]
        assert list(figure.layout.yaxis2.ticktext) == labels
        assert list(figure.layout.yaxis2.tickvals) == [0, 1, 2]


def test_logit_parts_have_a_row_per_layer(decoder):
    figure = figures.draw_logit_parts(decoder, ["share", "moved"])
    assert titles(figure) == ["Share", "Moved"]
    for name, trace in zip(("share", "moved"), figure.data, strict=True):
        expected = [measure_logit_parts(layer)[name] for layer in decoder]
        np.testing.assert_allclose(trace.z, expected)
        assert list(trace.y) == ["layer 1", "layer 2", "layer 3"]


@pytest.mark.parametrize("columns", [(0, 1), (1,)])
def test_table_norms_have_a_line_per_table_and_layer(rng, columns):
    lines = [
        NormLine(layer, column, [-2, -1, 0, 1, 2], rng.uniform(size=5))
        for layer in (1, 2, 3)
        for column in columns
        for _ in range(2)  # heads
    ]
    figure = figures.draw_table_norms(lines, causal=True)
    names = [line.name for line in figure.data if line.showlegend]
    assert names == ["layer 1", "layer 2", "layer 3"]
    for trace, line in zip(figure.data, lines, strict=True):
        np.testing.assert_allclose(trace.y, line.norms)
        assert list(trace.x) == line.distances
        assert trace.xaxis == ("x", "x2")[line.column]
    key_title, value_title = (title.text for title in figure.layout.annotations)
    assert key_title.startswith("Norms of" if 0 in columns else "The model has no")
    assert value_title == "Norms of a<sup>V</sup>"
    (first, *_) = figure.layout.shapes
    assert (first.x0, first.x1) == (0.5, 2.5)
    assert figure.layout.xaxis2.title.text.startswith("distance")
    assert not figures.draw_table_norms(lines, causal=False).layout.shapes
