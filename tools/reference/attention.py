"""Records the relative attention of tensor2tensor 1.15.7.

Writes `attention/*.npz`: seeded random inputs, the outputs, and the gradients of
sum(output * cotangent) with respect to all floating-point inputs, including tables.
"""

import dataclasses
import zlib

import numpy as np
import tensorflow.compat.v1 as tf
from shared import save_arrays
from tensor2tensor.layers import common_attention

BATCH, HEADS, DEPTH = 2, 3, 5
MASKED = -1e9


@dataclasses.dataclass(frozen=True)
class AttentionCase:
    name: str
    length_q: int
    length_k: int
    max_relative_position: int
    bias: str = "none"
    cache: bool = False
    allow_memory: bool = False


ATTENTION_CASES = (
    AttentionCase("length_one", 1, 1, 3),
    AttentionCase("shorter_than_k", 4, 4, 7),
    AttentionCase("one_below_table", 6, 6, 3),
    AttentionCase("as_long_as_table", 7, 7, 3),
    AttentionCase("one_above_table", 8, 8, 3),
    AttentionCase("far_longer_than_k", 23, 23, 2),
    AttentionCase("padding", 11, 11, 3, bias="padding"),
    AttentionCase("all_keys_padded", 7, 7, 3, bias="all_padded"),
    AttentionCase("causal", 11, 11, 3, bias="causal"),
    AttentionCase("causal_and_padding", 7, 7, 13, bias="causal_and_padding"),
    AttentionCase("memory", 4, 11, 3, allow_memory=True),
    AttentionCase("memory_causal", 4, 11, 3, bias="causal", allow_memory=True),
    AttentionCase("memory_short", 2, 3, 7, allow_memory=True),
    AttentionCase("cache_long", 1, 11, 3, cache=True),
    AttentionCase("cache_short", 1, 2, 7, cache=True),
    AttentionCase("cache_first", 1, 1, 3, cache=True),
    AttentionCase("cache_padding", 1, 11, 3, bias="padding", cache=True),
)

# (length_q, length_k, max_relative_position, cache)
MATRIX_CASES = (
    *((n, n, k, False) for n in (1, 2, 5, 7, 23) for k in (1, 2, 3, 7, 31)),
    *((q, 11, k, False) for q in (1, 4, 10) for k in (2, 5, 13)),
    *((1, n, k, True) for n in (1, 2, 11) for k in (2, 5, 13)),
)

INNER_CASES = (
    (7, 7, True),
    (7, 7, False),
    (1, 11, True),
    (1, 11, False),
    (4, 11, True),
    (4, 11, False),
)


def bias_of(case, dtype):
    """Returns the bias of a case, broadcastable to [batch, heads, query, key]."""
    padding = np.zeros((BATCH, 1, 1, case.length_k), dtype)
    padding[1, ..., -3:] = MASKED
    steps = np.arange(case.length_k)
    later = steps[None, :] > steps[-case.length_q :, None]
    causal = np.where(later, MASKED, 0.0).astype(dtype)[None, None]
    if case.bias == "all_padded":
        padding[1] = MASKED
    return {
        "none": None,
        "padding": padding,
        "all_padded": padding,
        "causal": causal,
        "causal_and_padding": np.minimum(causal, padding),
    }[case.bias]


def run_with_gradients(inputs, dtype, rng, compute):
    """Returns the first output of `compute(tensors)` with its gradients, and the other outputs."""
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = {name: tf.constant(array) for name, array in inputs.items()}
        output, *others = compute(tensors)
        cotangent = rng.normal(size=output.shape.as_list()).astype(dtype)
        differentiable = [name for name in inputs if name != "bias"]
        gradients = tf.gradients(
            tf.reduce_sum(output * cotangent), [tensors[name] for name in differentiable]
        )
        # Gradients of tables are IndexedSlices.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        values = session.run([output, *others, *gradients])
    record = {**inputs, "cotangent": cotangent, "output": values[0]}
    for name, gradient in zip(differentiable, values[1 + len(others) :]):
        record[f"gradient_{name}"] = gradient
    return record, values[1 : 1 + len(others)]


def tables_as_variables(tables, dtype):
    """Returns a scope in which get_variable returns the given tables."""

    def known_table(getter, name, **kwargs):
        del getter
        table = next(value for key, value in tables.items() if key in name)
        assert name.endswith("/embeddings") and kwargs["shape"] == table.shape.as_list()
        return table

    return tf.variable_scope("attention", custom_getter=known_table, dtype=dtype)


def record_attention(case, dtype):
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))

    def normal(*shape):
        return rng.normal(size=shape).astype(dtype)

    rows = 2 * case.max_relative_position + 1
    inputs = {
        "q": normal(BATCH, HEADS, case.length_q, DEPTH),
        "k": normal(BATCH, HEADS, case.length_k, DEPTH),
        "v": normal(BATCH, HEADS, case.length_k, DEPTH),
        "key_embeddings": normal(rows, DEPTH),
        "value_embeddings": normal(rows, DEPTH),
    }
    bias = bias_of(case, dtype)
    if bias is not None:
        inputs["bias"] = bias

    def compute(tensors):
        saved = {}
        with tables_as_variables(
            {
                "relative_positions_keys": tensors["key_embeddings"],
                "relative_positions_values": tensors["value_embeddings"],
            },
            dtype,
        ):
            output = common_attention.dot_product_attention_relative(
                tensors["q"],
                tensors["k"],
                tensors["v"],
                tensors.get("bias"),
                case.max_relative_position,
                save_weights_to=saved,
                make_image_summary=False,
                cache=case.cache,
                allow_memory=case.allow_memory,
            )
        (weights,) = (value for key, value in saved.items() if "logits" not in key)
        return output, weights

    record, (weights,) = run_with_gradients(inputs, dtype, rng, compute)
    record.update(
        weights=weights,
        max_relative_position=case.max_relative_position,
        cache=case.cache,
        allow_memory=case.allow_memory,
    )
    return record


def record_inner(length_q, length_k, transpose, dtype):
    rng = np.random.default_rng(1000 * length_q + 10 * length_k + transpose)

    def normal(*shape):
        return rng.normal(size=shape).astype(dtype)

    inputs = {
        "x": normal(BATCH, HEADS, length_q, DEPTH if transpose else length_k),
        "y": normal(BATCH, HEADS, length_k, DEPTH),
        "z": normal(length_q, length_k, DEPTH),
    }
    record, _ = run_with_gradients(
        inputs,
        dtype,
        rng,
        lambda tensors: [
            common_attention._relative_attention_inner(
                tensors["x"], tensors["y"], tensors["z"], transpose
            )
        ],
    )
    return {**record, "transpose": transpose}


def record_embeddings(length_q, length_k, max_relative_position, cache, dtype):
    rng = np.random.default_rng(1000 * length_q + 10 * length_k + cache)
    table = rng.normal(size=(2 * max_relative_position + 1, DEPTH)).astype(dtype)

    def compute(tensors):
        name = "relative_positions_keys"
        with tables_as_variables({name: tensors["table"]}, dtype):
            return [
                common_attention._generate_relative_positions_embeddings(
                    length_q, length_k, DEPTH, max_relative_position, name, cache
                )
            ]

    record, _ = run_with_gradients({"table": table}, dtype, rng, compute)
    return {**record, "arguments": (length_q, length_k, max_relative_position, cache)}


def record_matrices():
    """Returns a dict of matrices. A key has the arguments: length_q, length_k, K and cache."""
    with tf.Graph().as_default(), tf.Session() as session:
        return {
            "_".join(str(int(value)) for value in arguments): session.run(
                common_attention._generate_relative_positions_matrix(*arguments)
            )
            for arguments in MATRIX_CASES
        }


def save(name, arrays):
    save_arrays(f"attention/{name}", arrays)


def record():
    tf.disable_v2_behavior()
    save("positions_matrix", record_matrices())
    for dtype in ("float32", "float64"):
        for case in ATTENTION_CASES:
            save(f"attention_{case.name}_{dtype}", record_attention(case, dtype))
        for length_q, length_k, transpose in INNER_CASES:
            kind = "keys" if transpose else "values"
            save(
                f"inner_{kind}_{length_q}_{length_k}_{dtype}",
                record_inner(length_q, length_k, transpose, dtype),
            )
        for arguments in ((7, 7, 2, False), (3, 3, 5, False), (4, 11, 3, False), (1, 11, 3, True)):
            length_q, length_k = arguments[:2]
            save(f"embeddings_{length_q}_{length_k}_{dtype}", record_embeddings(*arguments, dtype))
