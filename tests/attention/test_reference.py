"""Tests of the ports beyond the comparison with tensor2tensor in test_recorded.py.

Position matrices, attention weights and graphs with unknown shapes are compared here.
"""

import pathlib

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import reference

RECORDED = pathlib.Path(__file__).parents[1] / "reference" / "attention"
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def load(path):
    if path.stem.endswith("float64") and keras.backend.backend() != "tensorflow":
        pytest.skip("Keras multiplies in float64 on TensorFlow only")
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def recorded(prefix):
    paths = sorted(RECORDED.glob(f"{prefix}_*.npz"))
    assert paths, f"no recordings in {RECORDED}"
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def assert_close(actual, expected):
    """Asserts equality. The tolerance is relative to the largest expected entry."""
    actual = ops.convert_to_numpy(actual)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    atol = TOLERANCE[str(expected.dtype)] * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def attention_arguments(record):
    return {
        "bias": record.get("bias"),
        "max_relative_position": int(record["max_relative_position"]),
        "cache": bool(record["cache"]),
        "allow_memory": bool(record["allow_memory"]),
    }


ATTENTION_INPUTS = ("q", "k", "v", "key_embeddings", "value_embeddings")


def random_inputs(length, rows=5, batch=2, heads=3, depth=7):
    rng = np.random.default_rng(0)
    shapes = {
        "q": (batch, heads, length, depth),
        "k": (batch, heads, length, depth),
        "v": (batch, heads, length, depth),
        "key_embeddings": (rows, depth),
        "value_embeddings": (rows, depth),
    }
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def test_position_matrices_equal_tensor2tensor():
    matrices = load(RECORDED / "positions_matrix.npz")
    assert len(matrices) == 43
    for key, expected in matrices.items():
        length_q, length_k, max_relative_position, cache = map(int, key.split("_"))
        actual = reference.relative_positions_matrix(
            length_q, length_k, max_relative_position, cache=bool(cache)
        )
        actual = ops.convert_to_numpy(actual)
        assert actual.dtype == expected.dtype == np.int32
        np.testing.assert_array_equal(actual, expected, err_msg=key)


def test_position_matrix_is_zero_for_max_relative_position_0():
    actual = reference.relative_positions_matrix(2, 3, 0)
    np.testing.assert_array_equal(ops.convert_to_numpy(actual), np.zeros((2, 3)))


@pytest.mark.parametrize("length_q, length_k, cache", [(4, 11, 0), (7, 7, 0), (1, 11, 1)])
def test_position_matrix_with_unknown_lengths(length_q, length_k, cache, tf):
    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)] * 2)
    def matrix(length_q, length_k):
        return reference.relative_positions_matrix(length_q, length_k, 2, bool(cache))

    np.testing.assert_array_equal(
        matrix(length_q, length_k),
        reference.relative_positions_matrix(length_q, length_k, 2, bool(cache)),
    )


@recorded("attention")
def test_output_and_weights_equal_tensor2tensor(path):
    record = load(path)
    arguments = attention_arguments(record)
    q, k, v, *tables = (ops.convert_to_tensor(record[x]) for x in ATTENTION_INPUTS)
    bias = arguments.pop("bias")
    options = reference._Options(**arguments, dropout_rate=0.0, seed=None)
    output, weights = reference._attention_and_weights(q, k, v, bias, tables, options)
    assert_close(output, record["output"])
    assert_close(weights, record["weights"])


@recorded("attention")
def test_attention_with_unknown_shapes(path, tf):
    record = load(path)
    arguments = attention_arguments(record)
    del arguments["bias"]
    inputs = {name: tf.constant(record[name]) for name in ATTENTION_INPUTS}
    bias = tf.constant(record.get("bias", np.zeros([1] * 4, record["q"].dtype)))

    def spec(tensor):
        # As in tensor2tensor, only heads and depth are known.
        heads, depth = record["q"].shape[1::2]
        shape = [None, heads, None, depth] if tensor.shape.rank == 4 else [None, depth]
        return tf.TensorSpec(shape, tensor.dtype)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None] * 4, bias.dtype),
            {name: spec(tensor) for name, tensor in inputs.items()},
        ]
    )
    def compute(bias, inputs):
        return reference.dot_product_attention_relative(bias=bias, **inputs, **arguments)

    assert compute.get_concrete_function().structured_outputs.shape[0] is None
    assert_close(compute(bias, inputs), record["output"])


def test_bias_is_cast_to_the_dtype_of_the_logits():
    inputs = random_inputs(length=3)
    bias = np.zeros((1, 1, 3, 3))
    bias[..., 2] = -1e9
    output = reference.dot_product_attention_relative(**inputs, bias=bias, max_relative_position=2)
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    expected = reference.dot_product_attention_relative(
        **inputs, bias=bias.astype("float32"), max_relative_position=2
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(output), ops.convert_to_numpy(expected))


def test_dropout_is_independent_per_weight_and_repeats_with_a_seed():
    # With v = 0 and a value table of ones, outputs are the sums of the kept weights.
    inputs = random_inputs(length=97)
    inputs["v"] = np.zeros_like(inputs["v"])
    inputs["q"] = np.zeros_like(inputs["q"])
    inputs["value_embeddings"] = np.ones_like(inputs["value_embeddings"])

    def sums(rate, seed=1):
        output = reference.dot_product_attention_relative(
            **inputs, bias=None, max_relative_position=2, dropout_rate=rate, seed=seed
        )
        return ops.convert_to_numpy(output)[..., 0]

    np.testing.assert_allclose(sums(0.0), 1.0, rtol=1e-5)
    dropped = sums(0.25)
    kept = dropped * 97 * 0.75
    np.testing.assert_allclose(kept, kept.round(), atol=1e-3)
    assert abs(dropped.mean() - 1.0) < 0.02
    # The number of kept weights differs between batch entries, heads and queries.
    assert (np.ptp(kept, axis=0) > 1).any()
    assert (np.ptp(kept, axis=1) > 1).any()
    assert (np.ptp(kept, axis=2) > 1).all()
    np.testing.assert_array_equal(dropped, sums(0.25))
    assert (dropped != sums(0.25, seed=2)).any()


ATTENTION = reference.dot_product_attention_relative
MATRIX = reference.relative_positions_matrix
EMBEDDINGS = reference.relative_position_embeddings
VALID = {
    ATTENTION: random_inputs(3) | {"bias": None, "max_relative_position": 2},
    MATRIX: {"length_q": 3, "length_k": 3, "max_relative_position": 2},
    EMBEDDINGS: {
        "table": np.ones((7, 7)),
        "length_q": 3,
        "length_k": 3,
        "max_relative_position": 3,
    },
}
FIVE, ELEVEN = random_inputs(5), random_inputs(11)
MORE_QUERIES = r"Expected at most as many queries as keys: .*Received: length_q=5, length_k=3\."


def of_max_relative_position(function, smallest, *values):
    """Returns rows of the test below for values below `smallest`, or of another type."""
    return [
        (
            function,
            {"max_relative_position": value},
            rf"Expected max_relative_position to be an int of at least {smallest}: .*"
            rf"Received: max_relative_position={value}\.",
        )
        for value in values
    ]


@pytest.mark.parametrize(
    ("function", "changes", "message"),
    [
        *of_max_relative_position(ATTENTION, 1, None, 0, -1, 2.0, True),
        *of_max_relative_position(MATRIX, 0, None, -1, 2.0, True),
        (MATRIX, {"length_q": 5}, MORE_QUERIES),
        (ATTENTION, {"q": FIVE["q"], "allow_memory": True}, MORE_QUERIES),
        *(
            (
                ATTENTION,
                {"dropout_rate": rate},
                r"Expected dropout_rate to be at least 0 and below 1\. "
                rf"Received: dropout_rate={rate}\.",
            )
            for rate in (-0.1, 1.0)
        ),
        (
            EMBEDDINGS,
            {"table": np.ones((5, 7))},
            r"Expected table to have 2 \* max_relative_position \+ 1 = 7 rows\. "
            r"Received: shape \(5, 7\) with max_relative_position=3\.",
        ),
        *(
            (
                ATTENTION,
                {name: np.ones((5, 11))},
                rf"Expected {name} to have 2 \* max_relative_position \+ 1 = 5 rows of length 7, "
                r"the depth of the keys\. Received: shape \(5, 11\) with max_relative_position=2\.",
            )
            for name in ("key_embeddings", "value_embeddings")
        ),
        (
            ATTENTION,
            {"q": FIVE["q"], "k": ELEVEN["k"], "v": ELEVEN["v"]},
            r"Expected q, k and v of the same shape: .* Pass allow_memory=True .*"
            r"Received: q \(2, 3, 5, 7\), k \(2, 3, 11, 7\), v \(2, 3, 11, 7\)\.",
        ),
        (
            ATTENTION,
            {"q": FIVE["q"], "k": ELEVEN["k"], "v": ELEVEN["v"], "cache": True},
            r"Expected one query \(length 1\) with cache=True\. Received: q \(2, 3, 5, 7\)",
        ),
        (
            ATTENTION,
            {"v": random_inputs(2)["v"]},
            r"Expected k and v of the same shape\. Received: .*k \(2, 3, 3, 7\), v \(2, 3, 2, 7\)",
        ),
        (
            ATTENTION,
            {"q": random_inputs(3)["q"][0]},
            r"Expected q, k and v of shape \[batch, heads, length, depth\]\. "
            r"Received: q \(3, 3, 7\)",
        ),
    ],
)
def test_ports_reject_invalid_arguments(function, changes, message):
    with pytest.raises(ValueError, match=message):
        function(**VALID[function] | changes)
