"""Attention, layers, models and searches by their definitions, in NumPy.

Shaw et al. 2018 define relative attention, Huang et al. 2019 tables without vectors for large
distances, and Vaswani et al. 2017 all else. Of the library, only weights and settings are read.
`attention_of_pairs` computes in `keras.ops`, for gradients.
"""

import functools
import math

import numpy as np
from keras import ops


def array(x):
    """Returns a weight or an output in float64."""
    return ops.convert_to_numpy(x).astype("float64")


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


# Attention.


def distances(length_q, length_k=None, query_offset=None):
    """Returns key position minus query position, `[T, S]`.

    By default, the last query is at the last key.
    """
    length_k = length_q if length_k is None else length_k
    offset = length_k - length_q if query_offset is None else query_offset
    return np.arange(length_k) - (np.arange(length_q)[:, None] + offset)


def clipped(table, distance, left=None, take=np.take):
    """Returns the row of each distance. Rows are for -left to right, by default for -K to K.

    Larger distances have the last row of their side.
    """
    left = table.shape[-2] // 2 if left is None else left
    return take(table, np.clip(distance, -left, table.shape[-2] - 1 - left) + left, axis=-2)


def unclipped(table, distance, left=None):
    """Returns the row of each distance, as `clipped`, and zeros for larger distances."""
    left = table.shape[-2] // 2 if left is None else left
    has_vector = (-left <= distance) & (distance < table.shape[-2] - left)
    return clipped(table, distance, left) * has_vector[..., None]


def attend(query, key, value, key_vectors=None, value_vectors=None, mask=True, xp=np):
    """Returns attention outputs and weights: Shaw et al. 2018, equations 3 and 4.

    Args:
        query, key, value: `[B, N, T, H]`, `[B, N, S, H]`, `[B, N, S, Hv]`. Scores are not scaled.
        key_vectors, value_vectors: of all pairs, broadcast to `[B, N, T, S, H]` and
            `[B, N, T, S, Hv]`, or None.
        mask: bool, broadcasts to `[B, N, T, S]`. The weights of a fully masked query are zeros.
        xp: `numpy` or `keras.ops`.
    """
    scores = xp.matmul(query, xp.swapaxes(key, -1, -2))
    if key_vectors is not None:
        scores = scores + xp.sum(xp.expand_dims(query, -2) * key_vectors, axis=-1)
    scores = xp.where(mask, scores, -1e9)
    exponentials = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = exponentials / xp.sum(exponentials, axis=-1, keepdims=True)
    weights = xp.where(mask, weights, 0.0)
    outputs = xp.matmul(weights, value)
    if value_vectors is not None:
        outputs = outputs + xp.sum(xp.expand_dims(weights, -1) * value_vectors, axis=-2)
    return outputs, weights


def attention_of_pairs(
    query,
    key,
    value,
    key_table=None,
    value_table=None,
    *,
    max_relative_position,
    query_positions,
    key_positions,
    mask=None,
):
    """Returns (outputs, weights) as tensors with gradients, by `attend` for all pairs.

    `max_relative_position` is (left, right), and positions are int32 `[T]` and `[S]`. The other
    arguments are as in the library's `attend`.
    """
    left, _ = max_relative_position
    positions = (ops.convert_to_numpy(x) for x in (query_positions, key_positions))
    of_queries, of_keys = positions
    vectors = (
        None if table is None else clipped(table, of_keys - of_queries[:, None], left, ops.take)
        for table in (key_table, value_table)
    )
    return attend(query, key, value, *vectors, mask=True if mask is None else mask, xp=ops)


# Layers.


def attention_layer(layer, x, y, key_vectors=None, value_vectors=None, mask=True):
    """Returns the outputs of an attention layer, `[B, T, D]`."""
    query, key, value = (
        np.einsum("btd,dnh->bnth", inputs, array(dense.kernel))
        + (0 if dense.bias is None else array(dense.bias)[:, None])
        for dense, inputs in ((layer.query_dense, x), (layer.key_dense, y), (layer.value_dense, y))
    )
    query = query * layer.key_dim**-0.5
    outputs, _ = attend(query, key, value, key_vectors, value_vectors, mask)
    bias = 0 if layer.output_dense.bias is None else array(layer.output_dense.bias)
    return np.einsum("bnth,nhd->btd", outputs, array(layer.output_dense.kernel)) + bias


def relative_attention(layer, x, y=None, *, causal=False, mask=True, query_offset=None):
    """Returns the outputs of a layer with tables of relative positions, or without tables."""
    y = x if y is None else y
    distance = distances(x.shape[1], y.shape[1], query_offset)

    def vectors(embedding):
        if embedding is None:
            return None
        if hasattr(embedding, "table"):
            left, _ = np.broadcast_to(layer.max_relative_position, 2)
            return clipped(array(embedding.table), distance, left)
        return unclipped(array(embedding), distance, layer.max_relative_position - 1)

    tables = (vectors(x) for x in (layer.key_embedding, layer.value_embedding))
    return attention_layer(layer, x, y, *tables, mask=mask & (distance <= 0) if causal else mask)


def normalize(norm, x):
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + norm.epsilon) * array(norm.gamma) + array(norm.beta)


def with_residual(residual, x, sublayer):
    if residual.normalize_first:
        return x + sublayer(normalize(residual.norm, x))
    return normalize(residual.norm, x + sublayer(x))


def feed_forward(layer, x):
    hidden = np.maximum(x @ array(layer.inner.kernel) + array(layer.inner.bias), 0)
    return hidden @ array(layer.outer.kernel) + array(layer.outer.bias)


def block(layer, x, encoded=None, *, causal=False, mask=True):
    """Returns the outputs of a block of an encoder or a decoder, whose `mask` is the source's."""
    own_mask = mask if encoded is None else True
    attention = functools.partial(
        relative_attention, layer.self_attention, causal=causal, mask=own_mask
    )
    x = with_residual(layer.self_attention_residual, x, attention)
    if encoded is not None:
        # Target i is at the position of source i.
        attention = functools.partial(
            relative_attention, layer.cross_attention, y=encoded, mask=mask, query_offset=0
        )
        x = with_residual(layer.cross_attention_residual, x, attention)
    return with_residual(
        layer.feed_forward_residual, x, functools.partial(feed_forward, layer.feed_forward)
    )


def stack(blocks, norm, x, *encoded, **options):
    for each in blocks:
        x = block(each, x, *encoded, **options)
    return x if norm is None else normalize(norm, x)


# Models.


def embed(embedding, ids):
    table = array(embedding.embeddings)
    return table[ids] * math.sqrt(table.shape[1]) * (ids != 0)[..., None]


def shifted(x):
    return np.pad(x, [(0, 0), (1, 0), (0, 0)])[:, :-1]


def sinusoids(length, width):
    """Returns tensor2tensor's encodings `[T, D]`: sines, cosines, and zeros for an odd width."""
    angles = np.arange(length)[:, None] * 10_000.0 ** -np.linspace(0, 1, width // 2)
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((length, width % 2))], axis=-1)


def with_positions(layer, x):
    """Returns embeddings with what a position layer adds. The layer may be None."""
    if layer is None:
        return x
    if hasattr(layer, "embeddings"):
        return x + array(layer.embeddings)[: x.shape[1]]
    return x + sinusoids(*x.shape[1:])


def logits_of_language_model(model, ids):
    """Returns the logits of a `CausalLM`, `[B, T, V]`."""
    x = with_positions(model.position, shifted(embed(model.embedding, ids)))
    states = stack(model.blocks, model.norm, x, causal=True)
    return states @ array(model.output_embedding.embeddings).T


def logits_of_transformer(model, source, targets):
    """Returns the logits of a `Transformer`, `[B, T, V]`."""
    mask = (source != 0)[:, None, None]
    x = embed(model.source_embedding, source)
    if model.config.target_space_id is not None:
        x = x + array(model.target_space_embedding)[model.config.target_space_id]
    x = with_positions(model.source_position, x)
    encoded = stack(model.encoder_layers, model.encoder_norm, x, mask=mask)
    x = with_positions(model.target_position, shifted(embed(model.target_embedding, targets)))
    states = stack(model.decoder_layers, model.decoder_norm, x, encoded, causal=True, mask=mask)
    return states @ array(model.output_embedding.embeddings).T


# Searches.


def best_output(log_probs, max_length, beam_size=4, alpha=0.6):
    """Returns the ids that a beam search finds, as a list.

    Args:
        log_probs: `log_probs(list of lists of ids) -> [rows, V]`, of the ids that follow.
    """
    penalty = lambda ids: ((5 + len(ids)) / 6) ** alpha
    active, best = [(0.0, [])], (-np.inf, [])
    for _ in range(max_length):
        totals = np.array([total for total, _ in active])[:, None]
        totals = totals + log_probs([ids for _, ids in active])
        totals[:, 0] = -np.inf
        order = np.argsort(-totals, axis=None)[: 2 * beam_size]
        pairs = np.column_stack(np.unravel_index(order, totals.shape)).tolist()
        found = [(totals[row, token], [*active[row][1], token]) for row, token in pairs]
        ended = [(total / penalty(ids), ids) for total, ids in found if ids[-1] == 1]
        best = max([best, *ended])
        active = [each for each in found if each[1][-1] != 1][:beam_size]
        if best[0] > active[0][0] / penalty(range(max_length)):
            return best[1]
    return best[1] or active[0][1]


def greedy_outputs(logits, prompts, max_length, end_id=1):
    """Returns the ids `[rows, max_length]` that continue prompts. Padding is never chosen.

    Args:
        logits: `logits(ids) -> [rows, max_length, V]`. Those of a position depend on ids before it.
        prompts: `[rows, length]`.
        end_id: the id that ends outputs, or None.
    """
    ids = np.zeros((len(prompts), max_length), "int32")
    ids[:, : prompts.shape[1]] = prompts
    has_ended = np.zeros(len(ids), bool)
    for t in range(prompts.shape[1], max_length):
        best = 1 + ops.convert_to_numpy(logits(ids))[:, t, 1:].argmax(-1)
        ids[:, t] = np.where(has_ended, 0, best)
        has_ended |= ids[:, t] == end_id
    return ids
