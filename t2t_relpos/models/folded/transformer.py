"""Inference with the folded weights of a Transformer."""

from keras import ops

from t2t_relpos.attention import attend
from t2t_relpos.layers.embeddings import sinusoids
from t2t_relpos.models.folded.backend_ops import dense, take_rows
from t2t_relpos.models.folded.decoder_step import DecoderStep
from t2t_relpos.models.folded.fixed_caches import FixedCaches
from t2t_relpos.models.folded.growing_caches import GrowingCaches
from t2t_relpos.models.folded.layers import FoldedLayers


class FoldedTransformer:
    """A `Transformer` with folded weights, for inference with fewer operations.

    Results are equal to the model's up to rounding.

    Args:
        config: the `TransformerConfig`.
        weights: the result of `fold_weights`, or variables in the same structure.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.models import Transformer
    >>> from t2t_relpos.models.folded import FoldedTransformer, fold_weights
    >>> model = Transformer(config)  # config: the example of TransformerConfig
    >>> folded = FoldedTransformer(model.config, fold_weights(model))
    >>> logits, alignments = folded.score(np.array([[5, 7, 1]]), np.array([[3, 1]]))
    >>> tuple(logits.shape), tuple(alignments.shape)
    ((1, 2, 11), (1, 2, 3))
    """

    def __init__(self, config, weights):
        self.config = config
        self.weights = weights
        self.layers = FoldedLayers(config)

    def start_search(self, source, max_length, beam_size, *, growing=True):
        """Encodes sources and starts a search.

        Args:
            source: int32 ids `[B, S]`, padded with 0.
            max_length: maximum number of steps, an int or a scalar tensor.
            beam_size: rows per sentence, an int or a scalar tensor.
            growing: whether caches grow with every step. It must be False for XLA, JAX and loops
                whose variables have fixed shapes. `max_length` and `beam_size` must then be ints.

        Returns:
            (the state, the step function) for the searches of `t2t_relpos.decoding`.
        """
        make_caches = GrowingCaches if growing else FixedCaches
        caches = make_caches(self.config, self.weights["decoder"], max_length, beam_size)
        positions = self._position_table("target", max_length)
        step = DecoderStep(self.config, self.layers, self.weights, positions, caches)
        return step.start(self._encode(source), ops.not_equal(source, 0)), step

    def score(self, source, targets):
        """Returns the logits of given outputs and their alignments.

        Args:
            source: int32 ids `[B, S]`, padded with 0.
            targets: int32 ids `[B, T]`, padded with 0.

        Returns:
            (logits float32 `[B, T, V]`, alignments float32 `[B, T, S]`). Alignments are the
            cross-attention weights of the last decoder layer, averaged over the heads.
        """
        weights, layers = self.weights, self.layers
        memory, is_real = self._encode(source), ops.not_equal(source, 0)
        batch, length = ops.shape(targets)
        x = take_rows(weights["target"], targets)
        x = ops.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        x = self._flat(self._add_positions("target", x))
        for number, layer in enumerate(weights["decoder"]):
            x = self._self_attention(x, layer, (batch, length), causal=True)
            cross = layer["cross"]
            query = dense(layers.enter(x), cross["input"], cross["input_bias"])
            (query,) = layers.split(query, batch, length, 1)
            outputs, attended = attend(
                query,
                *memory[2 * number : 2 * number + 2],
                *_tables(cross),
                key_mask=is_real,
                query_offset=0,
            )
            x = layers.leave(x, dense(layers.merge(outputs), cross["output"]), layer, "cross")
            x = layers.feed_forward(x, layer)
        logits = dense(layers.enter(x), weights["logits"], weights["logits_bias"])
        logits = ops.reshape(logits, (batch, length, self.config.vocab_size))
        return logits, ops.mean(attended, axis=1)

    def _encode(self, source):
        """Returns keys and values of the source for all decoder layers, each `[B, N, S, H]`."""
        weights, layers = self.weights, self.layers
        batch, length = sizes = ops.shape(source)
        is_real = ops.not_equal(source, 0)
        x = take_rows(weights["source"], source)
        if "space" in weights:
            x = x + weights["space"]
        x = self._flat(self._add_positions("source", x))
        for layer in weights["encoder"]:
            x = self._self_attention(x, layer, sizes, key_mask=is_real)
            x = layers.feed_forward(x, layer)
        memory = dense(layers.enter(x), weights["memory"], weights["memory_bias"])
        return layers.split(memory, batch, length, 2 * self.config.num_decoder_layers)

    def _self_attention(self, x, layer, sizes, **masks):
        weights, layers = layer["self"], self.layers
        projected = dense(layers.enter(x), weights["input"], weights["input_bias"])
        projected = layers.split(projected, *sizes, 3)
        outputs, _ = attend(*projected, *_tables(weights), **masks, return_weights=False)
        outputs = dense(layers.merge(outputs), weights["output"])
        return layers.leave(x, outputs, layer, "self")

    def _flat(self, x):
        return ops.reshape(x, (-1, self.config.hidden_dim))

    def _add_positions(self, name, x):
        table = self._position_table(name, ops.shape(x)[1])
        return x if table is None else x + table

    def _position_table(self, name, length):
        """Returns the encodings of positions 0, 1, …, `[length, D]`, or None without encodings."""
        positions = ops.arange(length, dtype="int32")
        if self.config.position == "learned":
            positions = ops.minimum(positions, self.config.max_length - 1)
            return ops.take(self.weights[f"{name}_positions"], positions, axis=0)
        if not self.config.position.endswith("sinusoidal"):
            return None
        table = sinusoids(positions, self.config.hidden_dim)
        if self.config.normalize_first:
            table = table - ops.mean(table, axis=-1, keepdims=True)
        return table


def _tables(attention):
    return attention.get("key_table"), attention.get("value_table")
