"""Errors of the constructors and calls of layers.

Tables have the first words of the errors: the argument, and the shape or dtype that the layer
expects of it. `tests/test_checks.py` compares whole texts.
"""

import functools
import re

import keras
import numpy as np
import pytest
from layer_cases import CASES, random_inputs

from t2t_relpos import CausalLM, layers

X, Y = np.ones((3, 7, 6), "float32"), np.ones((3, 11, 6), "float32")
GRID = np.ones((3, 6, 4, 6), "float32")
INTS = functools.partial(np.zeros, dtype="int32")
# Caches of the attention layer and of the decoders, with room for 9 positions.
CACHE, DECODER_CACHE = np.zeros((3, 2, 9, 2, 5), "float32"), np.zeros((3, 2, 9, 2, 3), "float32")
OWN = {"self_attention_cache": DECODER_CACHE, "self_attention_cache_update_index": 0}
TARGETS = np.arange(7) < np.array([[5], [0], [7]])


def expected(words):
    """Expects a ValueError that starts with "Expected" and these words.

    Keras adds the name of the layer before it, and the arguments after it.
    """
    return pytest.raises(ValueError, match=r"(^|\[1m)Expected " + re.escape(words))


@functools.cache
def made(name):
    """Returns a built layer."""
    case = CASES[name.removesuffix("_with_edges")]
    if name == "relations_with_edges":
        layer = case.make(num_relations=None)
        edges = np.zeros((3, 7, 7, 5), "float32")
        layer(X, X, key_edges=edges, value_edges=edges)
        return layer
    layer = case.make()
    case.call(layer, random_inputs(case.input_names(), np.random.default_rng(0)))
    return layer


def call(name, **defaults):
    """Returns a function of arguments that calls a layer."""
    return lambda **arguments: made(name)(**defaults | arguments)


def attend_with_cache(**arguments):
    made("relative").attend_with_cache(X, X, **{"cache": CACHE, "update_index": 0} | arguments)


def unlike_depths(cache):
    layer = layers.RelativeMultiHeadAttention(2, 5, value_dim=3, max_relative_position=3)
    layer(X, X)
    layer.attend_with_cache(X, X, cache, 0)


CALLS = {
    "attention": call("relative", query=X, value=Y),
    "cache": attend_with_cache,
    "pair": unlike_depths,
    "not built": lambda method, **kw: getattr(CASES["relative"].make(name="mine"), method)(X, **kw),
    "v2": call("v2", query=X, value=X),
    "local": call("local", query=X, value=X),
    "2d": call("2d", query=GRID, value=GRID),
    "relations": call("relations", query=X, value=X),
    "edges": call("relations_with_edges", query=X, value=X),
    "encoder": call("encoder", inputs=X),
    "decoder": call("decoder", decoder_sequence=X, encoder_sequence=Y),
    "decoder only": call("decoder_only", decoder_sequence=X),
    "sinusoids": call("sinusoids", inputs=np.zeros((2, 3, 4))),
    "positions": lambda **kw: layers.LearnedPositionEmbedding(5)(
        **{"inputs": np.zeros((2, 3, 4))} | kw
    ),
    "tokens": call("tokens"),
    "packing": lambda method, x: getattr(layers.Packing(TARGETS), method)(x),
    "packed attention": lambda x: made("relative").attend_packed(x, x, layers.Packing(TARGETS)),
    "mask of packing": lambda **kw: layers.Packing(**{"mask": TARGETS} | kw),
}

VALUE = "`value` of shape [B, S, Dv] = [3, *, 6]"
RELATIONS = "`relations` of shape [B, T, S] = [3, 7, 7] or [T, S] = [7, 7]"
KEY_EDGES = "`key_edges` of shape [B, T, S, H] = [3, 7, 7, 5]"
PAIRS = "[B, T, S] = [3, 7, 11] or [T, S] = [7, 11] or [B, N, T, S] = [3, 2, 7, 11]"
PACKED = "`x` of shape [1, P, D] = [1, 12, *]"
OTHER_SEQUENCES = "the same sequences in every call: this layer was built with"
CHANNELS = "`relations` for each label channel of num_relations=(7,). Received: "
RANGE = "[-2147483647, 2147483648)"
OWN_CACHE = "`self_attention_cache` of shape [B, 2, S, N, H] = [3, 2, *, 2, 3]"
CROSS_CACHE = "`cross_attention_cache` of shape [B, 2, S, N, H] = [3, 2, 11, 2, 3]"
WRITTEN = {"cross_attention_cache_update_index": 0}
WRONG_CACHES = [
    np.zeros(shape, "float32")
    for shape in (
        *((2, 2, 9, 2, 3), (1, 2, 9, 2, 3), (3, 1, 9, 2, 3), (3, 2, 9, 4, 3), (3, 2, 9, 1, 3)),
        *((3, 2, 9, 2, 5), (3, 2, 2, 9, 3), (3, 2, 9, 6)),
    )
]
POSITIONS = [
    (
        {"inputs": INTS((2, 3))},
        "`inputs` of a floating-point dtype. Received: dtype int32. Embed token ids first",
    ),
    ({"positions": np.arange(2)}, "`positions` of shape [T] = [3] or [B, T] = [2, 3]"),
    ({"positions": np.arange(3.0)}, "`positions` of an integer dtype. Received: dtype float"),
    ({"positions": np.arange(3) * 1j}, "`positions` of an integer dtype. Received: dtype comp"),
    ({"positions": np.arange(3), "start": 1}, "either `start` or `positions`"),
    ({"start": 1.5}, "`start` of an integer dtype"),
    ({"start": INTS(3)}, "`start` of shape [] (a scalar) or [B] = [2]. Received: shape (3,)"),
    (
        {"start": INTS((1, 1))},
        "`start` of shape [] (a scalar) or [B] = [2]. Received: shape (1, 1)",
    ),
]
# The arguments of each of CALLS, and the first words of the error after "Expected".
ERRORS = {
    "attention": [
        ({"value": Y[:1]}, VALUE),
        ({"value": Y[0]}, VALUE),
        ({"value": Y[..., :5]}, VALUE),
        ({"value": None}, "`value` to be a tensor. Received: None. For self-attention"),
        ({"query": X[None]}, "`query` of shape [B, T, D] = [*, *, 6]"),
        (
            {"query": INTS((3, 7))},
            "`query` of shape [B, T, D] = [*, *, 6]. Received: shape (3, 7). Embed token ids first",
        ),
        ({"key": X}, "`key` of shape [B, S, Dk] = [3, 11, 6]"),
        ({"attention_mask": np.ones((2, 7, 11), bool)}, f"`attention_mask` of shape {PAIRS}"),
        ({"attention_mask": np.full((7, 11), -9)}, "`attention_mask` to be boolean"),
        ({"value_mask": np.ones((3, 1), bool)}, "`value_mask` of shape [B, S] = [3, 11]"),
        ({"query_offset": 2**40}, f"`query_offset` in {RANGE}"),
        ({"query_offset": 1.5}, "`query_offset` of an integer dtype"),
        ({"query_offset": INTS(3)}, "`query_offset` of shape [] (a scalar). Received: shape (3,)."),
        ({"query_positions": INTS(1)}, "`query_positions` of shape [T] = [7] or [B, T] = [3, 7]"),
        (
            {"key_positions": INTS((3, 7))},
            "`key_positions` of shape [S] = [11] or [B, S] = [3, 11]",
        ),
        ({"key_positions": np.arange(11.0)}, "`key_positions` of an integer dtype"),
        ({"query_offset": 1, "query_positions": INTS(7)}, "either `query_offset` or `query_posi"),
    ],
    "v2": [({"value": X[:1]}, VALUE)],
    "local": [({"value": X[:, :5]}, "`value` of shape [B, T, Dv] = [3, 7, 6]")],
    "2d": [
        ({"query": X}, "`query` of shape [B, height, width, D] = [*, *, *, 6]"),
        ({"value": GRID[:, :4]}, "`value` of shape [B, height, width, Dv] = [3, 6, 4, 6]"),
        (
            {"attention_mask": np.ones((6, 7), bool)},
            "`attention_mask` of shape [B, T, S] = [3, 24,",
        ),
        (
            {"value_mask": np.ones((3, 6, 1), bool)},
            "`value_mask` of shape [B, height, width] = [3, 6",
        ),
    ],
    "relations": [
        ({"value": X[:1], "relations": INTS((7, 7))}, VALUE),
        ({}, f"{CHANNELS}0 instead of 1"),
        ({"relations": [INTS((7, 7))] * 2}, f"{CHANNELS}2 instead of 1"),
        ({"relations": np.zeros((7, 7))}, "`relations` of an integer dtype"),
        *(
            ({"relations": INTS(shape)}, RELATIONS)
            for shape in ((3, 1, 7, 7), (7,), (2, 7, 7), (7, 5))
        ),
        ({"relations": np.full((7, 7), 7)}, "labels in [-1, 7). Received: values from 7 to 7"),
        ({"relations": np.full((7, 7), -2)}, "labels in [-1, 7). Received: values from -2 to -2"),
    ],
    "edges": [
        *(
            ({"key_edges": np.zeros(shape, "float32")}, KEY_EDGES)
            for shape in ((3, 7, 7), (3, 7, 7, 11), (2, 7, 7, 5), (3, 7, 1, 5), (3, 1, 7, 5))
        ),
        ({"value_edges": np.zeros((3, 7, 7))}, KEY_EDGES.replace("key", "value")),
        ({"relations": INTS((7, 7))}, "no `relations`: the layer has no tables for labels"),
        ({}, "`relations` (with num_relations), `key_edges` or `value_edges`. Received: none"),
    ],
    "cache": [
        ({"cache": CACHE[:2]}, "`cache` of shape [B, 2, S, N, H] = [3, 2, *, 2, 5]"),
        ({"cache": CACHE.astype("int32")}, "`cache` of a floating-point dtype"),
        (
            {"causal": True},
            "`query_offset` with `update_index` and a causal mask or a sliding wind",
        ),
        ({"update_index": 1.5}, "`update_index` of an integer dtype"),
        ({"update_index": INTS(3)}, "`update_index` of shape [] (a scalar). Received: shape (3,)"),
        (
            {"update_index": -2},
            "the first of 7 positions in [0, 3). Received: values from -2 to -2",
        ),
        ({"update_index": 3}, "the first of 7 positions in [0, 3). Received: values from 3 to 3"),
    ],
    "pair": [
        ({"cache": CACHE}, "`cache` to be a pair "),
        ({"cache": None}, "`cache` to be a pair "),
        (
            {"cache": (CACHE[:, 0, ..., :3], CACHE[:, 0])},
            "`cache[0]` of shape [B, S, N, H] = [3, *,",
        ),
        (
            {"cache": (CACHE[:, 0], CACHE[:, 1, :4])},
            "`cache[1]` of shape [B, S, N, Hv] = [3, 9, 2, 3",
        ),
    ],
    "not built": [
        ({"method": "project_cache"}, "a built layer. Received: mine, which has no weights"),
        ({"method": "attend_with_cache", "value": X, "cache": CACHE}, "a built layer"),
    ],
    "decoder": [
        ({"encoder_sequence": Y[:1]}, VALUE),
        ({"encoder_sequence": None}, f"{OTHER_SEQUENCES} attention to an encoder"),
        (
            {"encoder_sequence": None, **OWN, "cross_attention_cache": DECODER_CACHE, **WRITTEN},
            f"{OTHER_SEQUENCES} attention to an encoder",
        ),
        *(
            ({f"{name}_cache_update_index": 0}, f"`{name}_cache` with `{name}_cache_update_index`")
            for name in ("self_attention", "cross_attention")
        ),
        *(
            ({**OWN, "cross_attention_cache": cache, **written}, CROSS_CACHE)
            for written in ({}, WRITTEN)
            for cache in (DECODER_CACHE, *WRONG_CACHES)
        ),
        *(
            (
                OWN
                | {
                    "self_attention_cache": cache,
                    "cross_attention_cache": DECODER_CACHE,
                    **written,
                },
                OWN_CACHE,
            )
            for written in ({}, WRITTEN)
            for cache in WRONG_CACHES
        ),
    ],
    "decoder only": [
        ({"encoder_sequence": X}, f"{OTHER_SEQUENCES}out attention to an encoder"),
        ({**OWN, "cross_attention_cache": DECODER_CACHE}, f"{OTHER_SEQUENCES}out attention to an"),
        ({"return_attention_scores": True}, "`encoder_sequence` and no caches with "),
        ({"return_attention_scores": True, **OWN}, "`encoder_sequence` and no caches with "),
        ({"packing": layers.Packing(TARGETS), **OWN}, "no packing with caches. Received: both"),
        (OWN | {"self_attention_cache": {}}, "`self_attention_cache` to be a tensor or an array"),
        *(
            (
                {"decoder_padding_mask": np.ones((3, length), bool), **OWN},
                "`decoder_padding_mask` of shape [B, S] = [3, 9]",
            )
            for length in (1, 7)
        ),
    ],
    "sinusoids": POSITIONS,
    "positions": [
        *POSITIONS,
        ({"positions": [0, 5, 1]}, "positions in [0, 5). Received: values from 0 to 5"),
        ({"positions": [0, -1, 1]}, "positions in [0, 5). Received: values from -1 to 1"),
        ({"start": 3}, "at most max_length=5 positions. Received: 6"),
        ({"start": -1}, "`start` to be at least 0. Received: start=-1"),
        ({"inputs": np.zeros((1, 7, 3))}, "at most max_length=5 positions. Received: 7"),
        ({"inputs": keras.Input((7, 3))}, "at most max_length=5 positions. Received: 7"),
    ],
    "tokens": [
        ({"inputs": np.array([[7]])}, "token ids in [0, 7). Received: values from 7 to 7"),
        ({"inputs": np.array([[-1]])}, "token ids in [0, 7). Received: values from -1 to -1"),
        ({"inputs": np.array([[1.0]])}, "token ids of an integer dtype"),
    ],
    "packing": [
        ({"method": "pack", "x": X[:2]}, "`x` of shape [B, T, D] = [3, 7, *]"),
        ({"method": "unpack", "x": X}, PACKED),
        (
            {"method": "merge_heads", "x": X[:, None, 1:]},
            "`x` of shape [B, N, T, H] = [3, *, 7, *]",
        ),
    ],
    "packed attention": [({"x": X}, PACKED)],
    "mask of packing": [
        ({"mask": X}, "`mask` of shape [B, T]. Received: shape (3, 7, 6)"),
    ],
}


@pytest.mark.parametrize(
    "name, arguments, words", [(name, *row) for name, rows in ERRORS.items() for row in rows]
)
def test_calls_report_invalid_arguments(name, arguments, words):
    with expected(words):
        CALLS[name](**arguments)


@pytest.mark.parametrize("row", POSITIONS)
@pytest.mark.parametrize("name", ["sinusoids", "positions"])
def test_symbolic_positions_report_invalid_arguments(name, row):
    with expected(row[1]):
        CALLS[name](**{"inputs": keras.Input((3, 4), batch_size=2)} | row[0])


@pytest.mark.parametrize("name", CASES)
def test_ragged_inputs(name, tf, rng):
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


def test_ragged_arguments_of_methods_and_functional_models(tf):
    layer = made("relative")
    ragged = tf.RaggedTensor.from_tensor(tf.convert_to_tensor(X), lengths=[7, 3, 2])
    calls = {
        "project_query": lambda: layer.project_query(ragged),
        "project_cache": lambda: layer.project_cache(ragged),
        "query": lambda: layer.attend_with_cache(ragged, X, CACHE, 0, query_offset=0),
        "value": lambda: layer.attend_with_cache(X, ragged, CACHE, 0, query_offset=0),
        "functional": lambda: layer(*[keras.Input((None, 6), ragged=True)] * 2),
        "packing": lambda: layers.Packing(ragged[..., 0] > 0),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match="to be dense. Received: a RaggedTensor"):
            call()


BY_SEQUENCE = {"query_mask": "[B, T]", "value_mask": "[B, S]", "key_mask": "[B, S]"}
# The masks of each layer, and their axes.
MASKS = {
    **dict.fromkeys(("relative", "v2"), BY_SEQUENCE),
    "local": dict.fromkeys(BY_SEQUENCE, "[B, T]"),
    "relations": BY_SEQUENCE | {"attention_mask": "[B, T, S]"},
    "2d": dict.fromkeys(BY_SEQUENCE, "[B, height, width]"),
    "encoder": {"padding_mask": "[B, S]", "attention_mask": "[B, T, S]"},
    "decoder": {
        f"{side}_{kind}_mask": axes
        for side in ("decoder", "encoder")
        for kind, axes in (("padding", "[B, S]"), ("attention", "[B, T, S]"))
    },
}


@pytest.mark.parametrize("name, mask", [(name, mask) for name in MASKS for mask in MASKS[name]])
def test_masks_are_boolean_and_of_the_lengths_of_their_sequences(name, mask, rng):
    case = CASES[name]
    inputs = random_inputs(case.input_names(), rng)
    query, value = (inputs[x].shape[:-1] for x in (case.inputs.split() * 2)[:2])
    shape = query if mask.startswith(("query", "padding", "decoder")) else value
    if "attention" in mask:
        shape = (*query, *(query if mask.startswith("decoder") else value)[1:])

    def call(values):
        case.call(functools.partial(made(name), **{mask: values}), inputs)

    call(np.ones(shape, bool))
    with expected(f"`{mask}` to be boolean, True = attend. Received: dtype float32"):
        call(np.zeros(shape, "float32"))
    additive = np.zeros(shape, "int32")
    additive[..., -1] = -10_000
    with expected(f"`{mask}` to be boolean, True = attend. Received: dtype int32 with values from"):
        call(additive)
    # Size 1 is broadcast in masks of pairs.
    for length in (shape[-1] + 1, 2 if "attention" in mask else 1):
        with expected(f"`{mask}` of shape {MASKS[name][mask]}"):
            call(np.ones((*shape[:-1], length), bool))


DISTANCE = "`max_relative_position`"
# (layer, setting, invalid values, the first words of the error after "Expected")
SETTINGS = [
    *(
        (name, setting, [0, -7, 2.5, True, "eleven"], f"`{setting}` to be a positive integer")
        for name, setting in (
            *(("relative", "num_heads"), ("relative", "value_dim"), ("relative", "sliding_window")),
            *(("local", "block_length"), ("relations", "num_relations")),
            *(("position_embedding", "depth"), ("learned_positions", "max_length")),
            *(
                ("encoder", "num_heads"),
                ("encoder", "intermediate_dim"),
                ("encoder", "sliding_window"),
            ),
        )
    ),
    ("relations", "num_relations", [(11, 0)], "`num_relations` to be a positive integer"),
    ("relations", "num_relations", [()], "`num_relations` to be a number of labels, or one for"),
    *((name, "max_relative_position", [None], DISTANCE) for name in ("relative", "encoder")),
    *(
        (name, "dropout", [1.0, "a"], "`dropout` to be at least 0 and")
        for name in ("relative", "encoder")
    ),
    ("relative", "attention_axes", [(1, 2)], "`attention_axes` to be None or 1"),
]


@pytest.mark.parametrize("name, setting, values, words", SETTINGS)
def test_constructors_report_invalid_settings(name, setting, values, words):
    for value in values:
        with expected(words):
            CASES[name].make(**{setting: value})


def test_other_settings_that_constructors_report():
    for size in (8.0, 0, -3, True, "8", (), (3, 0), [2, 1.5]):
        with pytest.raises(
            ValueError, match="^Invalid `output_shape`: expected a positive integer"
        ):
            CASES["relative"].make(output_shape=size)
    with expected("use_key_table or use_value_table with `num_relations`"):
        CASES["relations"].make(use_key_table=False, use_value_table=False)


# (layer, shapes, the first words of the error after "Expected")
SHAPES = [
    ("relative", [(2, 4, 8), (2, 2, 8), (2, 1, 7)], "`key` of shape [B, S, Dk] = "),
    ("relative", [(2, 4, 8), (2, 2, 8), (2,)], "`key` of shape [B, S, Dk] = "),
    ("relative", [(2, 4, 8), (3, 2, 8)], "`value` of shape [B, S, Dv] = [2, *, "),
    ("relations", [(2, 4, 4, 8), (2, 4, 8)], "`query` of shape [B, T, D]"),
    ("local", [(2, 4, 8), (2, 5, 8)], "`value` of shape [B, T, Dv] = "),
    ("2d", [(2, 4, 5, 8), (2, 4, 6, 8)], "`value` of shape [B, height, width, Dv] = "),
    ("encoder", [(2, 4, 7)], "`num_heads` to divide the width of the inputs"),
    ("decoder", [(2, 4, 8), (3, 4, 8)], "`"),
    ("decoder", [(2, 3, 4, 8)], "`decoder_sequence` of shape [B, T, D]"),
    ("position_embedding", [(4,)], "`query` of shape [B, length, ...]"),
    ("learned_positions", [(2, 32, 8)], "at most max_length=31 positions. Received: 32"),
    ("sinusoids", [(8,)], "`inputs` of shape [batch, ..., length, width]"),
]


@pytest.mark.parametrize("name, shapes, words", SHAPES)
def test_output_shapes_report_what_calls_report(name, shapes, words):
    with expected(words):
        CASES[name].make().compute_output_shape(*shapes)
    with expected(words):
        CASES[name].make()(*map(np.ones, shapes))


@pytest.mark.parametrize(
    "name, words",
    [
        ("relative", "`query` of shape [B, T, D] = [*, *, 6]"),
        ("encoder", "`inputs` of shape [B, T, D] = [*, *, 6]"),
    ],
)
def test_output_shapes_report_another_width_than_the_built_one(name, words):
    with expected(words):
        made(name).compute_output_shape(*[(2, 4, 8)] * len(CASES[name].inputs.split()))


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_symbolic_relations_report_their_dtype_and_shape(dtype):
    nodes = keras.Input((None, 6))
    with expected(f"`relations` of an integer dtype. Received: dtype {dtype}"):
        made("relations")(nodes, nodes, relations=keras.Input((None, None), dtype=dtype))
    with expected("`relations` of shape [B, T, S]"):
        made("relations")(nodes, nodes, relations=keras.Input((None, None, 2), dtype="int32"))


@pytest.mark.parametrize("name", ["relative", "v2", "2d", "local", "relations"])
@pytest.mark.parametrize("arguments, named", [((X,), {}), ((), {"query": X})])
def test_attention_without_a_value(name, arguments, named):
    message = r"`query` and `value`. For self-attention, .* as both: layer\(x, x\)."
    with pytest.raises(TypeError, match=message):
        made(name)(*arguments, **named)


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(layers.RelativeMultiHeadAttention, 2, 3),
        functools.partial(layers.RelativeMultiHeadAttentionV2, 2, 3, 4),
        functools.partial(layers.TransformerEncoder, 7, 2),
        functools.partial(layers.TransformerDecoder, 7, 2),
        functools.partial(CausalLM, 11, 1, 6, 7, 2),
    ],
    ids=lambda make: make.func.__name__,
)
def test_a_misspelled_argument_has_a_suggestion(make):
    message = "no argument 'max_relative_positions'. Did you mean 'max_relative_position'?"
    with pytest.raises(ValueError, match=re.escape(f"{make.func.__name__} has {message}")):
        make(max_relative_positions=8)
    with pytest.raises(ValueError, match="Unrecognized keyword arguments .* {'other': 8}"):
        make(other=8)
