"""An HTML page of attention maps that works without a network connection."""

import html

from plotly.offline import get_plotlyjs

from t2t_relpos.models import TransformerConfig
from t2t_relpos.models.attention_maps import KINDS
from trainer.visualization import attention_figures
from trainer.visualization.attention_figures import TokenAxes
from trainer.visualization.sentence_pair import SentencePair

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
q·a<sup>K</sup>. a<sup>K</sup> is the table row of their distance, clipped to −K … K. q includes the
factor 1/√depth. Softmax is invariant to a constant added to all logits of a query, so the second
row shows the logits minus each query's mean."""
_NO_POSITION = "This attention has no table a<sup>K</sup>, so its logits have no position part."
_PARTS = """<b>Content</b>, <b>position</b>: root mean square of each part of the logits, after
subtraction of each query's mean. <b>Share</b>: mean square of the position part, divided by the sum
of both mean squares. <b>Moved</b>: total variation distance between the attention weights with and
without the position part, averaged over queries."""
_TABLES = """Distance is key position minus query position. The rows at −K and K represent all
larger distances."""
_SHADED = "Shaded distances are masked in the decoder, so their rows are never used."


def render_page(
    config: TransformerConfig, pair: SentencePair, names: list[str], maps: dict, norms: dict
) -> str:
    """Returns the page as one HTML document.

    Args:
        config: configuration of the Transformer.
        pair: the sentences.
        names: name of every token id.
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
    source, target = ([names[i] for i in ids] for ids in (pair.source_ids, pair.target_ids))
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
        attention_figures.draw_weights(layers, axes),
        f"<p>{_LOGITS if has_position else _NO_POSITION}</p>",
        attention_figures.draw_logits(layers, axes),
    ]
    if has_position:
        parts.append(f"<h3>Content and position</h3><p>{_PARTS}</p>")
        for names in (["share", "moved"], ["content", "position"]):
            parts.append(attention_figures.draw_logit_parts(layers, names))
    if norms:
        caption = f"{_TABLES} {_SHADED}" if causal else _TABLES
        parts.append(f"<h3>Relative-position tables</h3><p>{caption}</p>")
        parts.append(attention_figures.draw_table_norms(norms, causal=causal))
    return "\n".join(part if isinstance(part, str) else _render(part) for part in parts)


def _render(figure):
    # Remove the button that uploads the figure.
    config = {"displaylogo": False, "modeBarButtonsToRemove": ["sendChartToCloud"]}
    return figure.to_html(config=config, auto_play=False, include_plotlyjs=False, full_html=False)
