"""Compares the v2, 2-D and local attention layers with recordings of tensor2tensor's functions.

The recordings are in variants/. The functions have no projections, so the projections of the layers
are set to the identity.
"""

import numpy as np
from compare_attention import Family, mask_of
from keras import ops

from t2t_relpos.layers.t2t_variants import (
    LocalRelativeMultiHeadAttention,
    RelativeMultiHeadAttention2D,
    RelativeMultiHeadAttentionV2,
)


def merge_heads(x):
    """Returns `x` `[B, N, …, H]` as `[B, …, N * H]`."""
    *axes, depth = range(1, len(x.shape))
    x = ops.transpose(x, (0, *axes[1:], axes[0], depth))
    return ops.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def split_heads(x, num_heads):
    """Returns the inverse of `merge_heads`."""
    x = ops.reshape(x, (*x.shape[:-1], num_heads, x.shape[-1] // num_heads))
    *axes, heads, depth = range(1, len(x.shape))
    return ops.transpose(x, (0, heads, *axes, depth))


def through_layer(make, tables):
    """Returns `compute` of a Family: calls a layer with identity projections.

    Args:
        make: `make(record, num_heads, key_dim, **others)` returns the layer.
        tables: a dict that maps table names in the record to attributes of the layer.
    """

    def compute(record, tensors):
        _, num_heads, *_, key_dim = record["q"].shape
        value_dim = record["v"].shape[-1]
        layer = make(
            record,
            num_heads,
            key_dim,
            value_dim=value_dim,
            output_shape=num_heads * value_dim,
            use_bias=False,
            share_heads=bool(record["share"]),
            dtype=str(record["q"].dtype),
        )
        query, key, value = (merge_heads(tensors[name]) for name in "qkv")
        layer.build(query.shape, value.shape, key.shape)
        for dense in (layer.key_dense, layer.value_dense, layer.output_dense):
            kernel = dense.matrix
            kernel.assign(np.eye(*kernel.shape))
        # The layer scales queries. The function expects scaled queries.
        query_kernel = layer.query_dense.matrix
        query_kernel.assign(key_dim**0.5 * np.eye(*query_kernel.shape))
        replaced = {
            id(getattr(layer, tables[name])): tensors[name] for name in tables if name in tensors
        }
        weights = [replaced.get(id(v), v.value) for v in layer.trainable_variables]
        others = [v.value for v in layer.non_trainable_variables]
        mask = mask_of(record)
        arguments = {} if mask is None else {"attention_mask": mask}
        outputs, _ = layer.stateless_call(weights, others, query, value, key, **arguments)
        return split_heads(outputs, num_heads)

    return compute


def _v2(masked):
    def make(record, *sizes, **arguments):
        values = bool(record["values"])
        limit = int(record["limit"])
        return RelativeMultiHeadAttentionV2(
            *sizes, limit, masked=masked, use_value_table=values, **arguments
        )

    return through_layer(
        make,
        {
            "key_relative_embeddings": "key_embedding",
            "value_relative_embeddings": "value_embedding",
        },
    )


_2d = through_layer(
    lambda record, *sizes, **arguments: RelativeMultiHeadAttention2D(
        *sizes, int(record["limit"]), **arguments
    ),
    {
        "height_key_relative_embeddings": "height_embedding",
        "width_key_relative_embeddings": "width_embedding",
    },
)
_local = through_layer(
    lambda record, *sizes, **arguments: LocalRelativeMultiHeadAttention(
        *sizes, int(record["limit"]), use_value_table=bool(record["values"]), **arguments
    ),
    {
        "relative_embeddings": "key_embedding",
        "value_relative_embeddings": "value_embedding",
    },
)

FAMILIES = (
    Family(
        "dot_product_self_attention_relative_v2",
        "RelativeMultiHeadAttentionV2(masked=True)",
        "variants/v2_masked",
        _v2(masked=True),
    ),
    Family(
        "dot_product_unmasked_self_attention_relative_v2",
        "RelativeMultiHeadAttentionV2(masked=False)",
        "variants/v2_unmasked",
        _v2(masked=False),
    ),
    Family(
        "dot_product_unmasked_self_attention_relative_2d",
        "RelativeMultiHeadAttention2D",
        "variants/2d",
        _2d,
    ),
    Family(
        "masked_relative_local_attention_1d",
        "LocalRelativeMultiHeadAttention",
        "variants/local",
        _local,
    ),
)
