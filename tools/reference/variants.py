"""Records the v2, 2-D and local relative attention of tensor2tensor 1.15.7.

Writes `variants/*.npz`: seeded random inputs, the output, and the gradients of
sum(output * cotangent) with respect to all inputs, including tables.
"""

import dataclasses
import zlib

import numpy as np
import tensorflow.compat.v1 as tf
from attention import BATCH, DEPTH, HEADS, MASKED, run_with_gradients
from shared import save_arrays
from tensor2tensor.layers import common_attention

# Depth of values, if it may differ from that of keys.
VALUE_DEPTH = 7


@dataclasses.dataclass(frozen=True)
class Case:
    """A recorded call.

    `size` is a length or (height, width). `limit` is max_relative_position or block_length.
    """

    name: str
    size: int | tuple
    limit: int
    share: bool = False
    values: bool = False
    padding: bool = False


SEQUENCES = (
    Case("length_one", 1, 3, share=True, values=True),
    Case("shorter_than_k", 5, 7, values=True),
    Case("as_long_as_k", 7, 7, share=True),
    Case("one_longer_than_k", 8, 7, share=True, values=True),
    Case("far_longer_than_k", 23, 3, values=True),
    Case("keys_only", 11, 3),
    Case("k_one", 5, 1, share=True, values=True),
    Case("padding", 11, 4, values=True, padding=True),
)
GRIDS = (
    Case("one_cell", (1, 1), 2),
    Case("one_row", (1, 7), 3, share=True),
    Case("wide", (3, 5), 2),
    Case("high", (7, 2), 3, share=True),
    Case("smaller_than_k", (3, 2), 5),
    Case("padding", (3, 4), 2, padding=True),
)
# With block length 3, sequences shorter than two blocks are computed as one block.
BLOCKS = (
    Case("length_one", 1, 3, share=True, values=True),
    Case("below_a_block", 2, 3, values=True),
    Case("a_block", 3, 3, share=True),
    Case("below_two_blocks", 5, 3, values=True),
    Case("two_blocks", 6, 3, share=True, values=True),
    Case("broken_block", 11, 3, values=True),
    Case("broken_block_keys_only", 11, 3),
    Case("many_blocks", 17, 2, share=True),
)


def cells(case):
    return int(np.prod(case.size))


def padding_bias(case, dtype):
    """Returns a bias that masks the last three keys of the second batch entry."""
    bias = np.zeros((BATCH, 1, 1, cells(case)), dtype)
    bias[1, ..., -3:] = MASKED
    return bias


def scope(tables, dtype, name):
    """Returns a scope in which get_variable returns the given tables."""

    def known_table(getter, name, **kwargs):
        del getter
        table = tables[name.rpartition("/")[2]]
        assert list(kwargs["shape"]) == table.shape.as_list(), (name, kwargs["shape"])
        return table

    return tf.variable_scope(name, custom_getter=known_table, dtype=dtype)


def record_case(name, case, dtype, value_depth, table_shapes, bias, attention):
    """Returns the record of `attention(q, k, v, bias)`, whose variables are random tables."""
    rng = np.random.default_rng(zlib.crc32(f"{name} {case.name}".encode()))

    def normal(*shape):
        return rng.normal(size=shape).astype(dtype)

    size = case.size if isinstance(case.size, tuple) else (case.size,)
    heads = () if case.share else (HEADS,)
    tables = {key: normal(*heads, *shape) for key, shape in table_shapes.items()}
    inputs = {
        "q": normal(BATCH, HEADS, *size, DEPTH),
        "k": normal(BATCH, HEADS, *size, DEPTH),
        "v": normal(BATCH, HEADS, *size, value_depth),
        **tables,
    }
    if bias is not None:
        inputs["bias"] = bias

    def compute(tensors):
        with scope({key: tensors[key] for key in tables}, dtype, "attention"):
            output = attention(tensors["q"], tensors["k"], tensors["v"], tensors.get("bias"))
        return [output]

    result, _ = run_with_gradients(inputs, dtype, rng, compute)
    return {**result, "limit": case.limit, "share": case.share, "values": case.values}


def record_v2(case, dtype, masked):
    name = "v2_masked" if masked else "v2_unmasked"
    attention = (
        common_attention.dot_product_self_attention_relative_v2
        if masked
        else common_attention.dot_product_unmasked_self_attention_relative_v2
    )
    bias = padding_bias(case, dtype) if case.padding else None
    if masked:
        later = np.triu(np.full((case.size, case.size), MASKED, dtype), 1)[None, None]
        bias = later if bias is None else np.minimum(bias, later)
    rows = case.limit if masked else 2 * case.limit - 1
    # The unmasked function asserts that keys and values have equal shapes.
    value_depth = VALUE_DEPTH if masked else DEPTH
    tables = {"key_relative_embeddings": (rows, DEPTH)}
    if case.values:
        tables["value_relative_embeddings"] = (rows, value_depth)
    return name, record_case(
        name,
        case,
        dtype,
        value_depth,
        tables,
        bias,
        lambda q, k, v, bias: attention(
            q,
            k,
            v,
            bias,
            case.limit,
            make_image_summary=False,
            heads_share_relative_embedding=case.share,
            add_relative_to_values=case.values,
        ),
    )


def record_2d(case, dtype):
    rows = 2 * case.limit - 1
    tables = {f"{side}_key_relative_embeddings": (rows, DEPTH) for side in ("height", "width")}
    bias = padding_bias(case, dtype) if case.padding else None
    return "2d", record_case(
        "2d",
        case,
        dtype,
        VALUE_DEPTH,
        tables,
        bias,
        lambda q, k, v, bias: common_attention.dot_product_unmasked_self_attention_relative_2d(
            q,
            k,
            v,
            bias,
            case.limit,
            make_image_summary=False,
            heads_share_relative_embedding=case.share,
        )[0],
    )


def record_local(case, dtype):
    rows = 4 * case.limit
    tables = {"relative_embeddings": (rows, DEPTH)}
    if case.values:
        tables["value_relative_embeddings"] = (rows, VALUE_DEPTH)
    return "local", record_case(
        "local",
        case,
        dtype,
        VALUE_DEPTH,
        tables,
        None,
        lambda q, k, v, bias: common_attention.masked_relative_local_attention_1d(
            q,
            k,
            v,
            block_length=case.limit,
            heads_share_relative_embedding=case.share,
            add_relative_to_values=case.values,
            name="local",
        ),
    )


def record():
    tf.disable_v2_behavior()
    records = [
        # The other functions create float32 zeros, so they support no other dtype.
        *((case, "float64", record_v2(case, "float64", True)) for case in SEQUENCES),
        *((case, "float32", record_v2(case, "float32", True)) for case in SEQUENCES),
        *((case, "float32", record_v2(case, "float32", False)) for case in SEQUENCES),
        *((case, "float32", record_2d(case, "float32")) for case in GRIDS),
        *((case, "float32", record_local(case, "float32")) for case in BLOCKS),
    ]
    for case, dtype, (name, arrays) in records:
        save_arrays(f"variants/{name}_{case.name}_{dtype}", arrays)
