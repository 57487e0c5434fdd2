"""Packs the sequences of a batch into one sequence without padding, and attends to it."""

import keras
import numpy as np
from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos.layers.attention_base import swap_heads

_MATCH = "Its sequences must be those of the mask."


class Packing:
    """The map between a padded batch `[B, T]` and one sequence without padding.

    Layers that treat positions separately then do no work for padding: their inputs `[1, P, D]` are
    the P tokens of the batch. Attention needs the separate sequences, so `TransformerEncoder` and
    `TransformerDecoder` have the packing as a call argument.

    Without `capacity`, P is the number of tokens. It depends on the values of the mask, so this
    form is not available in code that XLA or `jax.jit` compiles. With `capacity`, P is `capacity`:
    zeros follow the tokens.

    Args:
        mask: bool `[B, T]`, True = a token. A False before the last True counts as a token, and is
            attended to, unlike with `padding_mask`. In a batch without tokens, the first position
            counts as a token.
        capacity: P, an int of at least the number of tokens. Default: the number of tokens. In
            compiled code, which can't raise an error, `pack` and `unpack` return no token if the
            tokens exceed the capacity: all entries are NaN, or the smallest value of an integer
            dtype (the largest one if it is unsigned). Layers that get the packing do not check
            this: give them the result of `pack`.

    Attributes:
        mask: bool `[B, T]`, True = packed.

    Raises:
        ValueError: if the mask is not of rank 2, a tensor does not have the shape of this batch,
            the number of tokens exceeds `capacity`, or `capacity` is missing in compiled code.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.layers import Packing, TransformerEncoder
    >>> packing = Packing(np.array([[True, True, False], [True, False, False]]))
    >>> packed = packing.pack(np.ones((2, 3, 8), "float32"))
    >>> tuple(packed.shape)
    (1, 3, 8)
    >>> layer = TransformerEncoder(intermediate_dim=16, num_heads=2, max_relative_position=4)
    >>> outputs = packing.unpack(layer(packed, packing=packing))
    >>> tuple(outputs.shape), bool(ops.all(outputs[1, 1:] == 0))
    ((2, 3, 8), True)
    >>> tuple(Packing(np.ones((2, 3), bool), capacity=8).pack(np.ones((2, 3, 8))).shape)
    (1, 8, 8)
    """

    def __init__(self, mask, capacity=None):
        mask = ops.convert_to_tensor(mask)
        _checks.check(mask, "mask", "B T", "mask")
        mask = ops.cast(mask, "bool")
        self._shape = ops.shape(mask)
        after = ops.flip(ops.cumsum(ops.flip(ops.cast(mask, "int32"), 1), axis=1), 1)
        flat = ops.reshape(after > 0, (-1,))
        # A gather from an empty tensor would fail, so at least one position counts as a token.
        is_first = ops.arange(ops.size(flat), dtype="int32") == 0
        flat = ops.logical_or(flat, ops.logical_and(is_first, ops.logical_not(ops.any(flat))))
        self.mask = ops.reshape(flat, self._shape)
        is_token = ops.cast(flat, "int32")
        count, total = ops.cumsum(is_token), ops.sum(is_token)
        # Slots are the positions `b·T + t` of the padded batch. `_tokens` is the token of every
        # slot, `_slots` the slot of every token. Padding is -1.
        self._tokens = ops.where(flat, count - 1, -1)
        self._fits = True
        if capacity is None:
            self._slots = _slots_of_tokens(flat)
        else:
            self._slots = _slots_with_padding(count, total, capacity)
            self._fits = _check_capacity(total, capacity)

    def pack(self, x):
        """Packs `[B, T, D]` into `[1, P, D]`."""
        sizes = {"B": self._shape[0], "T": self._shape[1]}
        _checks.check_shape(x.shape, "x", "B T D", sizes, advice=_MATCH)
        width = x.shape[-1]
        packed = _take_rows(ops.reshape(x, (-1, width)), self._slots, self._tokens)
        return ops.expand_dims(self._or_invalid(packed), 0)

    def unpack(self, x):
        """Unpacks `[1, P, D]` into `[B, T, D]`, with zeros at padding."""
        self._check_packed(x)
        width = x.shape[-1]
        rows = _take_rows(ops.reshape(x, (-1, width)), self._tokens, self._slots)
        return ops.reshape(self._or_invalid(rows), (*self._shape, width))

    def split_heads(self, x, num_heads):
        """Unpacks `[1, P, N·H]` into heads `[B, N, T, H]`, with zeros at padding."""
        self._check_packed(x)
        batch, length = self._shape
        width = x.shape[-1] // num_heads
        rows = _take_rows(ops.reshape(x, (-1, width)), *self._rows_of_heads(num_heads))
        return ops.reshape(rows, (batch, num_heads, length, width))

    def merge_heads(self, x):
        """Packs heads `[B, N, T, H]` into `[1, P, N·H]`."""
        sizes = {"B": self._shape[0], "T": self._shape[1]}
        _checks.check_shape(x.shape, "x", "B N T H", sizes, advice=_MATCH)
        num_heads, width = x.shape[1], x.shape[-1]
        heads, tokens = self._rows_of_heads(num_heads)
        rows = _take_rows(ops.reshape(x, (-1, width)), tokens, heads)
        return ops.reshape(rows, (1, -1, num_heads * width))

    def _check_packed(self, x):
        sizes, advice = {"P": self._slots.shape[0]}, "Pass tokens that `pack` returned."
        _checks.check_shape(x.shape, "x", "1 P D", sizes, advice=advice)

    def _or_invalid(self, x):
        """Returns `x`, or no valid value if the tokens exceed the capacity."""
        if self._fits is True:
            return x
        dtype = keras.backend.standardize_dtype(x.dtype)
        if "float" in dtype:
            return x * backend.one_or_nan(self._fits, dtype)
        limits = None if dtype == "bool" else np.iinfo(dtype)
        invalid = False if limits is None else limits.min or limits.max
        return ops.where(self._fits, x, ops.cast(invalid, dtype))

    # The result is not cached. Every layer computes it again, but TensorFlow merges equal nodes of
    # a graph.
    def _rows_of_heads(self, num_heads):
        """Returns row maps `[B, N, T]` -> `[P, N]` (-1 on padding) and `[P, N]` -> `[B, N, T]`."""
        batch, length = self._shape
        heads = ops.arange(num_heads, dtype="int32")
        tokens = ops.reshape(self._tokens, (batch, 1, length))
        of_slots = ops.where(tokens < 0, -1, tokens * num_heads + heads[:, None])
        # Without positions, there are no tokens to divide.
        divisor = max(length, 1) if isinstance(length, int) else ops.maximum(length, 1)
        rows, positions = self._slots // divisor, self._slots % divisor
        of_tokens = (rows[:, None] * num_heads + heads) * length + positions[:, None]
        of_tokens = ops.where(self._slots[:, None] < 0, -1, of_tokens)
        return ops.reshape(of_slots, (-1,)), ops.reshape(of_tokens, (-1,))


def _slots_of_tokens(flat):
    """Returns the slots of all tokens `[P]` from their mask `[B·T]`."""
    if backend.is_compiled(flat):
        raise ValueError(
            "Packing requires `capacity` in code that XLA or jax.jit compiles, because the number "
            "of tokens depends on the mask's values. Write Packing(mask, capacity=N), with N at "
            "least the number of tokens of a batch, or do not compile this code."
        )
    return ops.cast(ops.nonzero(flat)[0], "int32")


def _slots_with_padding(count, total, capacity):
    """Returns the slots of `capacity` tokens, -1 after the last one.

    `count` is the number of tokens up to every slot.
    """
    if not _checks.is_integer(capacity) or capacity < 1:
        raise ValueError(f"Expected `capacity` to be an int of at least 1. Received: {capacity!r}")
    capacity = int(capacity)
    number = ops.arange(1, capacity + 1, dtype="int32")
    slots = ops.cast(ops.searchsorted(count, number, side="left"), "int32")
    return ops.where(number <= total, slots, -1)


def _check_capacity(total, capacity):
    """Returns whether the tokens fit: True, or a scalar tensor if their number is unknown."""
    _, tokens = _checks.known_range(total)
    if tokens is None:
        return total <= capacity
    if tokens > capacity:
        raise ValueError(
            f"The batch has {tokens} tokens, but the packing has capacity={capacity}. Increase "
            "`capacity`, or split the batch."
        )
    return True


def _take_rows(x, indices, inverse_indices):
    """Returns the rows of a matrix as `backend.take_distinct_rows`, zeros if it has no rows."""
    if x.shape[0] == 0:  # A gather from an empty tensor would fail.
        return ops.zeros((ops.shape(indices)[0], x.shape[1]), dtype=x.dtype)
    return backend.take_distinct_rows(x, indices, inverse_indices)


def unpack_heads(x, packing):
    """Returns heads `[B, T, N, H]` of the tokens `[1, P, N, H]` of a packing, or `x` without it."""
    if packing is None:
        return x
    rows, tokens, heads, depth = ops.shape(x)
    x = ops.reshape(x, (rows, tokens, heads * depth))
    return swap_heads(packing.split_heads(x, heads))
