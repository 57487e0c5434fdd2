"""Tests of the checks of arguments: calls and the texts of their errors."""

import functools
import re

import keras
import numpy as np
import pytest

from t2t_relpos import CausalLM, TransformerConfig, _checks, layers
from t2t_relpos.attention import (
    attend,
    explain,
    relative_ids,
    relative_ids_from_positions,
)

MASK = np.ones((3, 7), bool)
SIZES = {"B": 3, "T": 7, "S": 11, "N": 2}
PAIRS = "B T S | T S | B N T S"
BOOLEAN = "Expected `mask` to be boolean, True = attend. Received: dtype "
OFFSET = "Expected `query_offset` "

# (function, arguments, first words of the error)
ERRORS = [
    (
        _checks.check,
        (MASK, "key_mask", "B S", "mask", SIZES),
        "Expected `key_mask` of shape [B, S] = [3, 11]. Received: shape (3, 7).",
    ),
    (
        _checks.check,
        (np.ones((2, 7, 11), bool), "attention_mask", PAIRS, "mask", SIZES),
        "Expected `attention_mask` of shape [B, T, S] = [3, 7, 11] or [T, S] = [7, 11] or "
        "[B, N, T, S] = [3, 2, 7, 11]. Received: shape (2, 7, 11).",
    ),
    (
        _checks.check,
        (MASK, "cache", "B 2 S N H", None, {"N": 2, "S": None}),
        "Expected `cache` of shape [B, 2, S, N, H] = [*, 2, *, 2, *]. Received: shape (3, 7).",
    ),
    (
        _checks.check,
        ([1, 2], "mask", "B T"),
        "Expected `mask` to be a tensor or an array of shape [B, T]. Received: list.",
    ),
    (
        functools.partial(_checks.check, advice="Pass ids.", required=True),
        (None, "ids", "B T"),
        "Expected `ids` to be a tensor or an array of shape [B, T]. Received: NoneType. Pass ids.",
    ),
    (_checks.check, (np.zeros((3, 7)), "mask", "B T", "mask"), BOOLEAN + "float64. Convert an add"),
    (
        _checks.check,
        (np.full((3, 7), -(10**9)), "mask", "B T", "mask"),
        BOOLEAN + "int64 with values from -1000000000 to -1000000000.",
    ),
    (
        _checks.check,
        (np.full((3, 7), 255, "uint8"), "mask", "B T", "mask"),
        BOOLEAN + "uint8 with values from 255 to 255.",
    ),
    (
        _checks.check,
        (MASK, "labels", "B T", "int"),
        "Expected `labels` of an integer dtype. Received: dtype bool. Cast them",
    ),
    (_checks.check, (MASK, "cache", "B T", "float"), "Expected `cache` of a floating-point dtype."),
    (
        _checks.check_shape,
        ((3, 7), "query", "B T D", {"B": 3, "D": 6}),
        "Expected `query` of shape [B, T, D] = [3, *, 6]. Received: shape (3, 7).",
    ),
    (
        _checks.check_shape,
        ((3,), "update_index", ""),
        "Expected `update_index` of shape [] (a scalar). Received: shape (3,).",
    ),
    (
        _checks.positions,
        (np.arange(3), "query_positions", "T | B T", SIZES),
        "Expected `query_positions` of shape [T] = [7] or [B, T] = [3, 7]. Received: shape (3,).",
    ),
    (
        _checks.positions,
        (np.full(7, 2**40), "query_positions", "T | B T", SIZES),
        "Expected `query_positions` in [-2147483647, 2147483648). Received: values from 1099511",
    ),
    (
        _checks.in_range,
        (np.array([3, 5]), "labels", 0, 5, "-1 means no edge."),
        "Expected labels in [0, 5). Received: values from 3 to 5. -1 means no edge.",
    ),
    (
        _checks.token_ids,
        (np.array([[-1, 2]]), 7),
        "Expected token ids in [0, 7). Received: values from -1 to 2. Use the tokenizer",
    ),
    (_checks.query_offset, ([0, 1],), OFFSET + "to be an int, a scalar tensor, or an int tensor"),
    (_checks.query_offset, (True,), OFFSET + "to be an int, a scalar tensor, or an int tensor"),
    (_checks.query_offset, (np.zeros((2, 1), int),), OFFSET + "of shape [] (a scalar) or [B]."),
    (_checks.query_offset, (0.5,), OFFSET + "of an integer dtype. Received: dtype float64."),
    (_checks.query_offset, (2**40,), OFFSET + "in [-2147483647, 2147483648). Received: values"),
    (
        _checks.positive_int,
        (0, "num_heads"),
        "Expected `num_heads` to be a positive integer. Received: num_heads=0. Pass an int",
    ),
    (
        _checks.rate,
        (1.0, "dropout"),
        "Expected `dropout` to be at least 0 and below 1. Received: d",
    ),
    (
        _checks.max_relative_position,
        (-1,),
        "Expected `max_relative_position`, the clipping distance, to be an integer from 0 to "
        "1,000,000, or a pair of them, (left, right). Received: max_relative_position=-1.",
    ),
    *(
        (
            _checks.one_distance,
            (value, "this layer"),
            "Expected `max_relative_position` of this layer to be an integer from 1 to 1,000,000, "
            f"the distance on both sides. Received: max_relative_position={value!r}.",
        )
        for value in (0, (3, 2), [0, 0], (3, 3, 3), None, 2.5, True)
    ),
]


@pytest.mark.parametrize("function, arguments, text", ERRORS)
def test_errors(function, arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        function(*arguments)


def test_check_returns_the_known_sizes():
    sizes = _checks.check_shape((3, None, 6), "query", "B T D")
    assert sizes == {"B": 3, "D": 6}
    assert _checks.check_shape((3, 11, 4), "key", "B S Dk", sizes) == sizes | {"S": 11, "Dk": 4}
    assert _checks.check(None, "mask", "B T", "mask", sizes) == sizes


def test_axes_of_size_one_are_broadcast_only_if_allowed():
    _checks.check_shape((1, 7), "mask", "B T", SIZES, broadcast="B")
    _checks.check_shape((1, 1, 1, 11), "mask", PAIRS, SIZES, broadcast="B N T S")
    for shape, broadcast in (((3, 1), "B"), ((1, 7), "")):
        with pytest.raises(ValueError, match="Expected `mask` of shape"):
            _checks.check_shape(shape, "mask", "B T", SIZES, broadcast=broadcast)


@pytest.mark.parametrize("pair", [(3, 3), [3, 3], (np.int64(3), np.uint8(3))])
def test_a_pair_of_equal_distances_is_one_distance(pair):
    for found in (_checks.max_relative_position(pair), _checks.one_distance(pair, "this layer")):
        assert found == 3 and type(found) is int


HEADS = {"num_heads": 2, "key_dim": 3}
BLOCK = {"intermediate_dim": 5, "num_heads": 2}


def make_from_keras(max_relative_position):
    theirs = keras.layers.MultiHeadAttention(**HEADS)
    theirs.build((None, None, 6), (None, None, 6))
    convert = layers.RelativeMultiHeadAttention.from_multi_head_attention
    return convert(theirs, max_relative_position)


def attend_with_tables(max_relative_position):
    x, table = np.ones((1, 1, 3, 2), "float32"), np.ones((5, 2), "float32")
    return attend(x, x, x, table, max_relative_position=max_relative_position)


CLIPPING = {
    "layer": functools.partial(layers.RelativeMultiHeadAttention, **HEADS),
    "layer without tables": functools.partial(
        layers.RelativeMultiHeadAttention, **HEADS, use_key_table=False, use_value_table=False
    ),
    "from_multi_head_attention": make_from_keras,
    "embedding": functools.partial(layers.RelativePositionEmbedding, depth=3),
    "encoder": functools.partial(layers.TransformerEncoder, **BLOCK),
    "encoder without tables": functools.partial(
        layers.TransformerEncoder, **BLOCK, use_key_table=False, use_value_table=False
    ),
    "decoder": functools.partial(layers.TransformerDecoder, **BLOCK),
    "config": functools.partial(TransformerConfig, vocab_size=7),
    "sinusoidal": functools.partial(TransformerConfig, vocab_size=7, position="sinusoidal"),
    "language model": functools.partial(CausalLM, 7, 1, 6, 5, 2),
    "attend": attend_with_tables,
    "explain": functools.partial(explain, 7),
    "relative_ids": functools.partial(relative_ids, 5, 7),
    "relative_ids_from_positions": functools.partial(
        relative_ids_from_positions, np.arange(5), np.arange(7)
    ),
}
# Parts of tensor2tensor, which have one distance of at least 1.
ONE_DISTANCE = {
    "RelativeMultiHeadAttentionV2": functools.partial(layers.RelativeMultiHeadAttentionV2, **HEADS),
    "RelativeMultiHeadAttention2D": functools.partial(layers.RelativeMultiHeadAttention2D, **HEADS),
    "relative_v2=True": functools.partial(layers.TransformerDecoder, **BLOCK, relative_v2=True),
    "position='relative_v2'": functools.partial(
        TransformerConfig, vocab_size=7, position="relative_v2"
    ),
}
# An array is refused like a string: configurations have JSON types.
NO_DISTANCES = [-1, 2.0, 10**9, True, "64,8", "64,8,1", (), (64,), (-1, 8), (1.5, 2), (1, 2, 3)]
NO_DISTANCES += [(True, 2), ((1, 2), 3), [None, 2], np.array([64, 8])]


@pytest.mark.parametrize("name", [*CLIPPING, *ONE_DISTANCE])
def test_invalid_clipping_distances(name):
    message = "Expected `max_relative_position`.* to be an integer from . to 1,000,000,.*"
    for value in NO_DISTANCES:
        received = re.escape(f"Received: max_relative_position={value!r}.")
        # Keras converts errors of `from_config` to TypeError.
        with pytest.raises((ValueError, TypeError), match=message + received):
            (CLIPPING | ONE_DISTANCE)[name](max_relative_position=value)


@pytest.mark.parametrize("name", ONE_DISTANCE)
def test_parts_of_t2t_have_one_distance(name):
    make = ONE_DISTANCE[name]
    for value in (0, (0, 0), (3, 2), [0, 3]):
        message = f"of {re.escape(name)} to be an integer from 1 to .*, the distance on both sides"
        with pytest.raises(ValueError, match=message):
            make(max_relative_position=value)
    assert make(max_relative_position=(3, 3)).max_relative_position == 3
