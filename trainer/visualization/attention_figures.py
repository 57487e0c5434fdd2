"""Plotly figures of attention weights, logits and relative-position tables."""

import html
from typing import NamedTuple

import numpy as np
import plotly.express as px
from plotly import graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from t2t_relpos.models.attention_maps import AttentionMap, NormLine
from t2t_relpos.models.logit_parts import measure_logit_parts, subtract_row_means

_MAX_LABEL_LENGTH = 12


class TokenAxes(NamedTuple):
    """Titles and token labels of the query axis and the key axis."""

    query_title: str
    queries: list[str]
    key_title: str
    keys: list[str]


def draw_weights(layers: list[AttentionMap], axes: TokenAxes) -> go.Figure:
    """Returns a figure with heat maps of the attention weights of all heads.

    A slider selects the layer.
    """
    weights = np.stack([_hide_masked(layer.weights, layer.visible) for layer in layers])
    heads = [f"Head {head + 1}" for head in range(weights.shape[1])]
    steps = [f"layer {number + 1}" for number in range(len(layers))]
    colors = {"color_continuous_scale": "Blues", "zmin": 0, "zmax": 1}
    return _draw_maps("weight", weights, axes, steps, heads, columns=min(4, len(heads)), **colors)


def draw_logits(layers: list[AttentionMap], axes: TokenAxes) -> go.Figure:
    """Returns a figure with heat maps of the logits and their parts.

    A slider selects layer and head. The second row of heat maps shows the logits minus each query's
    mean.
    """
    maps = [_logit_maps(layer) for layer in layers]
    titles = list(maps[0])
    # Stacked: [layers, N, titles, T, S]. The slider has one step per layer and head.
    stacked = np.stack([np.stack(list(parts.values()), axis=1) for parts in maps])
    steps = [f"layer {layer + 1}, head {head + 1}" for layer, head in np.ndindex(stacked.shape[:2])]
    values = _hide_masked(stacked.reshape(-1, *stacked.shape[2:]), layers[0].visible)
    colors = {"color_continuous_scale": "RdBu_r", "color_continuous_midpoint": 0}
    columns = max(2, len(titles) // 2)
    return _draw_maps("logit", values, axes, steps, titles, columns=columns, **colors)


def _logit_maps(layer):
    """Returns logits `[N, T, S]` by title: the parts, then the parts minus each query's mean."""
    maps = {"Logit: q·k": layer.content}
    if layer.position is not None:
        maps = {
            "Logit: content + position": layer.content + layer.position,
            "Content: q·k": layer.content,
            "Position: q·a<sup>K</sup>": layer.position,
        }
    centered = {
        f"{title}, minus mean": subtract_row_means(logits, layer.visible)
        for title, logits in maps.items()
    }
    return maps | centered


def draw_logit_parts(layers: list[AttentionMap], names: list[str]) -> go.Figure:
    """Returns a figure with layer-by-head heat maps of values from `measure_logit_parts`."""
    parts = [measure_logit_parts(layer) for layer in layers]
    values = np.array([[layer[name] for layer in parts] for name in names])
    figure = px.imshow(
        values,
        facet_col=0,
        facet_col_spacing=0.1,
        x=[f"head {head + 1}" for head in range(values.shape[2])],
        y=[f"layer {number + 1}" for number in range(len(layers))],
        text_auto=".2f",
        zmin=0,
        aspect="auto",
        color_continuous_scale="Oranges",
    )
    _set_titles(figure, [name.capitalize() for name in names])
    return figure.update_layout(height=28 * len(layers) + 120, coloraxis_showscale=False)


def draw_table_norms(lines: list[NormLine], *, causal: bool) -> go.Figure:
    """Returns a figure of the row norms of a^K and a^V by distance.

    Args:
        lines: lines of one kind of attention, from `read_table_norms`.
        causal: whether keys after the query are masked; their distances are shaded.
    """
    has_table = [any(line.column == column for line in lines) for column in (0, 1)]
    titles = [
        f"Norms of {name}" if exists else f"The model has no {name}"
        for name, exists in zip(("a<sup>K</sup>", "a<sup>V</sup>"), has_table)
    ]
    figure = make_subplots(1, 2, subplot_titles=titles, shared_yaxes="all")
    colors = sample_colorscale("Viridis", np.linspace(0, 0.85, lines[-1].layer).tolist())
    in_legend = set()
    for line in lines:
        style = {"name": f"layer {line.layer}", "legendgroup": line.layer}
        style |= {"line_color": colors[line.layer - 1], "showlegend": line.layer not in in_legend}
        in_legend.add(line.layer)
        trace = go.Scatter(x=line.distances, y=line.norms, **style)
        figure.add_trace(trace, row=1, col=1 + line.column)
    if causal:
        figure.add_vrect(x0=0.5, x1=lines[0].distances[-1] + 0.5, fillcolor="gray", opacity=0.15)
    figure.update_traces(mode="lines+markers").update_yaxes(rangemode="tozero")
    return figure.update_xaxes(title="distance (key − query position)").update_layout(height=400)


def _draw_maps(quantity, maps, axes, steps, titles, *, columns, **colors):
    """Returns a figure of heat maps of `maps [steps, titles, T, S]`, with a slider over steps."""
    rows = -(-len(titles) // columns)
    height = 110 + len(axes.queries) * min(24, max(8, 500 // len(axes.queries)))
    figure = px.imshow(
        maps.astype("float32"),
        animation_frame=0,
        facet_col=1,
        facet_col_wrap=columns,
        facet_row_spacing=110 / (rows * height),
        facet_col_spacing=0.25 / columns,
        labels={"x": axes.key_title, "y": axes.query_title, "color": quantity},
        aspect="auto",
        height=rows * height + 140,
        **colors,
    )
    _set_titles(figure, titles)
    # With a single step, Plotly Express adds no slider.
    for slider in figure.layout.sliders:
        slider.update(currentvalue_prefix="", pad_t=130, x=0, len=1)
        for step, label in zip(slider.steps, steps, strict=True):
            step.label = label
    queries, keys = _escape_tokens(axes.queries), _escape_tokens(axes.keys)
    figure.update_xaxes(tickvals=list(range(len(keys))), ticktext=keys, tickangle=-60)
    figure.update_yaxes(tickvals=list(range(len(queries))), ticktext=queries)
    font_size = min(12, max(7, 500 // max(len(queries), len(keys))))
    style = {"tickfont_size": font_size, "showticklabels": True}
    style |= {"showgrid": False, "zeroline": False}
    figure.update_xaxes(**style).update_yaxes(**style)
    # Plotly Express adds buttons that play the steps, and a layout to every step.
    figure.layout.updatemenus = ()
    for frame in figure.frames:
        frame.layout = None
    return figure.update_layout(plot_bgcolor="lightgray", margin={"t": 30, "b": 220})


def _set_titles(figure, titles):
    # Plotly Express lists the facets of a wrapped figure from the bottom row to the top row.
    for annotation in figure.layout.annotations:
        annotation.text = titles[int(annotation.text.split("=")[1])]


def _hide_masked(values, visible):
    """Replaces masked pairs with nan, which Plotly does not draw."""
    return np.where(visible, values, np.nan)


def _escape_tokens(tokens):
    """Shortens and escapes tokens: Plotly interprets a subset of HTML in labels."""
    short = [
        token if len(token) <= _MAX_LABEL_LENGTH else token[: _MAX_LABEL_LENGTH - 1] + "…"
        for token in tokens
    ]
    return [html.escape(token, quote=False) for token in short]
