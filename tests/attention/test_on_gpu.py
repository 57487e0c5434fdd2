"""Attention in the dtypes and at the lengths of GPUs. `make gpu-check` runs it on a GPU."""

from typing import NamedTuple

import keras
import numpy as np
import pytest
from gradients import output_and_gradients
from keras import ops
from measurement import relative_error

from t2t_relpos.attention import attend, causal_mask, key_padding_mask, reference

pytestmark = pytest.mark.gpu
DEPTH, K, NAMES = 32, 16, ("query", "key", "value", "key_table", "value_table")
# bfloat16 has 8 bits. Gradients are sums of rounded products.
LIMITS = {"float32": (1e-4, 1e-4), "bfloat16": (2e-2, 4e-2)}


class Case(NamedTuple):
    """A call of `attend`. `padding` is the side of the padding, which is a third of a sequence."""

    length: int
    causal: bool = False
    padding: str | None = None
    dtype: str = "bfloat16"
    rematerialize: bool = True

    def key_mask(self):
        """Returns bool `[2, T]`, of which the second sequence has padding, or None."""
        if self.padding is None:
            return None
        mask = np.ones((2, self.length), bool)
        third = self.length // 3
        mask[1, slice(-third, None) if self.padding == "right" else slice(third)] = False
        return mask


# One length is shorter than K. None but 128 is a multiple of 64.
CASES = [
    Case(70, padding="right"),
    Case(70, causal=True, padding="right"),
    Case(1030),
    Case(1030, causal=True),
    Case(200, padding="left"),
    Case(128, causal=True),
    Case(9),
    Case(70, padding="right", rematerialize=False),
    Case(300, causal=True, padding="right", rematerialize=False),
    Case(130, padding="right", dtype="float32"),
    Case(130, causal=True, dtype="float32", rematerialize=False),
]


def draw(case, rng):
    """Returns arrays by name whose entries are numbers of the case's dtype."""
    shapes = 3 * [(2, 2, case.length, DEPTH)] + 2 * [(2 * K + 1, DEPTH)]
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    arrays[0] *= DEPTH**-0.5
    rounded = (ops.cast(ops.cast(x, case.dtype), "float32") for x in arrays)
    return {name: ops.convert_to_numpy(x) for name, x in zip(NAMES, rounded, strict=True)}


def expected_results(case, arrays, cotangent):
    """Returns the output and the gradients of the reference in float32 on the CPU."""
    key_mask, length = case.key_mask(), case.length

    def function(tensors):
        allowed = ops.ones((1, 1, length, length), "bool")
        if case.causal:
            allowed = ops.logical_and(allowed, causal_mask(length, length))
        if key_mask is not None:
            allowed = ops.logical_and(allowed, key_padding_mask(key_mask))
        bias = ops.where(allowed, 0.0, -1e9)
        q, k, v, *tables = (tensors[name] for name in NAMES)
        return reference.dot_product_attention_relative(q, k, v, bias, *tables, K)

    with keras.device("cpu:0"):
        return output_and_gradients(function, arrays, cotangent)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_equals_the_reference(case, rng):
    arrays = draw(case, rng)
    cotangent = rng.normal(size=arrays["query"].shape).astype("float32")

    def function(tensors):
        outputs, _ = attend(
            *(ops.cast(tensors[name], case.dtype) for name in NAMES),
            causal=case.causal,
            key_mask=case.key_mask(),
            return_weights=False,
            rematerialize=case.rematerialize,
        )
        assert keras.backend.standardize_dtype(outputs.dtype) == case.dtype
        return ops.cast(outputs, "float32")

    outputs, gradients = output_and_gradients(function, arrays, cotangent)
    expected, expected_gradients = expected_results(case, arrays, cotangent)
    of_outputs, of_gradients = LIMITS[case.dtype]
    assert relative_error(outputs, expected) <= of_outputs
    for name in NAMES:
        assert relative_error(gradients[name], expected_gradients[name]) <= of_gradients, name


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_attend_computes_on_the_device_of_the_query(device, rng):
    """Keras's default device is the other one."""
    if keras.backend.backend() != "torch":
        pytest.skip("requires PyTorch")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("requires a GPU")
    x = torch.tensor(rng.normal(size=(2, 3, 300, 8)), dtype=torch.float32)
    table = torch.tensor(rng.normal(size=(5, 8)), dtype=torch.float32)
    with keras.device("cpu"):
        expected, _ = attend(x, x, x, table, table, return_weights=False)
    with keras.device("cuda" if device == "cpu" else "cpu"):
        x, table = x.to(device), table.to(device)
        found, _ = attend(x, x, x, table, table, return_weights=False)
    assert found.device.type == device
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-2)
