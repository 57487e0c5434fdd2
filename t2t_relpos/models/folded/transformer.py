"""Inference with the folded weights of a Transformer: encoding, scores, and one decoding step."""

import keras
import numpy as np
from keras import ops

from t2t_relpos.attention import attend as attend_relative
from t2t_relpos.attention.band import Distances
from t2t_relpos.backend import take_rows
from t2t_relpos.decoding import score_tokens
from t2t_relpos.layers.embeddings import sinusoids
from t2t_relpos.models.folded.cached_attention import (
    MASKED_BIAS,
    FixedCaches,
    GrowingCaches,
    attend,
    has_tables,
    table_rows,
)


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
    >>> model = Transformer.from_preset("tiny", vocab_size=11)
    >>> folded = FoldedTransformer(model.config, fold_weights(model))
    >>> scores = folded.score(np.array([[5, 7, 1]]), np.array([[3, 1]]))
    >>> tuple(scores.token_scores.shape)
    (1, 2)
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
        positions = _position_table(self, "target", max_length)
        caches = _make_caches(self, max_length, beam_size, growing=growing)
        step = DecoderStep(self.config, self.layers, self.weights, positions, caches)
        return step.start_with_source(self._encode(source), ops.not_equal(source, 0)), step

    def score(self, source, targets, alpha=0.0, *, return_alignments=False):
        """Returns the log-probabilities of given outputs, as `Transformer.score`."""
        logits, alignments = self.logits_and_alignments(source, targets)
        scores = score_tokens(logits, targets, alpha=alpha)
        return (scores, alignments) if return_alignments else scores

    def logits_and_alignments(self, source, targets):
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
            query = layers.project(x, cross)
            (query,) = layers.split(query, batch, length, "q")
            outputs, attended = attend_relative(
                query,
                *memory[2 * number : 2 * number + 2],
                *_tables(cross),
                max_relative_position=self.config.max_relative_position,
                key_mask=is_real,
                query_offset=0,
            )
            x = layers.leave(x, output_of(layers, outputs, cross), layer, "cross")
            x = layers.feed_forward(x, layer)
        x = layers.enter(x, weights["logits_epsilon"])
        logits = dense(x, weights["logits"], weights["logits_bias"])
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
        x = layers.enter(x, weights["memory_epsilon"])
        memory = dense(x, weights["memory"], weights["memory_bias"])
        return layers.split(memory, batch, length, "kv" * self.config.num_decoder_layers)

    def _self_attention(self, x, layer, sizes, **masks):
        weights, layers = layer["self"], self.layers
        projected = layers.split(layers.project(x, weights), *sizes, "qkv")
        outputs, _ = attend_relative(
            *projected,
            *_tables(weights),
            max_relative_position=self.config.max_relative_position,
            **masks,
            return_weights=False,
        )
        return layers.leave(x, output_of(layers, outputs, weights), layer, "self")

    def _flat(self, x):
        return ops.reshape(x, (-1, self.config.hidden_dim))

    def _add_positions(self, name, x):
        table = _position_table(self, name, ops.shape(x)[1])
        return x if table is None else x + table


def _position_table(model, name, length):
    """Returns the encodings of positions 0, 1, …, `[length, D]`, or None without encodings.

    Args:
        model: a folded model.
        name: "source" or "target".
        length: number of positions.
    """
    config, positions = model.config, ops.arange(length, dtype="int32")
    if config.added_position == "learned":
        table = model.weights[f"{name}_positions"]
        return ops.take(table, ops.minimum(positions, table.shape[0] - 1), axis=0)
    if config.added_position is None:
        return None
    table = sinusoids(positions, config.hidden_dim)
    return table - ops.mean(table, axis=-1, keepdims=True) if config.normalize_first else table


def output_of(layers, outputs, attention):
    """Returns the output projection of the outputs of all heads, `[B * T, D]`."""
    return dense(layers.merge(outputs), attention["output"], attention.get("output_bias"))


def _tables(attention):
    return attention.get("key_table"), attention.get("value_table")


class FoldedLanguageModel:
    """A `CausalLM` with folded weights. See `FoldedTransformer`.

    Args:
        config: the `TransformerConfig` of its blocks.
        weights: the result of `fold_language_model`.
    """

    def __init__(self, config, weights):
        self.config = config
        self.weights = weights

    def start_search(self, source, max_length, beam_size, *, growing=True):
        """Returns (state, step function), as `FoldedTransformer.start_search`.

        The search chooses the ids of the prompts, `source` `[B, S]`.
        """
        positions = _position_table(self, "target", max_length)
        caches = _make_caches(self, max_length, beam_size, growing=growing)
        step = DecoderStep(self.config, FoldedLayers(self.config), self.weights, positions, caches)
        return step.start(ops.shape(source)[0]), step


def _make_caches(model, max_length, beam_size, *, growing):
    """Returns the caches of a folded model. The arguments are those of `start_search`."""
    make = GrowingCaches if growing else FixedCaches
    return make(model.config, model.weights["decoder"], max_length, beam_size)


class DecoderStep:
    """The step function of a search: `step(ids [rows], state) -> (logits [rows, V], state)`.

    Rows are B · k. The keys and values of the source are stored once per sentence. The state of a
    language model has none.

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
        self.distances = Distances.of(config.max_relative_position)

    def start(self, batch, **source):
        """Returns the state before the first step, with one row per sentence.

        Args:
            batch: B.
            **source: further tensors `[B, ...]` that every step reads.
        """
        sentences, ancestors = self.caches.start(batch)
        return {"sentences": {**sentences, **source}, "ancestors": ancestors}

    def start_with_source(self, memory, is_real):
        """Returns the state before the first step of a model with cross-attention.

        Args:
            memory: keys and values of the source for all layers, each `[B, N, S, H]`.
            is_real: bool `[B, S]`, False on padding of the source.
        """
        source_bias = ops.where(is_real, 0.0, MASKED_BIAS)[:, None, None, :]
        # The bias has no effect if all positions have it. A source of padding only has values of
        # zero instead, so that the attention to it is zero, except for a relative value table.
        has_source = ops.cast(ops.any(is_real, axis=1), "float32")[:, None, None, None]
        memory = [x * has_source if number % 2 else x for number, x in enumerate(memory)]
        return self.start(ops.shape(is_real)[0], memory=memory, source_bias=source_bias)

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
        batch = ops.shape(sentences["caches"][0])[0]
        beams = ops.shape(ids)[0] // batch
        ancestors, cached = self.caches.open_step(sentences, state["ancestors"], batch, beams)
        x = take_rows(weights["target"], ids)
        if self.positions is not None:
            x = x + take_rows(self.positions, cached.time)
        caches = []
        for number, layer in enumerate(weights["decoder"]):
            pair = slice(2 * number, 2 * number + 2)  # key and value of the layer
            projected = layers.split(layers.project(x, layer["self"]), batch, beams, "qkv")
            key, value = map(cached.add, sentences["caches"][pair], projected[1:])
            caches += [key, value]
            outputs = cached.attend(number, projected[0], key, value)
            x = layers.leave(x, self._output(outputs, layer["self"]), layer, "self")
            if "cross" in layer:
                (query,) = layers.split(layers.project(x, layer["cross"]), batch, beams, "q")
                memory = *sentences["memory"][pair], sentences["source_bias"]
                outputs = self._attend_to_source(layer["cross"], query, memory, cached.time)
                x = layers.leave(x, self._output(outputs, layer["cross"]), layer, "cross")
            x = layers.feed_forward(x, layer)
        x = layers.enter(x, weights["logits_epsilon"])
        logits = dense(x, weights["logits"], weights["logits_bias"])
        sentences = {**cached.finish(sentences), "caches": caches}
        return logits, {"sentences": sentences, "ancestors": ancestors}

    def _output(self, outputs, attention):
        return output_of(self.layers, outputs, attention)

    def _attend_to_source(self, attention, query, memory, time):
        """Returns the outputs of a cross-attention `[B, N, k, Hv]` in step `time`.

        Args:
            attention: its folded weights.
            query: `[B, N, k, H]`.
            memory: keys, values and biases of the source.
            time: number of the step, the position of the queries.
        """
        if not has_tables(attention):
            return attend(query, *memory, {}, {})
        key, value, _ = memory
        sizes, length = ops.shape(query)[:3], ops.shape(key)[2]
        left, right = self.distances
        ids = ops.clip(ops.arange(length, dtype="int32") - time, -left, right) + left
        shapes = {"key_table": (*sizes, length), "value_table": (*sizes, value.shape[-1])}
        return attend(query, *memory, table_rows(attention, ids), shapes)


class FoldedLayers:
    """The parts that encoder and decoder layers share.

    Args:
        config: a `TransformerConfig`.
    """

    def __init__(self, config):
        self.num_heads = config.num_heads
        self.key_dim, self.value_dim = config.head_dims
        self.normalize_first = config.normalize_first

    def normalize(self, x, epsilon):
        """Returns `x`, whose rows have mean 0, scaled to variance 1."""
        mean_square = ops.mean(ops.square(x), axis=-1, keepdims=True)
        return x * ops.rsqrt(mean_square + epsilon)

    def enter(self, x, epsilon):
        """Returns the input of a sublayer, or of the last projection, from the residual stream."""
        return self.normalize(x, epsilon) if self.normalize_first else x

    def project(self, x, attention):
        """Returns the projections of an attention's inputs, which `split` splits."""
        x = self.enter(x, attention["epsilon"])
        return dense(x, attention["input"], attention["input_bias"])

    def leave(self, x, outputs, layer, name):
        """Returns the residual stream `x` after a sublayer.

        Args:
            x: `[rows, D]`.
            outputs: the sublayer's outputs `[rows, D]`.
            layer: weights of the layer.
            name: key of the sublayer in `layer` and in `layer["norms"]`.
        """
        x = x + outputs
        if self.normalize_first:
            return x
        gain, offset = layer["norms"][name]
        x = x - ops.mean(x, axis=-1, keepdims=True)
        return self.normalize(x, layer[name]["epsilon"]) * gain + offset

    def feed_forward(self, x, layer):
        """Returns the residual stream after the feed-forward network."""
        weights = layer["feed_forward"]
        entered = self.enter(x, weights["epsilon"])
        inner = ops.relu(dense(entered, weights["inner"], weights["inner_bias"]))
        outputs = dense(inner, weights["outer"], weights["outer_bias"])
        return self.leave(x, outputs, layer, "feed_forward")

    def split(self, x, batch, length, kinds):
        """Splits projections `[B * T, ..]` into a list of `[B, N, T, H]` and `[B, N, T, Hv]`.

        Args:
            x: the projections, next to each other.
            batch: B.
            length: T.
            kinds: a character for each: "q", "k" or "v".
        """
        depths = [self.value_dim if kind == "v" else self.key_dim for kind in kinds]
        if len(depths) == 1:
            x = ops.reshape(x, (batch, length, self.num_heads, depths[0]))
            return [ops.transpose(x, (0, 2, 1, 3))]
        if self.key_dim == self.value_dim:
            x = ops.reshape(x, (batch, length, len(depths), self.num_heads, self.key_dim))
            return ops.unstack(ops.transpose(x, (2, 0, 3, 1, 4)), len(depths))
        ends = np.cumsum(depths) * self.num_heads
        parts = zip(ops.split(x, [int(end) for end in ends[:-1]], axis=1), kinds)
        return [part for x, kind in parts for part in self.split(x, batch, length, kind)]

    def merge(self, x):
        """Merges the heads: `[B, N, T, Hv]` -> `[B * T, N * Hv]`."""
        width = self.num_heads * self.value_dim
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, width))


def dense(x, kernel, bias=None):
    """Returns `x·kernel + bias`, computing the product in the dtype of the kernel."""
    dtype = keras.backend.standardize_dtype(kernel.dtype)
    if dtype == keras.backend.standardize_dtype(x.dtype):
        product = ops.matmul(x, kernel)
    else:
        product = ops.cast(ops.matmul(ops.cast(x, dtype), kernel), x.dtype)
    return product if bias is None else ops.add(product, bias)
