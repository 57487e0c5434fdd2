"""Sequences of a batch one after the other, without padding."""

import keras
from keras import ops


class Packing:
    """Where the tokens of a batch of padded sequences stand, one after the other.

    What a layer does at each position separately, it does not do on padding then:
    inputs `[1, P, D]` are all P tokens of a batch `[B, T]`. Attention takes the
    packing as a call argument: it needs the sequences.

    Their number depends on the mask's values: on JAX a packing can't be made
    where these are traced, on TensorFlow not where XLA compiles.

    Args:
        mask: bool `[B, T]`, True = a token. whatever is before the last token
            of a sequence is taken for one; a batch without any has one at its
            first position.

    Attributes:
        mask: bool `[B, T]`, True = packed.

    Raises:
        ValueError: a mask of another rank; tensors of other shapes than this
            batch's, as far as these are known.

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
        if len(mask.shape) != 2:
            raise ValueError(
                f"Expected a mask of shape [batch, length]. Received: shape {tuple(mask.shape)}"
            )
        mask = ops.cast(mask, "bool")
        self._shape = ops.shape(mask)
        after = ops.flip(ops.cumsum(ops.flip(ops.cast(mask, "int32"), 1), axis=1), 1)
        flat = ops.reshape(after > 0, (-1,))
        # Rows can't be taken from nothing.
        is_first = ops.arange(ops.size(flat)) == 0
        flat = ops.logical_or(flat, ops.logical_and(is_first, ops.logical_not(ops.any(flat))))
        self.mask = ops.reshape(flat, self._shape)
        (slots,) = ops.nonzero(flat)
        # The slot `b·T + t` of every token, and the token in every slot, -1 for padding.
        self._slots = ops.cast(slots, "int32")
        self._tokens = ops.where(flat, ops.cumsum(ops.cast(flat, "int32")) - 1, -1)

    def pack(self, x):
        """`[B, T, D]` -> `[1, P, D]`."""
        _check_sizes(x, "sequences, as the mask's", (*self._shape, None))
        width = x.shape[-1]
        packed = take_rows(ops.reshape(x, (-1, width)), self._slots, self._tokens)
        return ops.expand_dims(packed, 0)

    def unpack(self, x):
        """`[1, P, D]` -> `[B, T, D]`, zeros on padding."""
        self._check_packed(x)
        width = x.shape[-1]
        rows = take_rows(ops.reshape(x, (-1, width)), self._tokens, self._slots)
        return ops.reshape(rows, (*self._shape, width))

    def split_heads(self, x, num_heads):
        """`[1, P, N·H]` -> `[B, N, T, H]`, zeros on padding."""
        self._check_packed(x)
        batch, length = self._shape
        width = x.shape[-1] // num_heads
        rows = take_rows(ops.reshape(x, (-1, width)), *self._rows_of_heads(num_heads))
        return ops.reshape(rows, (batch, num_heads, length, width))

    def merge_heads(self, x):
        """`[B, N, T, H]` -> `[1, P, N·H]`."""
        _check_sizes(
            x, "heads, of the mask's sequences", (self._shape[0], None, self._shape[1], None)
        )
        num_heads, width = x.shape[1], x.shape[-1]
        heads, tokens = self._rows_of_heads(num_heads)
        rows = take_rows(ops.reshape(x, (-1, width)), tokens, heads)
        return ops.reshape(rows, (1, -1, num_heads * width))

    def _check_packed(self, x):
        _check_sizes(x, "tokens, as `pack` gives them", (1, self._slots.shape[0], None))

    # Asked for again by every layer: TensorFlow merges in a graph what is computed from the same
    # tensors.
    def _rows_of_heads(self, num_heads):
        """Returns row maps `[B, N, T]` -> `[P, N]` (-1 on padding) and `[P, N]` -> `[B, N, T]`."""
        batch, length = self._shape
        heads = ops.arange(num_heads, dtype="int32")
        tokens = ops.reshape(self._tokens, (batch, 1, length))
        of_slots = ops.where(tokens < 0, -1, tokens * num_heads + heads[:, None])
        rows, places = self._slots // length, self._slots % length
        of_tokens = (rows[:, None] * num_heads + heads) * length + places[:, None]
        return ops.reshape(of_slots, (-1,)), ops.reshape(of_tokens, (-1,))


def _check_sizes(x, what, sizes):
    """Raises where a size is known, and another than this."""
    shape = tuple(x.shape)
    if len(shape) == len(sizes):
        known = [
            pair
            for pair in zip(shape, sizes, strict=True)
            if all(isinstance(size, int) for size in pair)
        ]
        if all(size == expected for size, expected in known):
            return
    expected = ", ".join(str(size) if isinstance(size, int) else "*" for size in sizes)
    raise ValueError(f"Expected {what}, of shape [{expected}]. Received: shape {shape}")


def take_rows(x, places, back):
    """Gathers rows of `[R, H]` at `places`, zeros for -1; `back` is the inverse of `places`."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.layers import _tensorflow_packing

        return _tensorflow_packing.take_rows(x, places, back)
    return ops.where(places[:, None] < 0, 0, ops.take(x, ops.maximum(places, 0), axis=0))
