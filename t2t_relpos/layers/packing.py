"""Packs the sequences of a batch into one sequence without padding, and attends to it."""

from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos.layers.attention_base import swap_heads

_MATCH = "Its sequences must be those of the mask."


class Packing:
    """The map between a padded batch `[B, T]` and one sequence without padding.

    Layers that treat positions separately then do no work for padding: their inputs `[1, P, D]` are
    the P tokens of the batch. Attention needs the separate sequences, so `TransformerEncoder` and
    `TransformerDecoder` have the packing as a call argument.

    P depends on the values of the mask, so code that XLA or `jax.jit` compiles can't pack. Pad
    there, and pass the mask to the layers.

    Args:
        mask: bool `[B, T]`, True = a token. A False before the last True counts as a token, and is
            attended to, unlike with `padding_mask`. In a batch without tokens, the first position
            counts as a token.

    Attributes:
        mask: bool `[B, T]`, True = packed.

    Raises:
        ValueError: if the mask is not of rank 2, a tensor does not have the shape of this batch, or
            the code is compiled.

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
    """

    def __init__(self, mask):
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
        # Slots are the positions `b·T + t` of the padded batch. `_tokens` is the token of every
        # slot, -1 on padding. `_slots` is the slot of every token.
        self._tokens = ops.where(flat, ops.cumsum(ops.cast(flat, "int32")) - 1, -1)
        self._slots = _slots_of_tokens(flat)
        self._rows = {}  # Results of `_rows_of_heads`.

    def pack(self, x):
        """Packs `[B, T, D]` into `[1, P, D]`."""
        sizes = {"B": self._shape[0], "T": self._shape[1]}
        _checks.check_shape(x.shape, "x", "B T D", sizes, advice=_MATCH)
        width = x.shape[-1]
        packed = _take_rows(ops.reshape(x, (-1, width)), self._slots, self._tokens)
        return ops.expand_dims(packed, 0)

    def unpack(self, x):
        """Unpacks `[1, P, D]` into `[B, T, D]`, with zeros at padding."""
        self._check_packed(x)
        width = x.shape[-1]
        rows = _take_rows(ops.reshape(x, (-1, width)), self._tokens, self._slots)
        return ops.reshape(rows, (*self._shape, width))

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

    def _rows_of_heads(self, num_heads):
        """Returns row maps `[B, N, T]` -> `[P, N]` (-1 on padding) and `[P, N]` -> `[B, N, T]`."""
        # Tensors of one graph of TensorFlow, such as that of a branch, are unknown in others.
        key = num_heads, backend.graph()
        if key[1] is None:
            return self._compute_rows_of_heads(num_heads)
        if key not in self._rows:
            self._rows[key] = self._compute_rows_of_heads(num_heads)
        return self._rows[key]

    def _compute_rows_of_heads(self, num_heads):
        batch, length = self._shape
        heads = ops.arange(num_heads, dtype="int32")
        tokens = ops.reshape(self._tokens, (batch, 1, length))
        rows_by_slot = ops.where(tokens < 0, -1, tokens * num_heads + heads[:, None])
        # Without positions, there are no tokens to divide.
        divisor = max(length, 1) if isinstance(length, int) else ops.maximum(length, 1)
        rows, positions = self._slots // divisor, self._slots % divisor
        rows_by_token = (rows[:, None] * num_heads + heads) * length + positions[:, None]
        return ops.reshape(rows_by_slot, (-1,)), ops.reshape(rows_by_token, (-1,))


def _slots_of_tokens(flat):
    """Returns the slots of all tokens `[P]` from their mask `[B·T]`."""
    if backend.is_compiled(flat):
        raise ValueError(
            "Expected a Packing in code that is not compiled, because the number of tokens depends "
            "on the mask's values. Received: code that XLA or jax.jit compiles. Pad the batch "
            "there and pass the mask to the layers, or do not compile this code."
        )
    return ops.cast(ops.nonzero(flat)[0], "int32")


def _take_rows(x, indices, inverse_indices):
    """Returns the rows of a matrix as `backend.take_distinct_rows`, zeros if it has no rows."""
    if x.shape[0] == 0:  # A gather from an empty tensor would fail.
        return ops.zeros((ops.shape(indices)[0], x.shape[1]), dtype=x.dtype)
    return backend.take_distinct_rows(x, indices, inverse_indices)


def unpack_heads(x, packing):
    """Returns heads `[B, T, N, H]` of the tokens `[1, P, N, H]` of a packing, or `x` without it."""
    if packing is None:
        return x
    rows, tokens, (heads, depth) = x.shape[0], x.shape[1], x.shape[2:]
    if rows == 1 and tokens is None:
        tokens = -1
    sizes = [backend.size(x, axis) if y is None else y for axis, y in enumerate((rows, tokens))]
    x = ops.reshape(x, (*sizes, heads * depth))
    return swap_heads(packing.split_heads(x, heads))
