"""An HTML page of a model's attention to a sentence pair, which works without a network connection.

The file has the sentence pair, the figures, then the page.
"""

import html
from typing import NamedTuple

import numpy as np
import plotly.express as px
import tensorflow as tf
from plotly import graph_objects as go
from plotly.colors import sample_colorscale
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from t2t_relpos.models import TransformerConfig
from t2t_relpos.models.attention_maps import (
    KINDS,
    AttentionMap,
    NormLine,
    measure_logit_parts,
    subtract_row_means,
)

from .serving.translation_settings import TranslationSettings

# Limits the size of the page, which is 90 MB for a base model with 128 tokens per sentence.
MAX_LENGTH = 128
_MAX_LABEL_LENGTH = 12
# Pixels for the titles of the first row and, above them, Plotly's mode bar.
_TOP_MARGIN = 60
# The decoder's first input.
_GO = "<go>"
# Prevents the browser from loading anything. All scripts are inline.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_STYLE = """
body { margin: 0 auto; max-width: 1360px; padding: 20px; font: 15px/1.5 sans-serif; color: #222; }
p { max-width: 95ch; margin: 6px 0; } h2 { margin-top: 48px; border-top: 1px solid #ccc; }
"""
_ATTENTION = """Rows are queries and columns are keys. Each row of attention weights sums to 1.
Masked pairs are gray. The slider selects the layer."""
_DECODER = """A decoder query is labeled with the token that it predicts; its keys are the tokens
that the decoder has read."""
_LOGITS = """The logit of a query and a key is the sum of a content part, q·k, and a position part,
q·a<sup>K</sup>. a<sup>K</sup> is the table row of their clipped distance. q includes the factor
1/√depth. Softmax is invariant to a constant added to all logits of a query, so the second row shows
the logits minus each query's mean."""
_NO_POSITION = "This attention has no table a<sup>K</sup>, so its logits have no position part."
_PARTS = """<b>Content</b>, <b>position</b>: root mean square of each part of the logits, after
subtraction of each query's mean. <b>Share</b>: mean square of the position part, divided by the sum
of both mean squares. <b>Moved</b>: total variation distance between the attention weights with and
without the position part, averaged over queries."""
_TABLES = """Distance is key position minus query position. The first and the last row represent all
larger distances."""
_SHADED = "Shaded distances are masked in the decoder, so their rows are never used."


class SentencePair(NamedTuple):
    """A source sentence and its translation, as text and as token ids with EOS.

    The ids of a generated translation have no EOS if it was truncated at the length limit.
    `is_given` is False if the model generated the translation.
    """

    source: str
    target: str
    source_ids: list[int]
    target_ids: list[int]
    is_given: bool


def make_sentence_pair(
    transformer, tokenizers, source: str, target: str | None = None
) -> SentencePair:
    """Returns a tokenized sentence pair. If `target` is None, the default beam search generates it.

    `tokenizers` are the model's `trainer.data.tokenizer.Tokenizers`.

    Raises:
        ValueError: if a sentence is empty, or longer than the model or the page supports.
    """
    limit = min(MAX_LENGTH, transformer.config.num_positions or MAX_LENGTH)
    source_ids = _tokenize(tokenizers.source, source, "source", limit)
    if target is not None:
        target_ids = _tokenize(tokenizers.target, target, "target", limit)
        return SentencePair(source, target, source_ids, target_ids, is_given=True)
    target_ids = translate_ids(transformer, source_ids, limit)
    text = tokenizers.target.detokenize(tf.constant([target_ids], tf.int32)).numpy()[0]
    return SentencePair(source, text.decode(errors="replace"), source_ids, target_ids, False)


def translate_ids(transformer, source_ids: list[int], limit: int) -> list[int]:
    """Returns the best hypothesis of at most `limit` ids, with EOS if it ends within the limit."""
    max_length = min(len(source_ids) + TranslationSettings.extra_length, limit)
    (ids,) = transformer.generate([source_ids], max_length=max_length)
    return np.trim_zeros(ids, "b").tolist()


def _tokenize(tokenizer, text, name, limit):
    try:
        ids = tokenizer.tokenize(tf.constant([text.strip().encode()]))[0].numpy().tolist()
    except UnicodeEncodeError as error:
        raise ValueError(f"--{name} must be valid UTF-8, got {text!r}.") from error
    if len(ids) < 2:
        raise ValueError(f"--{name} must be a sentence, got {text!r}.")
    if len(ids) > limit:
        raise ValueError(f"--{name} must have at most {limit} token ids, got {len(ids)}.")
    return ids


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
        height=rows * height + 110 + _TOP_MARGIN,
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
    return figure.update_layout(plot_bgcolor="lightgray", margin={"t": _TOP_MARGIN, "b": 220})


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


def render_page(
    config: TransformerConfig, pair: SentencePair, names: list, maps: dict, norms: dict
) -> str:
    """Returns the page as one HTML document.

    Args:
        names: name of every token id of the source, and of every token id of the target.
        maps: attention maps, from `record_attention_maps`.
        norms: row norms of the relative-position tables, from `read_table_norms`.
    """
    axes = _token_axes(pair, names)
    sections = [_render_kind(kind, maps[kind.id], norms[kind.id], axes[kind.id]) for kind in KINDS]
    settings = [f"{name}={value}" for name, value in config.to_dict().items() if value is not None]
    source, target = html.escape(pair.source), html.escape(pair.target)
    origin = "given translation" if pair.is_given else "translation by the model"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{source}</title>
<style>{_STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<h1>{source}</h1>
<p>{target} ({origin})</p>
<details><summary>Model configuration</summary><p>{html.escape(", ".join(settings))}</p></details>
{"".join(sections)}
</body>
</html>
"""


def _token_axes(pair, names):
    sides = zip(names, (pair.source_ids, pair.target_ids))
    source, target = ([names[i] for i in ids] for names, ids in sides)
    return {
        "encoder": TokenAxes("query", source, "key", source),
        "decoder": TokenAxes("predicts", target, "has read", [_GO, *target[:-1]]),
        "cross": TokenAxes("predicts", target, "source", source),
    }


def _render_kind(kind, layers, norms, axes):
    has_position = layers[0].position is not None
    causal = kind.id == "decoder"
    caption = _ATTENTION if kind.id == "encoder" else f"{_ATTENTION} {_DECODER}"
    parts = [
        f"<h2>{kind.title}</h2><p>{caption}</p>",
        draw_weights(layers, axes),
        f"<p>{_LOGITS if has_position else _NO_POSITION}</p>",
        draw_logits(layers, axes),
    ]
    if has_position:
        parts.append(f"<h3>Content and position</h3><p>{_PARTS}</p>")
        for names in (["share", "moved"], ["content", "position"]):
            parts.append(draw_logit_parts(layers, names))
    if norms:
        caption = f"{_TABLES} {_SHADED}" if causal else _TABLES
        parts.append(f"<h3>Relative-position tables</h3><p>{caption}</p>")
        parts.append(draw_table_norms(norms, causal=causal))
    return "\n".join(part if isinstance(part, str) else _render(part) for part in parts)


def render_figures(figures: list[go.Figure]) -> str:
    """Returns an HTML document of figures."""
    head = f'<meta charset="utf-8"><script>{get_plotlyjs()}</script>'
    return "\n".join(["<!doctype html>", head, *map(_render, figures)])


def _render(figure):
    # Remove the button that uploads the figure.
    config = {"displaylogo": False, "modeBarButtonsToRemove": ["sendChartToCloud"]}
    return figure.to_html(config=config, auto_play=False, include_plotlyjs=False, full_html=False)
