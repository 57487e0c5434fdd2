"""Full-matrix attention in keras.ops, differentiated by the backend."""

from keras import ops

from t2t_relpos._portable import is_portable
from t2t_relpos.attention import band, gather
from t2t_relpos.attention.masks import masked_softmax


def attend_without_tables(inputs):
    """Returns (outputs, weights) of attention without relative terms."""
    return _attend(inputs, None, None)


def attend_by_rows(inputs):
    """Returns (outputs, weights). Gathers a table row for each pair of positions."""
    ids = inputs.pair_ids()
    return _attend(
        inputs,
        lambda query, table: gather.scores_by_rows(query, table, ids),
        lambda weights, table: gather.values_by_rows(weights, table, ids),
    )


def attend_by_id(inputs):
    """Returns (outputs, weights). Gathers one entry of `q·tableᵀ` for each pair of positions."""
    ids = ops.convert_to_tensor(inputs.pair_ids())
    if len(ids.shape) == 2 and not is_portable():  # There, `pair_index` needs no batch axis.
        ids = ops.broadcast_to(ids, (ops.shape(inputs.query)[0], *ops.shape(ids)))
    index = gather.pair_index(ids, inputs.num_ids, inputs.query.shape[1])
    return _attend(
        inputs,
        lambda query, table: gather.scores_by_id(query, table, index),
        lambda weights, table: gather.values_by_id(weights, table, index),
    )


def attend_by_band(inputs):
    """Returns (outputs, weights). Pads, reshapes and slices instead of gathering."""
    length_k, offset = inputs.lengths[1], inputs.query_offset
    return _attend(
        inputs,
        lambda query, table: band.relative_scores(query, table, length_k, offset),
        lambda weights, table: band.relative_values(weights, table, offset),
    )


def _attend(inputs, relative_scores, relative_values):
    scores = ops.matmul(inputs.query, ops.swapaxes(inputs.key, -1, -2))
    if inputs.key_table is not None:
        scores = scores + relative_scores(inputs.query, inputs.key_table)
    weights = masked_softmax(scores, inputs.combined_mask())
    dropped = weights if inputs.dropout is None else inputs.dropout(weights)
    outputs = ops.matmul(dropped, inputs.value)
    if inputs.value_table is not None:
        outputs = outputs + relative_values(dropped, inputs.value_table)
    return outputs, weights
