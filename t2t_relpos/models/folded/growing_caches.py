"""Caches of decoder keys and values that grow with every step, for graphs with dynamic shapes."""

import keras
from keras import ops

from t2t_relpos.models.folded.attention import MASKED_SCORE, attend
from t2t_relpos.models.folded.attention_tables import NAMES, has_tables, table_rows
from t2t_relpos.models.folded.decoder_caches import CachedStep, DecoderCaches


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
        self.new_masks = MASKED_SCORE * (1.0 - ops.eye(beam_size))
        self.tables = self._tables(max_length, config.max_relative_position)

    def _tables(self, max_length, last_id):
        """Returns the table rows of all slots and layers as one tensor, or None without tables.

        A step with s slots uses the last s rows.
        """
        if not has_tables(self.decoder[0]["self"]):
            return None
        ids = ops.maximum(ops.arange(1 - max_length, 1, dtype="int32") + last_id, 0)
        ids = ops.repeat(ids, self.beam_size)
        tables = [
            table for layer in self.decoder for table in table_rows(layer["self"], ids).values()
        ]
        return ops.stack(tables)

    def start(self, batch):
        length = _unknown_zero()
        empty = ops.zeros((batch, self.num_heads, length, self.depth))
        caches = [empty for _ in range(2 * len(self.decoder))]
        return {"caches": caches}, ops.zeros((batch, length))

    def open_step(self, sentences, ancestors, batch, beams):
        new = ops.tile(self.new_masks[:beams, :beams], (batch, 1))
        ancestors = ops.concatenate([ancestors, new], axis=1)
        slots = ops.shape(ancestors)[1]
        bias = ops.reshape(ancestors, (batch, 1, beams, slots))
        time = (slots - 1) // self.beam_size
        shapes = {"key_table": (batch, self.num_heads, beams, slots)}
        shapes["value_table"] = (batch, self.num_heads, beams, self.depth)
        return ancestors, GrowingStep(time, bias, self._step_tables(slots), shapes)

    def _step_tables(self, slots):
        """Returns a dict of tables for each layer."""
        if self.tables is None:
            return [{} for _ in self.decoder]
        names = [name for name in NAMES if name in self.decoder[0]["self"]]
        rows = self.tables[..., self.num_slots - slots :, :]
        rows = iter(ops.unstack(rows, len(names) * len(self.decoder)))
        return [{name: next(rows) for name in names} for _ in self.decoder]


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


def _unknown_zero():
    """Returns 0. In TensorFlow graphs, its static value is unknown, so that lengths may change."""
    if keras.backend.backend() != "tensorflow":
        return 0
    from t2t_relpos.models.folded import _tensorflow_ops

    return _tensorflow_ops.unknown_zero()
