"""How much of attention logits comes from content and how much from relative position, in a few numbers per head."""

from typing import NamedTuple

import numpy as np

from trainer.visualization.attention_maps import AttentionMap


class LogitParts(NamedTuple):
    """What the two parts of a head's logits do, over all visible pairs of a query and a key.

    Softmax does not see what is added to all logits of a query. So of each part its mean over the query's visible keys is
    subtracted first.

    Attributes:
        content: root of the mean square of what is left of q·k.
        position: the same of q·a^K.
        share: of the sum of both squares, the part that is position's, 0 to 1; nan where both are 0.
        moved: how much attention would go to other keys without position: half of the sum over keys of
            |softmax(content + position) - softmax(content)|, 0 to 1, mean over queries.
    """

    content: float
    position: float
    share: float
    moved: float


def logit_parts(layer: AttentionMap) -> list[LogitParts]:
    """The `LogitParts` of every head of a layer that has a^K.

    Example:

    >>> logits = np.array([[[0.0, 2.0], [0.0, 4.0]]]), np.array([[[1.0, 0.0], [0.0, 0.0]]])
    >>> weights, query = softmax(sum(logits), np.ones((2, 2), bool)), np.ones((1, 2, 3))
    >>> layer = AttentionMap(query, weights, *logits, np.ones((2, 2), bool), np.ones((5, 3)), None)
    >>> [parts] = logit_parts(layer)
    >>> round(parts.content, 3), round(parts.position, 3), round(parts.share, 3), round(parts.moved, 3)
    (1.581, 0.354, 0.048, 0.075)
    """
    visible = layer.visible
    without_position = softmax(layer.content, visible)
    content, position = (centred(part, visible) for part in (layer.content, layer.position))
    parts = []
    for head in range(len(content)):
        squares = [np.mean(part[head][visible] ** 2) for part in (content, position)]
        total = sum(squares)
        moved = np.abs(layer.weights[head] - without_position[head]).sum(-1).mean() / 2
        share = squares[1] / total if total else np.nan
        parts.append(LogitParts(*(float(x) for x in (*np.sqrt(squares), share, moved))))
    return parts


def centred(logits: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Logits `[N, T, S]` less the mean over the keys that each query sees (bool `[T, S]`); 0 where it doesn't."""
    kept = np.where(visible, logits.astype("float64"), 0.0)
    mean = kept.sum(-1, keepdims=True) / visible.sum(-1, keepdims=True)
    return np.where(visible, kept - mean, 0.0)


def softmax(logits: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Weights `[N, T, S]` of logits over the keys that each query sees, bool `[T, S]`."""
    logits = np.where(visible, logits.astype("float64"), -np.inf)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
