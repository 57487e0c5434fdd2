"""One decoding step for all hypotheses of all sentences."""

from keras import ops

from t2t_relpos.models.folded.attention import MASKED_SCORE, attend
from t2t_relpos.models.folded.attention_tables import has_tables, table_rows
from t2t_relpos.models.folded.backend_ops import dense, take_rows


class DecoderStep:
    """The step function of a search: `step(ids [rows], state) -> (logits [rows, V], state)`.

    Rows are B · k. The keys and values of the source are stored once per sentence.

    Args:
        config: the `TransformerConfig`.
        layers: its `FoldedLayers`.
        weights: `fold_weights(...)`. In a TensorFlow graph, variables are faster than tensors,
            because a loop does not pass them from step to step.
        positions: `[L, D]`, whose row t is added to the embeddings in step t, or None.
        caches: `DecoderCaches`.
    """

    def __init__(self, config, layers, weights, positions, caches):
        self.layers = layers
        self.weights = weights
        self.positions = positions
        self.caches = caches
        self.last_id = config.max_relative_position

    def start(self, memory, is_real):
        """Returns the state before the first step, with one row per sentence.

        Args:
            memory: keys and values of the source for all layers, each `[B, N, S, H]`.
            is_real: bool `[B, S]`, False on padding of the source.
        """
        sentences, ancestors = self.caches.start(ops.shape(is_real)[0])
        source_bias = ops.where(is_real, 0.0, MASKED_SCORE)[:, None, None, :]
        # The bias has no effect if all positions have it. A source of padding only has values of
        # zero instead, so that the attention to it is zero, except for a relative value table.
        has_source = ops.cast(ops.any(is_real, axis=1), "float32")[:, None, None, None]
        memory = [x * has_source if number % 2 else x for number, x in enumerate(memory)]
        sentences = {**sentences, "memory": memory, "source_bias": source_bias}
        return {"sentences": sentences, "ancestors": ancestors}

    def resize(self, state, num_steps):
        """Returns the state with room for `num_steps` steps."""
        sentences, ancestors = self.caches.resize(state["sentences"], state["ancestors"], num_steps)
        return {"sentences": sentences, "ancestors": ancestors}

    def __call__(self, ids, state):
        """Returns (logits `[rows, V]`, the next state).

        Args:
            ids: int `[rows]`, the previous ids; 0 in the first step.
            state: the result of `start`, with rows repeated by the search, or the state that the
                previous call returned.
        """
        sentences, layers, weights = state["sentences"], self.layers, self.weights
        source_bias = sentences["source_bias"]
        batch, _, _, length = ops.shape(source_bias)
        beams = ops.shape(ids)[0] // batch
        shapes = {"key_table": (batch, layers.num_heads, beams, length)}
        shapes["value_table"] = (batch, layers.num_heads, beams, layers.depth)
        ancestors, step = self.caches.open_step(sentences, state["ancestors"], batch, beams)
        x = take_rows(weights["target"], ids)
        if self.positions is not None:
            x = x + take_rows(self.positions, step.time)
        caches = []
        for number, layer in enumerate(weights["decoder"]):
            layer_caches = slice(2 * number, 2 * number + 2)
            projected = self._project(x, layer["self"], batch, beams, 3)
            key, value = map(step.add, sentences["caches"][layer_caches], projected[1:])
            caches += [key, value]
            outputs = step.attend(number, projected[0], key, value)
            x = layers.leave(x, self._output(outputs, layer["self"]), layer, "self")
            (query,) = self._project(x, layer["cross"], batch, beams, 1)
            tables = self._source_tables(layer["cross"], source_bias, step.time)
            outputs = attend(query, *sentences["memory"][layer_caches], source_bias, tables, shapes)
            x = layers.leave(x, self._output(outputs, layer["cross"]), layer, "cross")
            x = layers.feed_forward(x, layer)
        logits = dense(layers.enter(x), weights["logits"], weights["logits_bias"])
        sentences = {**step.finish(sentences), "caches": caches}
        return logits, {"sentences": sentences, "ancestors": ancestors}

    def _project(self, x, attention, batch, beams, parts):
        projected = dense(self.layers.enter(x), attention["input"], attention["input_bias"])
        return self.layers.split(projected, batch, beams, parts)

    def _output(self, outputs, attention):
        return dense(self.layers.merge(outputs), attention["output"])

    def _source_tables(self, attention, source_bias, time):
        """Returns the table rows of source positions for a query at position `time`."""
        if not has_tables(attention):
            return {}
        distances = ops.arange(ops.shape(source_bias)[3], dtype="int32") - time
        ids = ops.clip(distances, -self.last_id, self.last_id) + self.last_id
        return table_rows(attention, ids)
