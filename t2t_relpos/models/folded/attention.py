"""Attention of folded decoder layers."""

from keras import ops

from t2t_relpos.attention.masks import masked_softmax
from t2t_relpos.models.folded.backend_ops import matmul_table, matmul_transposed

# Added to a score, it makes the attention weight exactly 0 in float32.
MASKED_SCORE = -1e9


def attend(query, key, value, bias, tables, shapes, *, keys_per_row=1):
    """Returns attention outputs `[B, N, k, H]`.

    Args:
        query: `[B, N, k, H]`.
        key: `[B, N, S, H]`.
        value: `[B, N, S, H]`.
        bias: added to the scores, broadcasts to `[B, N, k, S]`.
        tables: `key_table` and `value_table`. Row r, of `[R, H]` or `[N, R, H]`, is that of the
            keys from `r * keys_per_row` to `(r + 1) * keys_per_row - 1`.
        shapes: shapes of the products with these tables, `(B, N, k, R)` and `(B, N, k, H)`.
        keys_per_row: number of consecutive keys with the same table rows, an int. Default: 1.
    """
    scores = matmul_transposed(query, key)
    if "key_table" in tables:
        by_row = matmul_table(query, tables["key_table"], shapes["key_table"], transpose_table=True)
        if keys_per_row > 1:
            by_row = ops.repeat(by_row, keys_per_row, axis=-1)
        scores = scores + by_row
    weights = masked_softmax(scores + bias)
    outputs = ops.matmul(weights, value)
    if "value_table" in tables:
        if keys_per_row > 1:
            weights = ops.reshape(weights, (*shapes["value_table"][:3], -1, keys_per_row))
            weights = ops.sum(weights, axis=-1)
        outputs = outputs + matmul_table(weights, tables["value_table"], shapes["value_table"])
    return outputs
