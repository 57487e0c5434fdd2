"""Fixed-size caches of decoder keys and values, for XLA and JAX."""

from keras import ops

from t2t_relpos._backend import start_indices, write_slice
from t2t_relpos.models.folded.attention import MASKED_SCORE, attend
from t2t_relpos.models.folded.attention_tables import table_rows
from t2t_relpos.models.folded.decoder_caches import CachedStep, DecoderCaches


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
        last_id = config.max_relative_position
        # A step reads a row for every step of the caches. The scores of later steps are masked.
        ids = ops.clip(ops.arange(1 - max_length, max_length, dtype="int32") + last_id, 0, last_id)
        self.tables = [table_rows(layer["self"], ids) for layer in decoder]

    def start(self, batch):
        slots = self.max_length * self.beam_size
        shape = (batch, self.num_heads, slots, self.depth)
        sentences = {
            "caches": [ops.zeros(shape) for _ in range(2 * len(self.decoder))],
            "time": ops.zeros((batch,), dtype="int32"),
        }
        return sentences, ops.zeros((batch, slots)) + MASKED_SCORE

    def resize(self, sentences, ancestors, num_steps):
        slots = num_steps * self.beam_size
        num_new_slots = max(slots - ancestors.shape[1], 0)
        caches = [
            ops.pad(cache[:, :, :slots], [[0, 0], [0, 0], [0, num_new_slots], [0, 0]])
            for cache in sentences["caches"]
        ]
        ancestors = ops.pad(
            ancestors[:, :slots], [[0, 0], [0, num_new_slots]], constant_values=MASKED_SCORE
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
        shapes = {"key_table": (*query.shape[:3], steps), "value_table": query.shape}
        return attend(query, key, value, self._bias, tables, shapes, keys_per_row=beam_size)

    def finish(self, sentences):
        return {**sentences, "time": sentences["time"] + 1}


def _slice(table, start, length):
    """Returns `table[..., start : start + length, :]`."""
    zeros = (0,) * (len(table.shape) - 2)
    start = start_indices(*zeros, start, 0)
    return ops.slice(table, start, (*table.shape[:-2], length, table.shape[-1]))
