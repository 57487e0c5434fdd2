"""Summary statistics of the content and position parts of attention logits."""

import numpy as np

from t2t_relpos.models.attention_maps import AttentionMap


def measure_logit_parts(layer: AttentionMap) -> dict[str, np.ndarray]:
    """Returns the contributions of content and position to the logits of a layer with a key table.

    Softmax is invariant to a constant added to all logits of a query. Therefore each query's mean
    over visible keys is subtracted from both parts first.

    Returns:
        Values of all heads, `[N]`, by name:
        "content", "position": root mean square of q·k and of q·a^K over all visible pairs.
        "share": mean square of the position part divided by the sum of both mean squares; nan if
            both are 0.
        "moved": total variation distance between the attention weights with and without the
            position part, averaged over queries; from 0 to 1.
    """
    visible = layer.visible
    parts = (subtract_row_means(part, visible) for part in (layer.content, layer.position))
    content, position = (np.mean(part[:, visible] ** 2, axis=-1) for part in parts)
    total = content + position
    share = np.divide(position, total, out=np.full_like(total, np.nan), where=total > 0)
    moved = np.abs(layer.weights - softmax(layer.content, visible)).sum(-1).mean(-1) / 2
    roots = {"content": np.sqrt(content), "position": np.sqrt(position)}
    return roots | {"share": share, "moved": moved}


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
