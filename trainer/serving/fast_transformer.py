"""The Transformer that is exported: the same function as the Keras model, for inference only and
as fast as a graph can be.
"""

import tensorflow as tf

from t2t_relpos.attention import attend
from t2t_relpos.layers.position_encodings import sinusoids
from trainer.serving.fast_step import FastStep
from trainer.serving.folded_layers import FoldedLayers, dense
from trainer.serving.folded_weights import folded_weights


class FastTransformer(tf.Module):
    """A trained Transformer on folded weights (`folded_weights.py`), in TensorFlow's own
    operations.

    Exact: the same sums in another order, within rounding of float32 of the model that it is made
    from.

    Args:
        transformer: a `t2t_relpos.models.Transformer`. Its weights are copied.
    """

    def __init__(self, transformer):
        super().__init__(name="fast_transformer")
        self.config = transformer.config
        self.layers = FoldedLayers(transformer.config)
        self.weights = tf.nest.map_structure(
            lambda weight: tf.Variable(weight, trainable=False), folded_weights(transformer)
        )

    def start(self, source, max_length, beam_size):
        """Encodes sources and starts a decoding, see `FastStep`.

        Args:
            source: int32 ids `[B, S]`, 0 = padding, which every row ends in or has none of.
            max_length: most steps that follow, an int or a scalar tensor.
            beam_size: rows of a sentence, an int or a scalar tensor.

        Returns:
            (the state, the step function) for `t2t_relpos.decoding.beam_search`.
        """
        memory = self._memory(source)
        tables = self._position_tables("target", max_length)
        step = FastStep(self.config, self.layers, self.weights, tables, max_length, beam_size)
        return step.start(memory, source != 0), step

    def score(self, source, targets):
        """Logits of given outputs, and what their positions attend to.

        Args:
            source: int32 ids `[B, S]`.
            targets: int32 ids `[B, T]`, 0 = padding.

        Returns:
            (logits float32 `[B, T, V]`, alignments float32 `[B, T, S]`: the weights of the last
            decoder layer's attention to the source, the mean over its heads.)
        """
        weights, layers = self.weights, self.layers
        memory, real = self._memory(source), source != 0
        length = tf.shape(targets)[1]
        x = tf.pad(tf.gather(weights["target"], targets), [[0, 0], [1, 0], [0, 0]])[:, :-1]
        x = self._flat(self._with_positions("target", x))
        for number, layer in enumerate(weights["decoder"]):
            x = self._self_attention(x, layer, length, causal=True)
            aligned = []

            def to_source(
                y,
                attention=layer["cross"],
                memory=memory[2 * number : 2 * number + 2],
                aligned=aligned,
            ):
                query = layers.split(
                    dense(y, attention["input"], attention["input_bias"]), -1, length, 1
                )[0]
                tables = attention.get("key_table"), attention.get("value_table")
                outputs, attended = attend(query, *memory, *tables, key_mask=real, query_offset=0)
                aligned.append(attended)
                return tf.matmul(layers.merge(outputs), attention["output"])

            x = layers.residual(x, layer, "cross", to_source)
            x = layers.feed_forward(x, layer)
        logits = dense(self._final(x), weights["logits"], weights["logits_bias"])
        return tf.reshape(logits, [-1, length, self.config.vocab_size]), tf.reduce_mean(
            aligned[0], axis=1
        )

    def _memory(self, source):
        """Keys and values of the source for all decoder layers: key 0, value 0, key 1, …, each
        `[B, N, S, H]`.
        """
        weights, length, real = self.weights, tf.shape(source)[1], source != 0
        x = tf.gather(weights["source"], source)
        if "space" in weights:
            x = x + weights["space"]
        x = self._flat(self._with_positions("source", x))
        for layer in weights["encoder"]:
            x = self._self_attention(x, layer, length, key_mask=real)
            x = self.layers.feed_forward(x, layer)
        memory = dense(self._final(x), weights["memory"], weights["memory_bias"])
        return self.layers.split(memory, -1, length, 2 * self.config.num_decoder_layers)

    def _self_attention(self, x, layer, length, **masks):
        weights, layers = layer["self"], self.layers

        def attention(y):
            projected = layers.split(
                dense(y, weights["input"], weights["input_bias"]), -1, length, 3
            )
            tables = weights.get("key_table"), weights.get("value_table")
            outputs, _ = attend(*projected, *tables, **masks, return_weights=False)
            return tf.matmul(layers.merge(outputs), weights["output"])

        return layers.residual(x, layer, "self", attention)

    def _final(self, x):
        return self.layers.normalize(x) if self.layers.normalize_first else x

    def _flat(self, x):
        return tf.reshape(x, [-1, self.layers.width])

    def _with_positions(self, name, x):
        table = self._position_tables(name, tf.shape(x)[1])
        return x if table is None else x + table

    def _position_tables(self, name, length):
        """What positions 0, 1, … add to an embedding, `[length, D]`, or None."""
        if self.config.position == "learned":
            table = self.weights[f"{name}_positions"]
            return tf.gather(table, tf.minimum(tf.range(length), self.config.max_length - 1))
        if not self.config.position.endswith("sinusoidal"):
            return None
        table = sinusoids(tf.range(length), self.layers.width)
        return (
            table - tf.reduce_mean(table, axis=-1, keepdims=True)
            if self.layers.normalize_first
            else table
        )
