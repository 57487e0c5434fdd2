"""The learned relative-position tables of a Transformer and the norms of their rows."""

import numpy as np
from keras import ops

from trainer.visualization.attention_maps import KINDS


def read_tables(transformer) -> dict[str, list[tuple[np.ndarray | None, np.ndarray | None]]]:
    """Returns (a^K, a^V) of all layers by the id of the attention kind; None for absent tables.

    A table has the shape `[2K + 1, H]`, or `[N, 2K + 1, H]` if every head has its own.
    """
    return {kind.id: [_read(layer) for layer in kind.layers(transformer)] for kind in KINDS}


def _read(layer):
    embeddings = layer.key_embedding, layer.value_embedding
    return tuple(None if e is None else ops.convert_to_numpy(e.table) for e in embeddings)


def table_distances(table: np.ndarray) -> list[int]:
    """Returns the distances -K..K of the table rows: key position minus query position."""
    max_distance = table.shape[-2] // 2
    return list(range(-max_distance, max_distance + 1))


def row_norms(table: np.ndarray) -> np.ndarray:
    """Returns the Euclidean norms of the rows: `[1, 2K + 1]`, or `[N, 2K + 1]` for tables per head.

    Example:

    >>> import numpy as np
    >>> from trainer.visualization.relative_tables import row_norms
    >>> row_norms(np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])).tolist()
    [[5.0, 1.0, 0.0]]
    """
    return np.atleast_2d(np.linalg.norm(table, axis=-1))
