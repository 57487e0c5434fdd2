"""Tests of the checks of arguments: calls and the texts of their errors."""

import numpy as np
import pytest

from t2t_relpos import _checks

MASK = np.ones((3, 7), bool)
SIZES = {"B": 3, "T": 7, "S": 11, "N": 2}
PAIRS = "B T S | T S | B N T S"
BOOLEAN = (
    "Convert an additive bias (0 and -1e9) with `bias == 0`, and a mask of 1.0 and 0.0 with "
    "`mask > 0`."
)

# (function, arguments, text of the error)
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
        "Expected `mask` to be a tensor or an array of shape [B, T]. Received: list. Convert it "
        "with numpy.asarray.",
    ),
    (
        _checks.check,
        (np.zeros((3, 7), "float32"), "mask", "B T", "mask"),
        f"Expected `mask` to be boolean, True = attend. Received: dtype float32. {BOOLEAN}",
    ),
    (
        _checks.check,
        (np.full((3, 7), -(10**9)), "mask", "B T", "mask"),
        "Expected `mask` to be boolean, True = attend. Received: dtype int64 with values from "
        f"-1000000000 to -1000000000. {BOOLEAN}",
    ),
    (
        _checks.check,
        (MASK, "labels", "B T", "int"),
        "Expected `labels` of an integer dtype. Received: dtype bool. Cast them with "
        "keras.ops.cast(..., 'int32').",
    ),
    (
        _checks.check,
        (MASK, "cache", "B T", "float"),
        "Expected `cache` of a floating-point dtype. Received: dtype bool.",
    ),
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
        "Expected `query_positions` in [-2147483647, 2147483648). Received: values from "
        "1099511627776 to 1099511627776.",
    ),
    (
        _checks.in_range,
        (np.array([3, 5]), "labels", 0, 5, "-1 means no edge."),
        "Expected labels in [0, 5). Received: values from 3 to 5. -1 means no edge.",
    ),
    (
        _checks.token_ids,
        (np.array([[-1, 2]]), 7),
        "Expected token ids in [0, 7). Received: values from -1 to 2. Use the tokenizer of the "
        "model, or a larger vocab_size.",
    ),
    (
        _checks.query_offset,
        ([0, 1],),
        "Expected `query_offset` to be an int, a scalar tensor, or an int tensor [B]. Received: "
        "[0, 1].",
    ),
    (
        _checks.query_offset,
        (np.zeros((2, 1), int),),
        "Expected `query_offset` of shape [] (a scalar) or [B]. Received: shape (2, 1).",
    ),
    (
        _checks.query_offset,
        (0.5,),
        "Expected `query_offset` of an integer dtype. Received: dtype float64. Cast them with "
        "keras.ops.cast(..., 'int32').",
    ),
    (
        _checks.query_offset,
        (2**40,),
        "Expected `query_offset` in [-2147483647, 2147483648). Received: values from "
        "1099511627776 to 1099511627776.",
    ),
    (
        _checks.positive_int,
        (0, "num_heads"),
        "Expected `num_heads` to be a positive integer. Received: num_heads=0. Pass an int of 1 "
        "or more as argument `num_heads`.",
    ),
    (
        _checks.rate,
        (1.0, "dropout"),
        "Expected `dropout` to be at least 0 and below 1. Received: dropout=1.0",
    ),
    (
        _checks.max_relative_position,
        (-1,),
        "Expected `max_relative_position` (K, the clipping distance) to be an integer from 0 to "
        "1,000,000. Received: max_relative_position=-1. Pass it by keyword. Values from 8 to 32 "
        "suit translation; 0 gives all positions the same embedding.",
    ),
]


@pytest.mark.parametrize("function, arguments, text", ERRORS)
def test_errors(function, arguments, text):
    with pytest.raises(ValueError) as error:
        function(*arguments)
    assert str(error.value) == text


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


def test_required_arguments():
    with pytest.raises(ValueError, match=r"shape \[B, T\]. Received: NoneType. Pass ids"):
        _checks.check(None, "ids", "B T", advice="Pass ids.", required=True)
