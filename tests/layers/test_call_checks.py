"""Tests of call argument errors: batch sizes, masks, positions and offsets."""

import keras
import numpy as np
import pytest
from compilation import compile_function
from keras import ops
from layer_cases import CASES, random_inputs

from t2t_relpos.layers import (
    LocalRelativeMultiHeadAttention,
    Packing,
    RelationMultiHeadAttention,
    RelativeMultiHeadAttention,
    RelativeMultiHeadAttention2D,
    RelativeMultiHeadAttentionV2,
    TransformerDecoder,
    TransformerEncoder,
)

X, Y = np.ones((3, 7, 6), "float32"), np.ones((3, 11, 6), "float32")
# Caches of `layer` and of `decoder`, with room for 9 positions.
CACHE = np.zeros((3, 2, 9, 2, 5), "float32")
DECODER_CACHE = {
    "self_attention_cache": CACHE[..., :3],
    "self_attention_cache_update_index": 0,
}


@pytest.fixture(scope="module")
def layer():
    made = RelativeMultiHeadAttention(2, 5, max_relative_position=3)
    made(X, Y)
    return made


@pytest.fixture(scope="module")
def decoder():
    """Returns a decoder with attention to an encoder."""
    made = TransformerDecoder(16, 2, max_relative_position=4)
    made(X, Y)
    return made


@pytest.fixture(scope="module")
def decoder_only():
    made = TransformerDecoder(16, 2, max_relative_position=4)
    made(X)
    return made


@pytest.mark.parametrize("name", CASES)
def test_ragged_inputs_raise(name, tf, rng):
    """The error is the same for every input and mask of every layer, built or not."""
    case = CASES[name]
    inputs = random_inputs(case.input_names(masks=True), rng)
    layer = case.make()
    for key, x in inputs.items():
        lengths = [x.shape[1] - 1] * x.shape[0]
        ragged = tf.RaggedTensor.from_tensor(tf.convert_to_tensor(x), lengths=lengths)
        for function in (layer, tf.function(layer)):
            with pytest.raises(ValueError, match=r"RaggedTensor of shape .* `\.to_tensor\(\)`"):
                case.call(function, inputs | {key: ragged}, masks=True)
    case.call(layer, inputs, masks=True)
    with pytest.raises(ValueError, match="Expected the inputs of .* to be dense. Received: a R"):
        case.call(layer, inputs | {key: ragged}, masks=True)


def test_ragged_arguments_of_methods_and_functional_models_raise(tf, layer):
    ragged = tf.RaggedTensor.from_tensor(tf.convert_to_tensor(X), lengths=[7, 3, 2])
    calls = {
        "project_query": lambda: layer.project_query(ragged),
        "project_cache": lambda: layer.project_cache(ragged),
        "query": lambda: layer.attend_with_cache(ragged, X, CACHE, 0, query_offset=0),
        "value": lambda: layer.attend_with_cache(X, ragged, CACHE, 0, query_offset=0),
        "functional": lambda: layer(*[keras.Input((None, 6), ragged=True)] * 2),
        "packing": lambda: Packing(ragged[..., 0] > 0),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match="to be dense. Received: a RaggedTensor"):
            call()


# Arguments by message.
CALL_ERRORS = {
    "Expected `value` of shape [B, S, Dv] = [3, *, 6]. Received: shape (1, 11, 6). Lengths of "
    "`value` and `key` must be equal, and all batch sizes.": {"value": Y[:1]},
    "Expected `attention_mask` to be boolean, True = attend. Received: dtype float32. Convert "
    "an additive bias (0 and -1e9) with `bias == 0`, and a mask of 1.0 and 0.0 with `mask > 0`.": {
        "attention_mask": np.zeros((7, 11), "float32")
    },
    "Expected `attention_mask` to be boolean, True = attend. Received: dtype int32 with values "
    "from -1000000000 to -1000000000. Convert an additive bias": {
        "attention_mask": np.full((7, 11), -(10**9), "int32")
    },
    "Expected `value` to be a tensor. Received: None. For self-attention": {"value": None},
    "Expected `query` of shape [B, T, D] = [*, *, 6]. Received: shape (1, 3, 7, 6).": {
        "query": X[None]
    },
    "Received: shape (11, 6). Lengths of `value` and `key` must be equal, and all batch sizes. "
    "Fold further axes into the batch.": {"value": Y[0]},
    "Expected `value` of shape [B, S, Dv] = [3, *, 6]. Received: shape (3, 11, 5).": {
        "value": Y[:, :, :5]
    },
    "Expected `key` of shape [B, S, Dk] = [3, 11, 6]. Received: shape (3, 7, 6).": {"key": X},
    "Expected `attention_mask` of shape [B, T, S] = [3, 7, 11] or [T, S] = [7, 11] or [B, N, T, "
    "S] = [3, 2, 7, 11]. Received: shape (2, 7, 11).": {
        "attention_mask": np.ones((2, 7, 11), bool)
    },
    "Expected `key_mask` of shape [B, S] = [3, 11]. Received: shape (3, 7).": {
        "key_mask": np.ones((3, 7), bool)
    },
    "Expected `value_mask` of shape [B, S] = [3, 11]. Received: shape (3, 1).": {
        "value_mask": np.ones((3, 1), bool)
    },
    "Expected `query_mask` of shape [B, T] = [3, 7]. Received: shape (3, 11).": {
        "query_mask": np.ones((3, 11), bool)
    },
    "Expected `query_offset` in [-2147483647, 2147483648). Received: values from 1099511627776 to "
    "1099511627776.": {"query_offset": 2**40},
    "Expected `query_offset` of an integer dtype. Received: dtype float": {"query_offset": 1.5},
    "Expected `query_offset` of shape [] (a scalar). Received: shape (3,). Pass `query_pos": {
        "query_offset": np.array([1, 2, 3])
    },
    "Expected `query_positions` of shape [T] = [7] or [B, T] = [3, 7]. Received: shape (1,).": {
        "query_positions": np.array([4])
    },
    "Expected `key_positions` of shape [S] = [11] or [B, S] = [3, 11]. Received: shape (3, 7).": {
        "key_positions": np.ones((3, 7), "int32")
    },
    "Expected `key_positions` of an integer dtype": {"key_positions": np.arange(11.0)},
    "Expected either `query_offset` or `query_positions`": {
        "query_offset": 1,
        "query_positions": np.arange(7),
    },
}


@pytest.mark.parametrize("message, arguments", CALL_ERRORS.items())
def test_call_rejects_invalid_arguments(layer, arguments, message):
    with pytest.raises(ValueError) as error:
        layer(**{"query": X, "value": Y} | arguments)
    assert message in str(error.value)


def test_call_casts_integer_masks(layer, rng):
    mask = rng.integers(0, 2, (3, 7, 11))
    np.testing.assert_array_equal(
        layer(X, Y, attention_mask=mask), layer(X, Y, attention_mask=mask.astype(bool))
    )


FLOAT_MASK = "to be boolean, True = attend. Received: dtype float32. Convert an additive bias"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"attention_mask": np.zeros((3, 7, 7), "float32")}, f"`attention_mask` {FLOAT_MASK}"),
        ({"padding_mask": np.zeros((3, 7), "float32")}, f"`padding_mask` {FLOAT_MASK}"),
        (
            {"padding_mask": np.ones((3, 8), bool)},
            r"Expected `padding_mask` of shape \[B, S\] = \[3, 7\]. Received: shape \(3, 8\).",
        ),
        (
            {"attention_mask": np.ones((3, 7, 8), bool)},
            r"Expected `attention_mask` of shape \[B, T, S\] = \[3, 7, 7\] or \[T, S\] = \[7, 7\]. "
            r"Received: shape \(3, 7, 8\).",
        ),
    ],
)
def test_blocks_reject_invalid_masks(arguments, message, decoder):
    with pytest.raises(ValueError, match=message):
        TransformerEncoder(16, 2, max_relative_position=4)(X, **arguments)
    with pytest.raises(ValueError, match=message.replace("`", "`decoder_", 1)):
        decoder(X, X, **{f"decoder_{name}": mask for name, mask in arguments.items()})
    with pytest.raises(ValueError, match=message.replace("`", "`encoder_", 1)):
        decoder(X, X, **{f"encoder_{name}": mask for name, mask in arguments.items()})


@pytest.mark.parametrize("length", [1, 7])
def test_decoder_mask_has_the_length_of_the_cache(length, decoder_only):
    decoder_only(X, decoder_padding_mask=np.ones((3, 9), bool), **DECODER_CACHE)
    message = (
        r"Expected `decoder_padding_mask` of shape \[B, S\] = \[3, 9\].* Received: shape "
        rf"\(3, {length}\)"
    )
    with pytest.raises(ValueError, match=message):
        decoder_only(X, decoder_padding_mask=np.ones((3, length), bool), **DECODER_CACHE)


def test_decoder_rejects_different_batch_sizes(decoder):
    with pytest.raises(ValueError, match=r"`value` of shape .* Received: shape \(1, 11, 6\)"):
        decoder(X, Y[:1])


@pytest.mark.parametrize("name", ["self", "cross"])
def test_decoder_rejects_an_update_index_without_a_cache(name, decoder):
    message = (
        f"Expected `{name}_attention_cache` with `{name}_attention_cache_update_index`. Received: "
        "the index without a cache."
    )
    with pytest.raises(ValueError, match=message):
        decoder(X, Y, **{f"{name}_attention_cache_update_index": 0})


def test_decoder_rejects_arguments_that_caches_do_not_support(decoder_only):
    message = "no caches with `return_attention_scores=True`. Received: no `encoder_sequence`."
    with pytest.raises(ValueError, match=message):
        decoder_only(X, return_attention_scores=True)
    with pytest.raises(ValueError, match="no caches with .* Received: caches."):
        decoder_only(X, return_attention_scores=True, **DECODER_CACHE)
    with pytest.raises(ValueError, match="Expected no packing with caches. Received: both."):
        decoder_only(X, packing=Packing(np.ones((3, 7), bool)), **DECODER_CACHE)
    with pytest.raises(ValueError, match="a tensor or an array .* Received: dict."):
        decoder_only(X[:, :1], **DECODER_CACHE | {"self_attention_cache": {}})


@pytest.mark.parametrize("update_index", [0, None])
@pytest.mark.parametrize(
    "shape",
    [
        (2, 2, 9, 2, 3),
        (1, 2, 9, 2, 3),
        (3, 1, 9, 2, 3),
        (3, 2, 9, 4, 3),
        (3, 2, 9, 1, 3),
        (3, 2, 9, 2, 5),
        (3, 2, 2, 9, 3),
        (3, 2, 9, 6),
    ],
    ids=str,
)
def test_decoder_rejects_caches_of_other_shapes(shape, update_index, decoder):
    good = DECODER_CACHE["self_attention_cache"]
    message = (
        "Expected `{}_attention_cache` of shape [B, 2, S, N, H] = [3, 2, {}, 2, 3]. Received: "
        "shape {}."
    )
    for own, cross, expected in (
        (np.zeros(shape, "float32"), good, message.format("self", "*", shape)),
        (good, np.zeros(shape, "float32"), message.format("cross", 11, shape)),
        (good, good, message.format("cross", 11, good.shape)),
    ):
        caches = {"self_attention_cache": own, "cross_attention_cache": cross}
        caches |= {"cross_attention_cache_update_index": update_index}
        with pytest.raises(ValueError) as error:
            decoder(X, Y, **DECODER_CACHE | caches)
        assert expected in str(error.value)


# Arguments by message.
CACHE_ERRORS = {
    "`cache` of shape [B, 2, S, N, H] = [3, 2, *, 2, 5]. Received: shape (2, 2, 9, 2, 5).": {
        "cache": CACHE[:2]
    },
    "of a floating-point dtype. Received: dtype int32.": {"cache": CACHE.astype("int32")},
    "Expected `query_offset` with `update_index` and a causal mask or a sliding window. "
    "Received: query_offset=None, which places the queries at the end of the cache. In "
    "self-attention, pass query_offset=update_index.": {"causal": True},
    "Expected `update_index` of an integer dtype. Received: dtype float64.": {"update_index": 1.5},
    "`update_index` of shape [] (a scalar). Received: shape (3,). All sequences have the same": {
        "update_index": np.zeros(3, int)
    },
    "the first of 7 positions in [0, 3). Received: values from -2 to -2.": {"update_index": -2},
    "the first of 7 positions in [0, 3). Received: values from 3 to 3. The cache has length 9": {
        "update_index": 3
    },
}


@pytest.mark.parametrize("message, arguments", CACHE_ERRORS.items())
def test_attend_with_cache_rejects_invalid_arguments(layer, message, arguments):
    with pytest.raises(ValueError) as error:
        layer.attend_with_cache(X, X, **{"cache": CACHE, "update_index": 0} | arguments)
    assert message in str(error.value)


def test_caches_of_unlike_depths_are_pairs():
    layer = RelativeMultiHeadAttention(2, 5, value_dim=3, max_relative_position=3, name="mine")
    expected = layer(X, X, use_causal_mask=True)
    pair = np.zeros((3, 9, 2, 5), "float32"), np.zeros((3, 9, 2, 3), "float32")
    outputs, cache = layer.attend_with_cache(X, X, pair, 0, causal=True, query_offset=0)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    for found, projected in zip(cache, layer.project_cache(X), strict=True):
        np.testing.assert_allclose(found[:, :7], projected, atol=1e-6)
    for wrong, message in (
        (CACHE, "Expected `cache` to be a pair .* one array, value_dim=3, key_dim=5"),
        (None, "Expected `cache` to be a pair .* Received: NoneType"),
        (pair[::-1], r"Expected `cache\[0\]` of shape \[B, S, N, H\] = \[3, \*, 2, 5\]"),
        ((pair[0], pair[1][:, :4]), r"`cache\[1\]` of shape .* Received: shape \(3, 4, 2, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            layer.attend_with_cache(X, X, wrong, 0)


def test_methods_reject_an_unbuilt_layer():
    attention = RelativeMultiHeadAttention(2, 5, max_relative_position=3, name="mine")
    for call in (
        lambda: attention.project_cache(X),
        lambda: attention.attend_with_cache(X, X, CACHE, 0),
    ):
        with pytest.raises(ValueError, match="Expected a built layer. Received: mine, which has n"):
            call()


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_cached_attention_casts_its_inputs(dtype):
    decoder = TransformerDecoder(16, 2, max_relative_position=4, dtype=dtype)
    decoder(X)
    x = X[:, :1].astype("float16")
    cache = np.zeros((3, 2, 4, 2, 3), "float16")
    arguments = {"self_attention_cache": cache, "self_attention_cache_update_index": 0}
    outputs, _ = decoder(x, **arguments)
    # Of four keys, three are masked. Matrix products of other sizes are rounded differently.
    atol = 1e-6 if dtype == "float32" else 0.02
    np.testing.assert_allclose(
        ops.cast(outputs, "float32"), ops.cast(decoder(x), "float32"), atol=atol
    )
    layer = decoder.self_attention
    outputs, cache = layer.attend_with_cache(x, x, cache, 0, causal=True, query_offset=0)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    assert keras.backend.standardize_dtype(cache.dtype) == "float16"


def test_compiled_write_outside_the_cache_returns_nan(layer):
    def step(index):
        return layer.attend_with_cache(X[:, :1], X[:, :1], CACHE, index)[0]

    for index, is_nan in ((0, False), (9, True), (-1, True)):
        outputs = compile_function(step)(np.array(index))
        assert np.isnan(ops.convert_to_numpy(outputs)).all() == is_nan


@pytest.mark.parametrize("integer", [np.int64(3), np.int32(3)])
def test_constructor_accepts_numpy_integers(integer):
    layer = RelativeMultiHeadAttention(integer, integer, max_relative_position=integer)
    assert layer.get_config()["max_relative_position"] == 3
    assert type(layer.get_config()["num_heads"]) is int


@pytest.mark.parametrize(
    "layer",
    [
        RelationMultiHeadAttention(2, 3, num_relations=4),
        RelativeMultiHeadAttentionV2(2, 3, max_relative_position=2),
        LocalRelativeMultiHeadAttention(2, 3, block_length=2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_reject_float_masks_and_different_batch_sizes(layer):
    arguments = {}
    if isinstance(layer, RelationMultiHeadAttention):
        arguments["relations"] = np.zeros((7, 7), int)
        with pytest.raises(ValueError, match=f"`attention_mask` {FLOAT_MASK}"):
            layer(X, X, attention_mask=np.zeros((7, 7), "float32"), **arguments)
    for name in ("query_mask", "value_mask", "key_mask"):
        with pytest.raises(ValueError, match=f"`{name}` {FLOAT_MASK}"):
            layer(X, X, **{name: np.zeros((3, 7), "float32")}, **arguments)
    with pytest.raises(ValueError, match=r"`value` of shape .* Received: shape \(1, 7, 6\)"):
        layer(X, X[:1], **arguments)


def test_local_attention_rejects_different_lengths():
    layer = LocalRelativeMultiHeadAttention(2, 3, block_length=2)
    layer(X, X)
    message = (
        r"`value` of shape \[B, T, Dv\] = \[3, 7, 6\]. Received: shape \(3, 5, 6\). All "
        r"inputs have one length: this is self-attention."
    )
    with pytest.raises(ValueError, match=message):
        layer(X, X[:, :5])


def test_2d_layer_rejects_invalid_arguments():
    layer, grid = RelativeMultiHeadAttention2D(2, 3, max_relative_position=2), X[:, :6, None]
    layer(grid, grid)
    message = r"`query` of shape \[B, height, width, D\] = .* Received: shape \(3, 7, 6\)"
    with pytest.raises(ValueError, match=message):
        layer(X, grid)
    message = r"`value` of shape .* = \[3, 6, 1, 6\]. Received: shape \(3, 1, 6, 6\). All inputs"
    with pytest.raises(ValueError, match=message):
        layer(grid, X[:, None, :6])
    for name in ("query_mask", "value_mask", "key_mask"):
        with pytest.raises(ValueError, match=f"`{name}` {FLOAT_MASK}"):
            layer(grid, grid, **{name: np.zeros((3, 6, 1), "float32")})
        with pytest.raises(ValueError, match=r"\[B, height, width\] = \[3, 6, 1\]. Received"):
            layer(grid, grid, **{name: np.zeros((3, 1, 6), bool)})
    with pytest.raises(ValueError, match=r"\[B, T, S\] = \[3, 6, 6\] or .* shape \(6, 7\)"):
        layer(grid, grid, attention_mask=np.ones((6, 7), bool))
    grid = np.repeat(grid, 4, axis=2)
    with pytest.raises(ValueError, match=r"= \[3, 6, 4\]. Received: shape \(3, 6, 1\)"):
        layer(grid, grid, value_mask=np.ones((3, 6, 1), bool))


@pytest.mark.parametrize(
    "layer",
    [
        RelativeMultiHeadAttention(2, 3, max_relative_position=2),
        RelativeMultiHeadAttention(2, 3, max_relative_position=2, sliding_window=2),
        RelationMultiHeadAttention(2, 3, num_relations=4),
        LocalRelativeMultiHeadAttention(2, 3, block_length=2),
        RelativeMultiHeadAttention2D(2, 3, max_relative_position=2),
    ],
    ids=["dense", "window", "relations", "local", "grid"],
)
def test_padding_masks_of_one_row_apply_to_the_batch(layer, rng):
    x = rng.normal(size=(3, 120, 6)).astype("float32")
    mask = rng.integers(0, 2, (1, 120)).astype(bool)
    arguments = {}
    if isinstance(layer, RelationMultiHeadAttention):
        arguments["relations"] = np.zeros((120, 120), "int32")
    if isinstance(layer, RelativeMultiHeadAttention2D):
        x, mask = x.reshape(3, 12, 10, 6), mask.reshape(1, 12, 10)
    for name in ("query_mask", "value_mask", "key_mask"):
        repeated = np.repeat(mask, 3, axis=0)
        expected = layer(x, x, **{name: repeated}, **arguments)
        outputs = layer(x, x, **{name: mask}, **arguments)
        np.testing.assert_array_equal(outputs, expected)


def test_local_attention_treats_integer_query_masks_as_booleans():
    layer = LocalRelativeMultiHeadAttention(2, 3, block_length=2)
    mask = np.array([[0, 2, 255, 1, 0, 3, 1]] * 3)
    expected = layer(X, X, query_mask=mask > 0)
    np.testing.assert_array_equal(layer(X, X, query_mask=mask), expected)


def test_symbolic_calls_accept_positional_masks(layer):
    query, value = keras.Input((7, 6)), keras.Input((11, 6))
    masks = [keras.Input((length,), dtype="bool") for length in (7, 11)]
    model = keras.Model([query, value, *masks], layer(query, value, value, *masks))
    query_mask, value_mask = (np.arange(n) < np.array([[n], [4], [5]]) for n in (7, 11))
    expected = layer(X, Y, query_mask=query_mask, value_mask=value_mask)
    np.testing.assert_allclose(model([X, Y, query_mask, value_mask]), expected, atol=1e-6)
