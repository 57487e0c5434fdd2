"""Inference with folded weights: encoding, scores, and a decoding step with its caches."""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from t2t_relpos.attention import attend as attend_relative
from t2t_relpos.attention.band import Distances
from t2t_relpos.attention.masks import masked_softmax
from t2t_relpos.backend import (
    hide_constant,
    matmul_transposed,
    start_indices,
    take_rows,
    write_slice,
)
from t2t_relpos.decoding import score_tokens
from t2t_relpos.layers.embeddings import sinusoids

# A score plus this bias has the attention weight 0 in float32, exactly.
MASKED_BIAS = -1e9
TABLE_NAMES = ("key_table", "value_table")


class FoldedTransformer:
    """A `Transformer` or `CausalLM` with folded weights, for inference with fewer operations.

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

        Prompts are not in the state. The search forces their ids.

        Args:
            source: int32 ids `[B, S]`, padded with 0.
            max_length: maximum number of steps, an int or a scalar tensor.
            beam_size: rows per sentence, an int or a scalar tensor.
            growing: whether caches grow with every step. It must be False for XLA, JAX and loops
                whose variables have fixed shapes. If it is False, `max_length` and `beam_size` must
                be ints.

        Returns:
            (the state, the step function) for the searches of `t2t_relpos.decoding`.
        """
        step = DecoderStep(self, max_length, beam_size, growing=growing)
        if "encoder" not in self.weights:  # a language model
            return step.start(ops.shape(source)[0]), step
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
        x = self._enter("target", ops.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1])
        for number, layer in enumerate(weights["decoder"]):
            x = self._self_attention(x, layer, (batch, length), causal=True)
            cross = layer["cross"]
            (query,) = layers.split(layers.project(x, cross), batch, length, "q")
            outputs, attended = attend_relative(
                query,
                *memory[2 * number : 2 * number + 2],
                *map(cross.get, TABLE_NAMES),
                max_relative_position=self.config.max_relative_position,
                key_mask=is_real,
                query_offset=0,
            )
            x = layers.leave_attention(x, outputs, layer, "cross")
            x = layers.feed_forward(x, layer)
        logits = layers.logits(x, weights)
        logits = ops.reshape(logits, (batch, length, self.config.vocab_size))
        return logits, ops.mean(attended, axis=1)

    def _encode(self, source):
        """Returns keys and values of the source: key 0, value 0, key 1, value 1, ..."""
        weights, layers = self.weights, self.layers
        batch, length = sizes = ops.shape(source)
        is_real = ops.not_equal(source, 0)
        x = take_rows(weights["source"], source)
        if "space" in weights:
            x = x + weights["space"]
        x = self._enter("source", x)
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
            *map(weights.get, TABLE_NAMES),
            max_relative_position=self.config.max_relative_position,
            **masks,
            return_weights=False,
        )
        return layers.leave_attention(x, outputs, layer, "self")

    def _enter(self, name, x):
        """Returns the input of the first layer, `[B * T, D]`, from embedded ids `[B, T, D]`."""
        table = self.positions(name, ops.shape(x)[1])
        x = x if table is None else x + table
        return ops.reshape(x, (-1, self.config.hidden_dim))

    def positions(self, name, length):
        """Returns the encodings of positions 0, 1, …, `[length, D]`, or None without encodings.

        Args:
            name: "source" or "target".
            length: number of positions.
        """
        config, positions = self.config, ops.arange(length, dtype="int32")
        if config.added_position == "learned":
            table = self.weights[f"{name}_positions"]
            return ops.take(table, ops.minimum(positions, table.shape[0] - 1), axis=0)
        if config.added_position is None:
            return None
        table = sinusoids(positions, config.hidden_dim)
        # The kernels of pre-norm models are folded for inputs of mean 0.
        return table - ops.mean(table, axis=-1, keepdims=True) if config.normalize_first else table


class DecoderStep:
    """The step function of a search: `step(ids [rows], state) -> (logits [rows, V], state)`.

    Rows are B · k. The keys and values of the source are stored once per sentence. A language model
    has no source. In a TensorFlow graph, weights should be variables: a loop passes tensors from
    step to step.

    Args:
        model: a `FoldedTransformer`.
        max_length, beam_size, growing: as in its `start_search`.
    """

    def __init__(self, model, max_length, beam_size, *, growing):
        self.layers = model.layers
        self.weights = model.weights
        # Row t of this table is added to the embeddings in step t.
        self.positions = model.positions("target", max_length)
        make = GrowingCaches if growing else FixedCaches
        self.caches = make(model.config, model.weights["decoder"], max_length, beam_size)
        self.distances = Distances.of(model.config.max_relative_position)

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
        # If a source has only padding, the same bias everywhere has no effect. Its values are set
        # to 0 instead. The attention to it is then 0. See `_attend_to_source` for value tables.
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
        sentences, ancestors, cached = self.caches.open_step(
            sentences, state["ancestors"], batch, beams
        )
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
            x = layers.leave_attention(x, outputs, layer, "self")
            if "cross" in layer:
                (query,) = layers.split(layers.project(x, layer["cross"]), batch, beams, "q")
                memory = *sentences["memory"][pair], sentences["source_bias"]
                outputs = self._attend_to_source(layer["cross"], query, memory, cached.time)
                x = layers.leave_attention(x, outputs, layer, "cross")
            x = layers.feed_forward(x, layer)
        sentences = {**sentences, "caches": caches}
        return layers.logits(x, weights), {"sentences": sentences, "ancestors": ancestors}

    def _attend_to_source(self, attention, query, memory, time):
        """Returns the outputs of a cross-attention `[B, N, k, Hv]` in step `time`."""
        if not any(name in attention for name in TABLE_NAMES):
            return attend(query, *memory, {}, {})
        key, value, source_bias = memory
        sizes, length = ops.shape(query)[:3], ops.shape(key)[2]
        left, right = self.distances
        ids = ops.clip(ops.arange(length, dtype="int32") - time, -left, right) + left
        shapes = {"key_table": (*sizes, length), "value_table": (*sizes, value.shape[-1])}
        outputs = attend(query, *memory, table_rows(attention, ids), shapes)
        has_source = ops.any(ops.equal(source_bias, 0), axis=-1, keepdims=True)
        return outputs * ops.cast(has_source, outputs.dtype)


class FoldedLayers:
    """The parts that encoder and decoder layers share."""

    def __init__(self, config):
        self.num_heads = config.num_heads
        self.key_dim, self.value_dim = config.head_dims
        self.normalize_first = config.normalize_first

    def normalize(self, x, epsilon):
        """Scales the rows of `x` to variance 1. They must have mean 0."""
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

    def leave_attention(self, x, outputs, layer, name):
        """Returns the residual stream after an attention with outputs `[B, N, T, Hv]`."""
        width, attention = self.num_heads * self.value_dim, layer[name]
        outputs = ops.reshape(ops.transpose(outputs, (0, 2, 1, 3)), (-1, width))
        outputs = dense(outputs, attention["output"], attention.get("output_bias"))
        return self.leave(x, outputs, layer, name)

    def logits(self, x, weights):
        """Returns the logits `[B * T, V]` of the last layer's outputs."""
        x = self.enter(x, weights["logits_epsilon"])
        return dense(x, weights["logits"], weights["logits_bias"])

    def feed_forward(self, x, layer):
        """Returns the residual stream after the feed-forward network."""
        weights = layer["feed_forward"]
        entered = self.enter(x, weights["epsilon"])
        inner = ops.relu(dense(entered, weights["inner"], weights["inner_bias"]))
        outputs = dense(inner, weights["outer"], weights["outer_bias"])
        return self.leave(x, outputs, layer, "feed_forward")

    def split(self, x, batch, length, kinds):
        """Splits projections `[B * T, ..]` into a list of `[B, N, T, H]` and `[B, N, T, Hv]`.

        `kinds` has a character for each projection: "q", "k" or "v". In a decoding step, `length`
        is the number of beams.
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


def dense(x, kernel, bias=None):
    """Returns `x·kernel + bias`, computing the product in the dtype of the kernel."""
    dtype = keras.backend.standardize_dtype(kernel.dtype)
    if dtype == keras.backend.standardize_dtype(x.dtype):
        product = ops.matmul(x, kernel)
    else:
        product = ops.cast(ops.matmul(ops.cast(x, dtype), kernel), x.dtype)
    return product if bias is None else ops.add(product, bias)


class DecoderCaches:
    """How keys and values of all hypotheses are stored, in slots that are never reordered.

    The keys and values are in the state of the search, and not in this object. Every step adds a
    slot per hypothesis. An active hypothesis has a bias per slot, `"ancestors"` `[rows, slots]`: 0
    for the slots of its own past, `MASKED_BIAS` for all others. A search reorders these biases
    instead of the larger keys and values. The rows are the active hypotheses of all sentences.

    Subclasses have these methods, where `sentences` are the other tensors of the state:

    - `start(batch)`: the first `sentences` and biases.
    - `open_step(sentences, ancestors, batch, beams)`: three things, `sentences` of the next step
      without the caches; the biases with the new slots; a `CachedStep`.
    - `resize(sentences, ancestors, num_steps)`: both with room for `num_steps` steps.

    Args:
        config: a `TransformerConfig`.
        decoder: folded weights of the decoder layers.
        max_length: L, maximum number of steps. For `GrowingCaches` it may be a scalar tensor.
        beam_size: k. For `GrowingCaches` it may be a scalar tensor.
    """

    def __init__(self, config, decoder, max_length, beam_size):
        self.num_heads = config.num_heads
        # Caches of keys and values alternate: key 0, value 0, key 1, value 1, ...
        self.depths = config.head_dims * len(decoder)
        self.decoder = decoder
        self.max_length = max_length
        self.beam_size = beam_size
        self.left = Distances.of(config.max_relative_position).left


class CachedStep(NamedTuple):
    """One step with `DecoderCaches`.

    Attributes:
        time: number of the step, a scalar.
        add: `add(cache, new)`, the cache `[B, N, slots, H]` with new entries `[B, N, k, H]`.
        attend: `attend(number, query, key, value)`, the outputs `[B, N, k, Hv]` of the
            self-attention of a layer.
    """

    time: Any
    add: Any
    attend: Any


class GrowingCaches(DecoderCaches):
    """Caches whose tensors grow with every step.

    Step 0 adds one slot per hypothesis, which is 1 or k slots. Each later step adds k slots.
    """

    def __init__(self, config, decoder, max_length, beam_size):
        super().__init__(config, decoder, max_length, beam_size)
        # A new slot is visible to its own hypothesis only.
        self.new_biases = MASKED_BIAS * (1.0 - ops.eye(beam_size))
        # The table rows of all slots and layers. A step with s slots uses the last s rows.
        ids = ops.maximum(ops.arange(1 - max_length, 1, dtype="int32") + self.left, 0)
        ids = ops.repeat(ids, beam_size)
        rows = [table_rows(layer["self"], ids) for layer in decoder]
        self.tables = {name: ops.stack([each[name] for each in rows]) for name in rows[0]}

    def start(self, batch):
        length = hide_constant(0)
        empty = {d: ops.zeros((batch, self.num_heads, length, d)) for d in set(self.depths)}
        caches = [empty[depth] for depth in self.depths]
        return {"caches": caches}, ops.zeros((batch, length))

    def resize(self, sentences, ancestors, num_steps):
        return sentences, ancestors

    def open_step(self, sentences, ancestors, batch, beams):
        new = ops.tile(self.new_biases[:beams, :beams], (batch, 1))
        ancestors = ops.concatenate([ancestors, new], axis=1)
        slots = ops.shape(ancestors)[1]
        bias = ops.reshape(ancestors, (batch, 1, beams, slots))
        first, count = self.max_length * self.beam_size - slots, len(self.decoder)
        rows = {name: ops.unstack(x[..., first:, :], count) for name, x in self.tables.items()}
        shapes = {"key_table": (batch, self.num_heads, beams, slots)}
        shapes["value_table"] = (batch, self.num_heads, beams, self.depths[1])

        def add(cache, new):
            return ops.concatenate([cache, new], axis=2)

        def attend_to_cache(number, query, key, value):
            tables = {name: rows[name][number] for name in rows}
            return attend(query, key, value, bias, tables, shapes)

        time = (slots - 1) // self.beam_size
        return sentences, ancestors, CachedStep(time, add, attend_to_cache)


class FixedCaches(DecoderCaches):
    """Caches of fixed size, with k slots per step. A step writes its slots in place.

    `start` makes room for L steps, and `resize` changes the room.
    """

    def __init__(self, config, decoder, max_length, beam_size):
        super().__init__(config, decoder, max_length, beam_size)
        # A decoding step reads a table row for each step that the caches have room for. The scores
        # of later steps are masked.
        steps = ops.arange(1 - max_length, max_length, dtype="int32")
        ids = ops.clip(steps + self.left, 0, self.left)
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
        time, beam_size = sentences["time"][0], self.beam_size
        # The first step may have one row for each sentence.
        own = time * beam_size + ops.arange(batch * beams, dtype="int32") % beams
        slots = ops.arange(ancestors.shape[1], dtype="int32")
        ancestors = ops.where(slots == own[:, None], 0.0, ancestors)
        bias = ops.reshape(ancestors, (batch, 1, beams, ancestors.shape[1]))
        steps = ancestors.shape[1] // beam_size
        # The table rows for the keys of all steps: `[steps, H]` or `[N, steps, H]`.
        first = self.max_length - 1 - time
        tables = [
            {name: _slice(table, first, steps) for name, table in layer_tables.items()}
            for layer_tables in self.tables
        ]

        def add(cache, new):
            return write_slice(cache, new, time * beam_size, axis=2)

        def attend_to_cache(number, query, key, value):
            sizes = ops.shape(query)[:3]
            shapes = {"key_table": (*sizes, steps), "value_table": (*sizes, value.shape[-1])}
            return attend(query, key, value, bias, tables[number], shapes, keys_per_row=beam_size)

        sentences = {**sentences, "time": sentences["time"] + 1}
        return sentences, ancestors, CachedStep(time, add, attend_to_cache)


def _slice(table, start, length):
    """Returns `table[..., start : start + length, :]`."""
    zeros = (0,) * (len(table.shape) - 2)
    start = start_indices(*zeros, start, 0)
    return ops.slice(table, start, (*table.shape[:-2], length, table.shape[-1]))


def matmul_table(x, table, shape, *, transpose_table=False):
    """Returns `x` `[B, N, T, X]` times a table `[X, Y]` or `[N, X, Y]`, or its transpose.

    The caller passes the shape of the result, `(B, N, T, Y)`. Reading it from tensors would add
    operations to a graph.
    """
    # With one head, a product of rank 4 is wrong: see `backend.matmul_matrix`.
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
    # No mask is passed, because the bias hides keys. This softmax does not warn about one key.
    weights = masked_softmax(scores + bias)
    outputs = ops.matmul(weights, value)
    if "value_table" in tables:
        if keys_per_row > 1:
            weights = ops.reshape(weights, (*shapes["value_table"][:3], -1, keys_per_row))
            weights = ops.sum(weights, axis=-1)
        outputs = outputs + matmul_table(weights, tables["value_table"], shapes["value_table"])
    return outputs


def table_rows(attention, ids):
    """Returns a dict of the rows `ids` of each table: `[S, H]`, or `[N, S, H]` per head."""
    return {
        name: ops.take(attention[name], ids, axis=-2) for name in TABLE_NAMES if name in attention
    }
