"""One decoding step for all beams of all sentences, without ever moving a cache."""

import tensorflow as tf

from trainer.serving.folded_layers import dense

# Added to a score, leaves a weight of exactly 0 in float32.
HIDDEN = -1e9


class FastStep:
    """`step(ids, state)`, the step function of a search; rows are `B * beam_size`.

    The keys and values of a sentence's beams, those that died among them, stay where they are: a
    slot for the first step, where all beams are one, then k for every step, in the order of beams.
    Each living beam has a mask over slots (`"ancestors"`) that shows it its own past. A search that
    picks beams gathers these masks and nothing larger. The source's keys and values stand once a
    sentence: its beams are the queries.

    Args:
        config: the `TransformerConfig`.
        layers: its `FoldedLayers`.
        weights: `folded_weights` as variables: a loop reads a variable in one operation, but takes
            a tensor from step to step in three.
        positions: what positions add to embeddings, `[L, D]`, or None.
        max_length: L, most steps, an int or a scalar tensor.
        beam_size: k, an int or a scalar tensor.
    """

    def __init__(self, config, layers, weights, positions, max_length, beam_size):
        self.layers = layers
        self.weights = weights
        self.positions = positions
        self.beam_size = beam_size
        self.last_label = config.max_relative_position
        self.num_slots = max_length * beam_size
        # A living beam sees its own newest slot, not those of its siblings.
        self.own = HIDDEN * (1.0 - tf.eye(beam_size))
        distances = tf.range(1 - max_length, 1)
        labels = tf.repeat(tf.maximum(distances + self.last_label, 0), beam_size)
        # The rows for the slots of all steps: the last ones are those of the newest. That the first
        # step has only one slot changes none of the later rows. All layers' in one tensor.
        tables = [
            table
            for layer in weights["decoder"]
            for table in _rows_of(layer["self"], labels).values()
        ]
        self.tables = tf.stack(tables) if tables else None

    def start(self, memory, real):
        """The state before the first step; the search repeats the row of a sentence for its beams.

        Args:
            memory: keys and values of the source: key of layer 0, its value, key of layer 1, …,
                each `[B, N, S, H]`.
            real: bool `[B, S]`, which source positions are no padding.
        """
        batch = tf.shape(real)[0]
        # Caches grow, so a loop must not take their first length for a constant.
        nothing = tf.raw_ops.PlaceholderWithDefault(input=0, shape=[])
        empty = tf.zeros([batch, self.layers.num_heads, nothing, self.layers.depth])
        return {
            "sentences": {
                "memory": memory,
                "hidden": tf.where(real, 0.0, HIDDEN)[:, None, None, :],
                "caches": [empty for _ in memory],
            },
            "ancestors": tf.zeros([batch, nothing]),
        }

    def __call__(self, ids, state):
        """One step: ids int32 `[rows]` -> (logits `[rows, V]` of the next ids, the state after
        this step).

        The first ids are 0. The first step has one row or k rows a sentence, every other k.
        """
        sentences, layers, weights = state["sentences"], self.layers, self.weights
        batch = tf.shape(sentences["hidden"])[0]
        beams = tf.shape(ids)[0] // batch
        newest = tf.tile(self.own[:beams, :beams], [batch, 1])
        ancestors = tf.concat([state["ancestors"], newest], axis=1)
        slots = tf.shape(ancestors)[1]
        hidden = tf.reshape(ancestors, [batch, 1, beams, slots])
        time = (slots - 1) // self.beam_size
        tables = self._by_slot(slots)
        x = tf.gather(weights["target"], ids)
        if self.positions is not None:
            x = x + self.positions[time]
        caches = []
        for number, layer in enumerate(weights["decoder"]):
            own = slice(2 * number, 2 * number + 2)

            def to_targets(y, layer=layer, own=own, tables=tables[number]):
                query, key, value = layers.split(
                    dense(y, layer["self"]["input"], layer["self"]["input_bias"]), batch, beams, 3
                )
                key, value = (
                    tf.concat([old, new], axis=2)
                    for old, new in zip(sentences["caches"][own], (key, value))
                )
                caches.extend([key, value])
                return self._attend(
                    query,
                    key,
                    value,
                    hidden,
                    tables,
                    layer["self"]["output"],
                    (batch, beams, slots),
                )

            def to_source(y, layer=layer, own=own):
                query = layers.split(
                    dense(y, layer["cross"]["input"], layer["cross"]["input_bias"]), batch, beams, 1
                )[0]
                key, value = sentences["memory"][own]
                length = tf.shape(sentences["hidden"])[3]
                tables = self._by_source(layer["cross"], length, time)
                sizes = batch, beams, length
                return self._attend(
                    query, key, value, sentences["hidden"], tables, layer["cross"]["output"], sizes
                )

            x = layers.residual(x, layer, "self", to_targets)
            x = layers.residual(x, layer, "cross", to_source)
            x = layers.feed_forward(x, layer)
        if layers.normalize_first:
            x = layers.normalize(x)
        logits = dense(x, weights["logits"], weights["logits_bias"])
        return logits, {"sentences": {**sentences, "caches": caches}, "ancestors": ancestors}

    def _attend(self, query, key, value, hidden, tables, output, sizes):
        """Attention with the rows of `tables` `[S, H]` or `[N, S, H]`, one for each key; ->
        `[rows, D]`.

        That `sizes`, (B, k, S), is given saves asking tensors for them in every layer.
        """
        batch, beams, length = sizes
        heads, depth = self.layers.num_heads, self.layers.depth
        scores = tf.matmul(query, key, transpose_b=True)
        if "key_table" in tables:
            scores += _times(
                query, tables["key_table"], [batch, heads, beams, length], depth, transpose=True
            )
        attended = tf.nn.softmax(scores + hidden)
        outputs = tf.matmul(attended, value)
        if "value_table" in tables:
            outputs += _times(attended, tables["value_table"], [batch, heads, beams, depth], length)
        return tf.matmul(self.layers.merge(outputs), output)

    def _by_slot(self, slots):
        """For each layer, the rows of its tables for so many slots."""
        layers = self.weights["decoder"]
        names = _tables_of(layers[0]["self"])
        if not names:
            return [{} for _ in layers]
        rows = iter(tf.unstack(self.tables[..., self.num_slots - slots :, :]))
        return [{name: next(rows) for name in names} for _ in layers]

    def _by_source(self, attention, length, time):
        """The tables' rows for source positions, as a query at position `time` sees them."""
        if not _tables_of(attention):
            return {}
        labels = (
            tf.clip_by_value(tf.range(length) - time, -self.last_label, self.last_label)
            + self.last_label
        )
        return _rows_of(attention, labels)


def _tables_of(attention):
    return [name for name in ("key_table", "value_table") if name in attention]


def _rows_of(attention, labels):
    return {name: tf.gather(attention[name], labels, axis=-2) for name in _tables_of(attention)}


def _times(x, table, shape, depth, transpose=False):
    """`[B, N, k, depth]` times one table for all heads, as one product, or a table for each;
    `shape` is that of the product.

    Of one head as for all: see `t2t_relpos.attention.products`.
    """
    if table.shape.rank == 3 and table.shape[0] == 1:
        table = table[0]
    if table.shape.rank == 3:
        return tf.matmul(x, table, transpose_b=transpose)
    return tf.reshape(tf.matmul(tf.reshape(x, [-1, depth]), table, transpose_b=transpose), shape)
