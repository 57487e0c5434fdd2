"""Fixed-size caches of decoder keys and values, for XLA and JAX."""

from keras import ops

from t2t_relpos.attention.masks import masked_softmax
from t2t_relpos.models.folded.attention_tables import table_rows
from t2t_relpos.models.folded.growing_caches import HIDDEN
from t2t_relpos.models.folded.products import matmul_table, matmul_transposed


class FixedCaches:
    """Caches like `GrowingCaches`, but with k slots for each of L steps from the start.

    A step writes its k slots in place.

    Args:
        config: a `TransformerConfig`.
        decoder: folded weights of the decoder layers.
        max_length: L, maximum number of steps, an int.
        beam_size: k, an int.
    """

    def __init__(self, config, decoder, max_length, beam_size):
        self.num_heads = config.num_heads
        self.depth = config.hidden_dim // config.num_heads
        self.num_layers = len(decoder)
        self.max_length = max_length
        self.beam_size = beam_size
        last_id = config.max_relative_position
        # A step reads a row for every step of the caches. The scores of later steps are masked.
        ids = ops.clip(ops.arange(1 - max_length, max_length, dtype="int32") + last_id, 0, last_id)
        self.tables = [table_rows(layer["self"], ids) for layer in decoder]

    def start(self, batch):
        """Returns the first state of B sentences: (a dict of tensors, masks `[B, slots]`)."""
        slots = self.max_length * self.beam_size
        shape = (batch, self.num_heads, slots, self.depth)
        sentences = {
            "caches": [ops.zeros(shape) for _ in range(2 * self.num_layers)],
            "time": ops.zeros((batch,), dtype="int32"),
        }
        return sentences, ops.zeros((batch, slots)) + HIDDEN

    def resize(self, sentences, ancestors, length):
        """Returns `sentences` and `ancestors` with room for `length` steps.

        `length` is an int above the number of steps so far.
        """
        slots = length * self.beam_size
        more = max(slots - ancestors.shape[1], 0)
        caches = [
            ops.pad(cache[:, :, :slots], [[0, 0], [0, 0], [0, more], [0, 0]])
            for cache in sentences["caches"]
        ]
        ancestors = ops.pad(ancestors[:, :slots], [[0, 0], [0, more]], constant_values=HIDDEN)
        return {**sentences, "caches": caches}, ancestors

    def open_step(self, sentences, ancestors, batch, beams):
        """Returns (masks with the new slots `[rows, slots]`, a `FixedStep`)."""
        time = sentences["time"][0]
        own = time * self.beam_size + ops.arange(batch * beams, dtype="int32") % self.beam_size
        slots = ops.arange(ancestors.shape[1], dtype="int32")
        ancestors = ops.where(slots == own[:, None], 0.0, ancestors)
        bias = ops.reshape(ancestors, (batch, 1, beams, ancestors.shape[1]))
        return ancestors, FixedStep(self, time, bias)


class FixedStep:
    """One step with `FixedCaches`.

    Attributes:
        time: number of the step, a scalar.
    """

    def __init__(self, caches, time, bias):
        self.time = time
        self._bias = bias
        self._caches = caches
        self._tables = [self._step_rows(tables) for tables in caches.tables]

    def _step_rows(self, tables):
        """Returns the table rows for the keys of all steps: `[steps, H]` or `[N, steps, H]`."""
        length = self._bias.shape[-1] // self._caches.beam_size
        first = self._caches.max_length - 1 - self.time
        return {name: _slice(table, first, length) for name, table in tables.items()}

    def add(self, cache, new):
        """Returns the cache `[B, N, slots, H]` with new entries `[B, N, k, H]`."""
        return ops.slice_update(cache, (0, 0, self.time * self._caches.beam_size, 0), new)

    def attend(self, number, query, key, value):
        """Returns the outputs `[B, N, k, H]` of the self-attention of layer `number`."""
        tables, beam_size = self._tables[number], self._caches.beam_size
        shape = query.shape
        scores = matmul_transposed(query, key)
        if "key_table" in tables:
            steps = tables["key_table"].shape[-2]
            by_step = matmul_table(
                query, tables["key_table"], (*shape[:3], steps), transpose_table=True
            )
            scores = scores + ops.repeat(by_step, beam_size, axis=-1)
        weights = masked_softmax(scores + self._bias)
        outputs = ops.matmul(weights, value)
        if "value_table" in tables:
            by_step = ops.reshape(weights, (*shape[:3], -1, beam_size))
            outputs = outputs + matmul_table(
                ops.sum(by_step, axis=-1), tables["value_table"], shape
            )
        return outputs

    def finish(self, sentences):
        """Returns `sentences` for the next step, still with the old caches."""
        return {**sentences, "time": sentences["time"] + 1}


def _slice(table, start, length):
    """Returns `table[..., start : start + length, :]`."""
    zeros = (0,) * (len(table.shape) - 2)
    return ops.slice(table, (*zeros, start, 0), (*table.shape[:-2], length, table.shape[-1]))
