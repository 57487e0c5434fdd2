"""Top k with the same order of equal entries on all backends."""

import keras
from keras import ops


def top_k(x, k):
    """Returns the k largest entries of each row, in descending order.

    Equal entries are in the order of their indices. `keras.ops.top_k` guarantees this on
    TensorFlow and JAX, but not on PyTorch.

    Args:
        x: `[B, n]`.
        k: an int, at most n.

    Returns:
        (values `[B, k]`, their indices, int32 `[B, k]`).

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding.top_k import top_k
    >>> values, indices = top_k(ops.convert_to_tensor([[1.0, 3.0, 1.0, 1.0]]), 3)
    >>> ops.convert_to_numpy(indices).tolist()
    [[1, 0, 2]]
    """
    if keras.backend.backend() != "torch":
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    x = ops.convert_to_tensor(x)
    smallest = ops.top_k(x, k)[0][:, -1:]
    size = x.shape[-1]
    # Distinct ranks: entries above the smallest selected one, then entries equal to it by index.
    rank_by_index = size - ops.arange(size, dtype="int32")
    rank = ops.where(x > smallest, rank_by_index + size, ops.where(x == smallest, rank_by_index, 0))
    indices = ops.top_k(rank, k)[1]
    values = ops.take_along_axis(x, indices, axis=-1)
    order = ops.argsort(-values, axis=-1)
    values, indices = (ops.take_along_axis(each, order, axis=-1) for each in (values, indices))
    return values, ops.cast(indices, "int32")
