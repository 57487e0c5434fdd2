"""Summary statistics of the content and position parts of attention logits."""

from typing import NamedTuple

import numpy as np

from trainer.visualization.attention_maps import AttentionMap


class LogitParts(NamedTuple):
    """Contributions of content and position to the logits of one head.

    Softmax is invariant to a constant added to all logits of a query. The mean over the query's
    visible keys is therefore subtracted from both parts first.

    Attributes:
        content: root mean square of q·k over all visible pairs.
        position: root mean square of q·a^K.
        share: fraction of the position part in the sum of both mean squares; nan if both are 0.
        moved: total variation distance, averaged over queries, between the attention weights and
            the weights without the position part; from 0 to 1.
    """

    content: float
    position: float
    share: float
    moved: float


def measure_logit_parts(layer: AttentionMap) -> list[LogitParts]:
    """Returns the `LogitParts` of every head of a layer with a key table."""
    visible = layer.visible
    parts = (subtract_row_means(part, visible) for part in (layer.content, layer.position))
    content, position = (np.mean(part[:, visible] ** 2, axis=-1) for part in parts)
    total = content + position
    share = np.divide(position, total, out=np.full_like(total, np.nan), where=total > 0)
    changes = np.abs(layer.weights - softmax(layer.content, visible))
    moved = changes.sum(-1).mean(-1) / 2
    values = np.stack([np.sqrt(content), np.sqrt(position), share, moved], axis=-1)
    return [LogitParts(*head) for head in values.tolist()]


def subtract_row_means(logits: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Subtracts from each query's logits their mean over the visible keys; masked keys get 0.

    Args:
        logits: `[N, T, S]`.
        visible: bool `[T, S]`.
    """
    masked = np.where(visible, logits.astype("float64"), 0.0)
    means = masked.sum(-1, keepdims=True) / visible.sum(-1, keepdims=True)
    return np.where(visible, masked - means, 0.0)


def softmax(logits: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Returns the softmax of logits `[N, T, S]` over the visible keys, bool `[T, S]`."""
    logits = np.where(visible, logits.astype("float64"), -np.inf)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
