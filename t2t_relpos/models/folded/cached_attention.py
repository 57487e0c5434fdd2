"""Attention of decoding steps: caches of keys and values, and attention to them.

Caches grow with every step, or have a fixed size for XLA and JAX.
"""

import abc

from keras import ops

from t2t_relpos.attention.band import Distances
from t2t_relpos.attention.masks import masked_softmax
from t2t_relpos.backend import hide_constant, matmul_transposed, start_indices, write_slice

# Added to a score, it makes the attention weight exactly 0 in float32.
MASKED_BIAS = -1e9
NAMES = ("key_table", "value_table")


class DecoderCaches(abc.ABC):
    """How keys and values of all hypotheses are stored, in slots that are never reordered.

    The keys and values are in the state of the search, and not in this object. Every step adds a
    slot per hypothesis. A bias of each active hypothesis, `"ancestors"` `[rows, slots]`, hides the
    slots of other hypotheses: it is 0 or `MASKED_BIAS`. A search reorders these biases instead of
    the larger keys and values. The rows are the active hypotheses of all sentences.

    Args:
        config: a `TransformerConfig`.
        decoder: folded weights of the decoder layers.
        beam_size: k, an int or a scalar tensor.
    """

    def __init__(self, config, decoder, beam_size):
        self.num_heads = config.num_heads
        # The caches of keys and values take turns.
        self.depths = config.head_dims * len(decoder)
        self.decoder = decoder
        self.beam_size = beam_size

    @abc.abstractmethod
    def start(self, batch):
        """Returns the first state of B sentences: (a dict of tensors, biases `[B, slots]`)."""

    @abc.abstractmethod
    def open_step(self, sentences, ancestors, batch, beams):
        """Returns (biases with the new slots `[rows, slots]`, a `CachedStep`).

        Args:
            sentences: the dict of tensors of `start` or of the previous step.
            ancestors: biases `[rows, slots]`.
            batch: B, a scalar tensor.
            beams: active hypotheses per sentence, a scalar tensor.
        """

    def resize(self, sentences, ancestors, num_steps):
        """Returns `sentences` and `ancestors` with room for `num_steps` steps.

        Args:
            sentences: the dict of tensors of `start` or of the previous step.
            ancestors: biases `[rows, slots]`.
            num_steps: an int above the number of steps so far.
        """
        return sentences, ancestors


class CachedStep(abc.ABC):
    """One step with `DecoderCaches`.

    Attributes:
        time: number of the step, a scalar.
    """

    def __init__(self, time):
        self.time = time

    @abc.abstractmethod
    def add(self, cache, new):
        """Returns the cache `[B, N, slots, H]` with new entries `[B, N, k, H]`, for values Hv."""

    @abc.abstractmethod
    def attend(self, number, query, key, value):
        """Returns the outputs `[B, N, k, Hv]` of the self-attention of layer `number`."""

    def finish(self, sentences):
        """Returns `sentences` for the next step. The caller replaces the caches in it."""
        return sentences


class GrowingCaches(DecoderCaches):
    """Caches whose tensors grow with every step.

    Step 0 adds one slot per hypothesis, which is 1 or k slots. Every other step adds k slots.

    Args:
        config: a `TransformerConfig`.
        decoder: folded weights of the decoder layers.
        max_length: L, maximum number of steps, an int or a scalar tensor.
        beam_size: k, an int or a scalar tensor.
    """

    def __init__(self, config, decoder, max_length, beam_size):
        super().__init__(config, decoder, beam_size)
        self.num_slots = max_length * beam_size
        # A new slot is visible to its own hypothesis only.
        self.new_biases = MASKED_BIAS * (1.0 - ops.eye(beam_size))
        self.tables = self._all_rows(max_length, Distances.of(config.max_relative_position).left)

    def _all_rows(self, max_length, left):
        """Returns the table rows of all slots and layers, as a tensor for each name of a table.

        A step with s slots uses the last s rows.
        """
        ids = ops.maximum(ops.arange(1 - max_length, 1, dtype="int32") + left, 0)
        ids = ops.repeat(ids, self.beam_size)
        rows = [table_rows(layer["self"], ids) for layer in self.decoder]
        return {name: ops.stack([each[name] for each in rows]) for name in rows[0]}

    def start(self, batch):
        length = hide_constant(0)
        empty = {d: ops.zeros((batch, self.num_heads, length, d)) for d in set(self.depths)}
        caches = [empty[depth] for depth in self.depths]
        return {"caches": caches}, ops.zeros((batch, length))

    def open_step(self, sentences, ancestors, batch, beams):
        new = ops.tile(self.new_biases[:beams, :beams], (batch, 1))
        ancestors = ops.concatenate([ancestors, new], axis=1)
        slots = ops.shape(ancestors)[1]
        bias = ops.reshape(ancestors, (batch, 1, beams, slots))
        time = (slots - 1) // self.beam_size
        shapes = {"key_table": (batch, self.num_heads, beams, slots)}
        shapes["value_table"] = (batch, self.num_heads, beams, self.depths[1])
        return ancestors, GrowingStep(time, bias, self._step_tables(slots), shapes)

    def _step_tables(self, slots):
        """Returns a dict of tables for each layer."""
        first, count = self.num_slots - slots, len(self.decoder)
        rows = {name: ops.unstack(x[..., first:, :], count) for name, x in self.tables.items()}
        return [{name: rows[name][number] for name in rows} for number in range(count)]


class GrowingStep(CachedStep):
    """One step with `GrowingCaches`."""

    def __init__(self, time, bias, tables, shapes):
        super().__init__(time)
        self._shapes = shapes
        self._bias = bias
        self._tables = tables

    def add(self, cache, new):
        return ops.concatenate([cache, new], axis=2)

    def attend(self, number, query, key, value):
        return attend(query, key, value, self._bias, self._tables[number], self._shapes)


class FixedCaches(DecoderCaches):
    """Caches with k slots for each of L steps from the start.

    A step writes its k slots in place.

    Args:
        config: a `TransformerConfig`.
        decoder: folded weights of the decoder layers.
        max_length: L, maximum number of steps, an int.
        beam_size: k, an int.
    """

    def __init__(self, config, decoder, max_length, beam_size):
        super().__init__(config, decoder, beam_size)
        self.max_length = max_length
        left = Distances.of(config.max_relative_position).left
        # A step reads a row for every step of the caches. The scores of later steps are masked.
        ids = ops.clip(ops.arange(1 - max_length, max_length, dtype="int32") + left, 0, left)
        self.tables = [table_rows(layer["self"], ids) for layer in decoder]

    def start(self, batch):
        slots = self.max_length * self.beam_size
        sentences = {
            "caches": [ops.zeros((batch, self.num_heads, slots, d)) for d in self.depths],
            "time": ops.zeros((batch,), dtype="int32"),
        }
        return sentences, ops.zeros((batch, slots)) + MASKED_BIAS

    def resize(self, sentences, ancestors, num_steps):
        slots = num_steps * self.beam_size
        num_new_slots = max(slots - ancestors.shape[1], 0)
        caches = [
            ops.pad(cache[:, :, :slots], [[0, 0], [0, 0], [0, num_new_slots], [0, 0]])
            for cache in sentences["caches"]
        ]
        ancestors = ops.pad(
            ancestors[:, :slots], [[0, 0], [0, num_new_slots]], constant_values=MASKED_BIAS
        )
        return {**sentences, "caches": caches}, ancestors

    def open_step(self, sentences, ancestors, batch, beams):
        time = sentences["time"][0]
        # The first step may have one row for each sentence.
        own = time * self.beam_size + ops.arange(batch * beams, dtype="int32") % beams
        slots = ops.arange(ancestors.shape[1], dtype="int32")
        ancestors = ops.where(slots == own[:, None], 0.0, ancestors)
        bias = ops.reshape(ancestors, (batch, 1, beams, ancestors.shape[1]))
        return ancestors, FixedStep(self, time, bias)


class FixedStep(CachedStep):
    """One step with `FixedCaches`."""

    def __init__(self, caches, time, bias):
        super().__init__(time)
        self._bias = bias
        self._caches = caches
        self._tables = [self._step_rows(tables) for tables in caches.tables]

    def _step_rows(self, tables):
        """Returns the table rows for the keys of all steps: `[steps, H]` or `[N, steps, H]`."""
        length = self._bias.shape[-1] // self._caches.beam_size
        first = self._caches.max_length - 1 - self.time
        return {name: _slice(table, first, length) for name, table in tables.items()}

    def add(self, cache, new):
        return write_slice(cache, new, self.time * self._caches.beam_size, axis=2)

    def attend(self, number, query, key, value):
        tables, beam_size = self._tables[number], self._caches.beam_size
        steps = self._bias.shape[-1] // beam_size
        sizes = ops.shape(query)[:3]
        shapes = {"key_table": (*sizes, steps), "value_table": (*sizes, value.shape[-1])}
        return attend(query, key, value, self._bias, tables, shapes, keys_per_row=beam_size)

    def finish(self, sentences):
        return {**sentences, "time": sentences["time"] + 1}


def _slice(table, start, length):
    """Returns `table[..., start : start + length, :]`."""
    zeros = (0,) * (len(table.shape) - 2)
    start = start_indices(*zeros, start, 0)
    return ops.slice(table, start, (*table.shape[:-2], length, table.shape[-1]))


def matmul_table(x, table, shape, *, transpose_table=False):
    """Returns `[B, N, T, X]` times a table `[X, Y]` or `[N, X, Y]`.

    Args:
        x: `[B, N, T, X]`.
        table: `[X, Y]`, or `[N, X, Y]` for separate tables of the heads.
        shape: shape of the result, `(B, N, T, Y)`. Reading it from tensors would take a few more
            operations in a graph.
        transpose_table: whether the table is `[Y, X]` or `[N, Y, X]`.
    """
    # With one head, a product of rank 4 is wrong: see `t2t_relpos.attention.gather`.
    if len(table.shape) == 3 and table.shape[0] == 1:
        table = table[0]
    multiply = matmul_transposed if transpose_table else ops.matmul
    if len(table.shape) == 3:
        return multiply(x, table)
    width = table.shape[-1] if transpose_table else ops.shape(table)[-2]
    return ops.reshape(multiply(ops.reshape(x, (-1, width)), table), shape)


def attend(query, key, value, bias, tables, shapes, *, keys_per_row=1):
    """Returns attention outputs `[B, N, k, Hv]`.

    Args:
        query: `[B, N, k, H]`.
        key: `[B, N, S, H]`.
        value: `[B, N, S, Hv]`.
        bias: added to the scores, broadcasts to `[B, N, k, S]`.
        tables: `key_table` and `value_table`. Row r, of `[R, H]` or `[N, R, H]`, is that of the
            keys from `r * keys_per_row` to `(r + 1) * keys_per_row - 1`.
        shapes: shapes of the products with these tables, `(B, N, k, R)` and `(B, N, k, Hv)`.
        keys_per_row: number of consecutive keys with the same table rows, an int. Default: 1.
    """
    scores = matmul_transposed(query, key)
    if "key_table" in tables:
        by_row = matmul_table(query, tables["key_table"], shapes["key_table"], transpose_table=True)
        if keys_per_row > 1:
            by_row = ops.repeat(by_row, keys_per_row, axis=-1)
        scores = scores + by_row
    # Without a mask: the bias hides keys. This softmax does not warn about a single key.
    weights = masked_softmax(scores + bias)
    outputs = ops.matmul(weights, value)
    if "value_table" in tables:
        if keys_per_row > 1:
            weights = ops.reshape(weights, (*shapes["value_table"][:3], -1, keys_per_row))
            weights = ops.sum(weights, axis=-1)
        outputs = outputs + matmul_table(weights, tables["value_table"], shapes["value_table"])
    return outputs


def has_tables(attention):
    """Returns whether an attention has a relative-position table."""
    return any(name in attention for name in NAMES)


def table_rows(attention, ids):
    """Returns a dict of the rows `ids` of each table: `[S, H]`, or `[N, S, H]` per head."""
    return {name: ops.take(attention[name], ids, axis=-2) for name in NAMES if name in attention}
