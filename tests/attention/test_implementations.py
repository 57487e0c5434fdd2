"""Compares outputs and gradients of every implementation with the definition of attention."""

import functools
import gc
import itertools
import re
import weakref

import keras
import numpy as np
import pytest
from definition import attention_of_pairs
from gradients import gradients_of_squared_gradients, output_and_gradients
from keras import ops
from seeds import FixedSeed

from t2t_relpos.attention import (
    attend,
    combine_masks,
    dispatch,
    relative_ids_from_positions,
)
from t2t_relpos.attention.band import Distances
from t2t_relpos.attention.call import AttentionCall
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.gather import pair_index

BACKEND = keras.backend.backend()
NAMES = [row.name for row in dispatch.TABLE if dispatch.NO_TABLES not in row.requirements]
NAMES += ["blocks in a loop", "by_id with a gather", "flash without a kernel"]
TENSORS = ("query", "key", "value", "key_table", "value_table")


SQUARE = (19, 19, 2)
# The lengths (T, S, K) include 1, T < 2K + 1, T >> 2K + 1, T != S, and whole chunks of 16 keys.
LENGTHS = [(1, 1, 2), (3, 3, 5), (7, 7, 3), (7, 7, 0), SQUARE, (5, 11, 3), (1, 13, 3)]
LENGTHS += [(29, 31, 2), (19, 32, 2)]
MASKS = [
    *((SQUARE, masks) for masks in ("keys", "pairs", "pairs of rank 3", "keys and pairs")),
    *((lengths, "keys and pairs") for lengths in ((19, 29, 3), (3, 5, 5))),
]
# They include keys on both sides, and on one side, near and far.
OFFSETS = [((11, 23, 2), 5), ((23, 11, 3), 0), ((5, 7, 2), -9), ((3, 5, 1), 17), ((1, 13, 3), 4)]
MISSING = [("key_table",), ("value_table",), ("key_table", "value_table")]
WINDOWS = [(SQUARE, 1), ((37, 41, 2), 4), ((37, 37, 3), 12), ((31, 31, 3), 50)]
WINDOWS += [((37, 41, (5, 1)), 3), ((37, 37, (1, 5)), 12)]
# Lengths of 1, less than left, less than right, and more than left + right.
PAIRS = [(19, 19, (6, 2)), (19, 19, (2, 6)), (19, 19, (0, 3)), (19, 19, (3, 0)), (1, 1, (6, 2))]
PAIRS += [(5, 5, (8, 3)), (5, 5, (3, 8)), (19, 32, (15, 16)), (5, 31, (6, 2)), (31, 5, (2, 6))]
PAIRS += [(37, 37, (64, 8)), (43, 45, (24, 3)), (21, 19, (0, 1))]
PAIR = PAIRS[0]
CASES = [
    {**case, "causal": causal}
    for causal in (False, True)
    for case in (
        *({"lengths": lengths} for lengths in LENGTHS),
        *({"lengths": lengths, "masks": masks} for lengths, masks in MASKS),
        *({"lengths": lengths, "query_offset": offset} for lengths, offset in OFFSETS),
        *({"lengths": SQUARE, "missing": missing} for missing in MISSING),
        {"lengths": SQUARE, "table_per_head": True},
        {"lengths": SQUARE, "table_per_head": True, "heads": 1},
        *({"lengths": lengths, "sliding_window": window} for lengths, window in WINDOWS),
        *({"lengths": lengths} for lengths in PAIRS),
        {"lengths": PAIR, "masks": "keys and pairs"},
        {"lengths": PAIR, "missing": ("key_table",)},
        {"lengths": PAIR, "table_per_head": True},
        {"lengths": (5, 31, (2, 6)), "table_per_head": True},
        *({"lengths": (11, 23, (5, 1)), "query_offset": offset} for offset in (5, -9, 40)),
        {"lengths": (23, 11, (1, 5)), "query_offset": 0, "masks": "keys"},
        # Distances that no pair has.
        *({"lengths": (11, 23, (40, 50)), "query_offset": offset} for offset in (5, -9, 30)),
        {"lengths": (21, 23, (50, 40)), "table_per_head": True, "sliding_window": 4},
        {"lengths": (29, 31, 2), "sliding_window": 4, "masks": "keys and pairs"},
        {"lengths": (11, 23, 2), "sliding_window": 3, "query_offset": 5},
        {"lengths": (23, 11, 3), "sliding_window": 5, "query_offset": 0},
    )
]
# Rows that share most of their code with another one. In the fast tests, they have every case in
# one of its two directions.
TWINS = "rematerialized_blocks", "blocks in a loop", "flash without a kernel", "by_id with a gather"
CASES_OF_TWINS = CASES[: len(CASES) // 2 : 2] + CASES[len(CASES) // 2 + 1 :: 2]
CASES += [{"lengths": lengths, "positions": True} for lengths in (SQUARE, PAIR, (5, 31, (2, 6)))]


def cases_of_rows():
    """Returns the parameters (case, row)."""
    found = []
    for case, name in itertools.product(CASES, NAMES):
        marks = [pytest.mark.slow] if name in TWINS and case not in CASES_OF_TWINS else []
        found.append(pytest.param(case, name, id=f"{name}-{case}", marks=marks))
    return found


class Problem:
    """Random tensors, other arguments of `attend`, and the expected outputs and gradients.

    Args:
        widest: dtype of the tensors.
        lengths: (T, S, K), or (T, S, (left, right)).
        masks: an entry of MASKS, or "" for none.
        positions: whether positions are random, and given as `relative_ids`.
        missing: names of absent tables.
        rounded_to: dtype to which the tensors are rounded, or None. The cotangent is 1 then.
        **options: other arguments of `attend`.
    """

    def __init__(
        self,
        widest,
        lengths,
        masks="",
        missing=(),
        heads=3,
        table_per_head=False,
        positions=False,
        rounded_to=None,
        **options,
    ):
        rng = np.random.default_rng(20180401)
        length_q, length_k, k = lengths
        self._distances = Distances.of(k)
        if isinstance(k, tuple):
            options["max_relative_position"] = k
        rows = self._distances.num_ids
        table = (heads, rows, 5) if table_per_head else (rows, 5)
        shapes = [(2, heads, length, 5) for length in (length_q, length_k, length_k)] + 2 * [table]
        arrays = [rng.normal(size=shape).astype(rounded_to or widest) for shape in shapes]
        arrays = zip(TENSORS, arrays, strict=True)
        self.arrays = {name: x.astype(widest) for name, x in arrays if name not in missing}
        self.cotangent = 1.0 if rounded_to else rng.normal(size=shapes[0])
        offset = options.get("query_offset", length_k - length_q)
        self._positions = np.arange(length_q) + offset, np.arange(length_k)
        if positions:
            self._positions = [rng.integers(0, 50, x.shape) for x in self._positions]
            ids = relative_ids_from_positions(*self._positions, k)
            options["relative_ids"] = ops.convert_to_numpy(ids)
        distances = self._positions[1] - self._positions[0][:, None]
        self._valid = np.ones((2, 1, length_q, length_k), bool)
        self.options = options
        if "sliding_window" in options:
            self._valid &= np.abs(distances) < options["sliding_window"]
        if options.get("causal"):
            self._valid &= distances <= 0
        if "keys" in masks:
            options["key_mask"] = rng.random((2, length_k)) < 0.6
            self._valid &= options["key_mask"][:, None, None]
        if "pairs" in masks:
            mask = rng.random((2, 1, length_q, length_k)) < 0.5
            mask[0, :, 1] = False  # a fully masked query
            self._valid &= mask
            options["mask"] = mask[:, 0] if "rank 3" in masks else mask

    @functools.cached_property
    def expected(self):
        return output_and_gradients(self._by_definition, self.arrays, self.cotangent)

    @functools.cached_property
    def expected_second_derivatives(self):
        return second_derivatives("by_id", self)

    def _by_definition(self, arrays):
        queries, keys = self._positions
        outputs, _ = attention_of_pairs(
            **arrays,
            max_relative_position=self._distances,
            query_positions=queries,
            key_positions=keys,
            mask=self._valid,
        )
        return outputs


@pytest.fixture(scope="session")
def problem_of(precision):
    """Returns `problem_of(**case)`: a `Problem`, whose expected values are computed once."""
    return functools.cache(functools.partial(Problem, precision.dtype))


@pytest.fixture(params=NAMES)
def implementation(request, small_block_implementations):
    implementation = small_block_implementations[request.param]
    platforms = "TENSORFLOW_ON_CPU TENSORFLOW_WITHOUT_XLA HAS_FLASH_KERNEL HAS_FUSED_KERNEL".split()
    for platform in (getattr(dispatch, name) for name in platforms):
        if platform in implementation.requirements:
            if not platform.holds(AttentionCall(23, 23, 2)):
                pytest.skip(f"{implementation.name} requires {platform.text}")
    return implementation


def run(implementation, tensors, **options):
    """Returns the outputs of an implementation. Skips the test if it does not support the call."""
    lengths = tensors["query"].shape[2], tensors["key"].shape[2]
    table = tensors.get("key_table", tensors.get("value_table"))
    k = None
    if table is not None:
        k = options.get("max_relative_position", (table.shape[-2] - 1) // 2)
    names = "causal", "query_offset", "sliding_window"
    described = {name: options[name] for name in (*names, "dropout") if name in options}
    if "mask" in options:
        described["mask"] = combine_masks(options["mask"])
    if "relative_ids" in options:
        described["ids_rank"] = 2
    described |= {name: ops.convert_to_tensor(x) for name, x in tensors.items()}
    unmet, _ = implementation.match(
        AttentionCall.from_arguments(*lengths, k, **described), ignore_preferences=True
    )
    if unmet is not None:
        pytest.skip(f"{implementation.name} requires {unmet.text}")
    return attend(**tensors, implementation=implementation, return_weights=False, **options)[0]


@pytest.mark.parametrize("case, implementation", cases_of_rows(), indirect=["implementation"])
def test_outputs_and_gradients_equal_the_definition(case, implementation, problem_of, assert_close):
    problem = problem_of(**case)
    found = output_and_gradients(
        lambda xs: run(implementation, xs, **problem.options), problem.arrays, problem.cotangent
    )
    assert_close(found, problem.expected)


def test_fully_masked_queries_have_zero_gradients(implementation, problem_of):
    mask = np.zeros((19, 19), bool)
    outputs, gradients = output_and_gradients(
        lambda xs: run(implementation, xs, mask=mask), problem_of(SQUARE).arrays
    )
    for x in (outputs, *gradients.values()):
        np.testing.assert_array_equal(x, 0)


def test_empty_batch_has_zero_gradients(implementation, problem_of):
    arrays = {n: x[:0] if x.ndim == 4 else x for n, x in problem_of(SQUARE).arrays.items()}
    outputs, gradients = output_and_gradients(lambda xs: run(implementation, xs), arrays)
    assert outputs.shape == (0, 3, 19, 5)
    assert {n: g.shape for n, g in gradients.items()} == {n: x.shape for n, x in arrays.items()}
    assert not any(gradients[name].any() for name in ("key_table", "value_table"))


# Tolerances are relative to the largest entry. Expected results are computed from the same rounded
# inputs in the widest dtype. In float32, oneDNN corrupts memory when it multiplies 101 positions of
# one head with a table (tensorflow#117700).
@pytest.mark.parametrize(
    "causal, dtype, length, tolerance",
    [
        (False, "float32", 101, 1e-5),
        (True, "float32", 101, 1e-5),
        (False, "bfloat16", 37, 6e-2),
        (True, "float16", 37, 1e-2),
    ],
)
def test_error_in_low_precision(
    causal, dtype, length, tolerance, implementation, problem_of, precision
):
    problem = problem_of((length, length, 3), causal=causal, heads=1, rounded_to=dtype)

    def in_dtype(xs):
        xs = {name: ops.cast(x, dtype) for name, x in xs.items()}
        outputs = run(implementation, xs, causal=causal)
        assert keras.backend.standardize_dtype(outputs.dtype) == dtype
        return ops.cast(outputs, precision.dtype)

    found = output_and_gradients(in_dtype, problem.arrays)
    pairs = zip(*(keras.tree.flatten(results) for results in (found, problem.expected)))
    for actual, expected in pairs:
        assert np.abs(actual - expected).max() < tolerance * np.abs(expected).max()


class TestDropout:
    @pytest.mark.parametrize("causal", [False, True])
    def test_gradient_uses_the_dropout_mask_of_the_outputs(
        self, causal, implementation, problem_of, rng, precision
    ):
        problem = problem_of((17, 19, 2))
        arrays, cotangent = problem.arrays, problem.cotangent
        directions = {n: rng.normal(size=x.shape).astype(x.dtype) for n, x in arrays.items()}
        options = {"dropout": AttentionDropout(0.4, FixedSeed(7)), "causal": causal}
        _, gradients = output_and_gradients(
            lambda xs: run(implementation, xs, **options), arrays, cotangent
        )
        products = [gradients[name] * directions[name] for name in arrays]
        scale = sum(np.sum(np.abs(x)) for x in products)
        step, tolerance = (1e-6, 1e-7) if precision.dtype == "float64" else (3e-3, 3e-4)

        def loss(sign):
            xs = {n: (x + sign * step * directions[n]).astype(x.dtype) for n, x in arrays.items()}
            return np.sum(cotangent * ops.convert_to_numpy(run(implementation, xs, **options)))

        found = (loss(1) - loss(-1)) / (2 * step)
        assert abs(found - sum(map(np.sum, products))) < tolerance * scale

    def test_dropout_keeps_and_scales_weights_by_its_rate(self, implementation, problem_of):
        arrays = problem_of((61, 67, 3)).arrays
        dtype = arrays["query"].dtype
        arrays = arrays | {  # outputs equal the weights
            "value": np.broadcast_to(np.eye(67, dtype=dtype), (2, 3, 67, 67)),
            "value_table": np.zeros((7, 67), dtype),
        }
        dropped = run(implementation, arrays, dropout=AttentionDropout(0.3, FixedSeed(7)))
        dropped = ops.convert_to_numpy(dropped)
        weights = ops.convert_to_numpy(attend(**arrays)[1])
        kept = dropped != 0
        np.testing.assert_allclose(dropped[kept], weights[kept] / 0.7, rtol=1e-4)
        assert abs(kept.mean() - 0.7) < 0.01
        # Blocks, heads and batch entries have different masks.
        assert (kept[:, :, 7:] != kept[:, :, :-7]).mean() > 0.3
        assert (kept[0] != kept[1]).mean() > 0.3 and (kept[:, 0] != kept[:, 1]).mean() > 0.3

    def test_each_call_draws_another_mask(self, implementation, problem_of):
        dropout = AttentionDropout(0.5, keras.random.SeedGenerator(3))
        arrays = problem_of(SQUARE).arrays
        one, other = (
            ops.convert_to_numpy(run(implementation, arrays, dropout=dropout)) for _ in range(2)
        )
        assert np.abs(one - other).max() > 0.1


def second_derivatives(implementation, problem):
    """Returns a dict of the gradients of the sum of squares of a loss's gradients.

    Keys depend on queries, and PyTorch changes the outputs in place.
    """
    options = {"implementation": implementation, "return_weights": False} | problem.options

    def loss(xs):
        outputs, _ = attend(**xs | {"key": xs["key"] + ops.sin(xs["query"])}, **options)
        return ops.sum((outputs.mul_(2) if BACKEND == "torch" else outputs) ** 2)

    return gradients_of_squared_gradients(loss, problem.arrays)


@pytest.mark.parametrize(
    "case",
    [
        {"lengths": SQUARE},
        {"lengths": SQUARE, "masks": "keys", "causal": True},
        {"lengths": SQUARE, "sliding_window": 6},
    ],
    ids=str,
)
def test_second_derivatives_equal_autodiff_or_raise(case, implementation, problem_of, precision):
    """Blocks in a loop may raise: TensorFlow has no gradient of the slice update in its loop."""
    problem = problem_of(**case)
    try:
        found = second_derivatives(implementation, problem)
    except (LookupError, ValueError) as error:
        assert implementation.name == "blocks in a loop" and BACKEND != "torch"
        assert re.search("(?i)gradient|differentiat", str(error))
        return
    tolerance = 1e-9 if precision.dtype == "float64" else 1e-4
    for name, expected in problem.expected_second_derivatives.items():
        atol = tolerance * np.abs(expected).max()
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=atol, err_msg=name)


@pytest.mark.skipif(BACKEND != "torch", reason="only PyTorch frees memory by counting references")
def test_outputs_are_freed_without_garbage_collection(implementation, problem_of):
    import torch

    arrays = problem_of(SQUARE).arrays
    gc.disable()
    try:
        tensors = {name: torch.tensor(x, requires_grad=True) for name, x in arrays.items()}
        outputs = run(implementation, tensors)
        reference = weakref.ref(outputs)
        del outputs
        assert reference() is None
    finally:
        gc.enable()


def test_indices_of_many_table_rows_do_not_overflow():
    ids = ops.convert_to_tensor(np.full((1, 2049, 1), 7, "int32"))
    if keras.backend.backend() == "jax":
        message = f"at most 2147483647 products .* 2049 queries of all heads and {2**20} rows"
        with pytest.raises(ValueError, match=message):
            pair_index(ids, 2**20, 1)
        return
    index = ops.convert_to_numpy(pair_index(ids, 2**20, 1))
    assert index.min() == 7 and index[0, 0, 2048, 0] == 2048 * (2**20 + 1) + 7
