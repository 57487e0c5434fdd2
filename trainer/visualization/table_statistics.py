"""What learned tables of relative positions hold, over distance."""

import numpy as np

from trainer.visualization.attention_maps import AttentionMap


def distances(table: np.ndarray) -> list[int]:
    """The distances -K..K that the rows of a table `[2K + 1, H]` or `[N, 2K + 1, H]` belong to: of the key from the query.

    Example:

    >>> distances(np.zeros((5, 3)))
    [-2, -1, 0, 1, 2]
    """
    farthest = table.shape[-2] // 2
    return list(range(-farthest, farthest + 1))


def row_norms(table: np.ndarray) -> np.ndarray:
    """Euclidean norm of every row: `[2K + 1, H]` -> `[1, 2K + 1]`, and `[N, 2K + 1, H]` -> `[N, 2K + 1]`.

    Example:

    >>> row_norms(np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])).tolist()
    [[5.0, 1.0, 0.0]]
    """
    norms = np.linalg.norm(table, axis=-1)
    return norms[None] if table.ndim == 2 else norms


def mean_logits(layer: AttentionMap) -> np.ndarray:
    """What a key at each distance gets from a^K, mean over the sentence's queries: `[N, 2K + 1]`.

    Every query counts at every distance, whether or not there is a key so far away.
    """
    table = layer.key_table
    if table.ndim == 2:
        table = table[None]
    return np.matmul(layer.query, np.swapaxes(table, -1, -2)).mean(axis=-2)
