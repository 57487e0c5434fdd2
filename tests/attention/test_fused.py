"""Compares `fused` with the definition of attention: `make test-fused`, or on a GPU.

Without a GPU, Triton's interpreter runs the kernel on tensors of the CPU. The environment variable
TRITON_INTERPRET has to be set before Triton is imported.
"""

import itertools
import os

import keras
import numpy as np
import pytest
from definition import attention_of_pairs
from gradients import gradients_of_squared_gradients, output_and_gradients
from keras import ops

from t2t_relpos import RelativeMultiHeadAttention
from t2t_relpos.attention import attend

if keras.backend.backend() != "torch":
    pytest.skip("the fused kernel is for PyTorch", allow_module_level=True)

import torch  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NAMES = ("query", "key", "value", "key_table", "value_table")
# Relative to the largest entry.
TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}
needs_kernel = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()),
    reason="requires TRITON_INTERPRET=1 and Triton (`make test-fused`), or a GPU",
)


@pytest.fixture(scope="module", autouse=True)
def kernel():
    """Makes blocks so small that short sequences have blocks in both tails and in the band."""
    if not INTERPRETED:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    from t2t_relpos import backend

    fused = backend.fused_kernel()
    small = fused.Sizes(queries=32, keys=16, warps=4, stages=1, step=16)
    transposed = small._replace(queries=16, keys=32)
    sizes = dict.fromkeys(fused.SIZES, (small, small))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "SIZES", sizes | {"key_gradient": (transposed, transposed)})
        patch.setattr(fused.kernels, "ROWS", tl.constexpr(16))
        # Some releases multiply the bits of bfloat16 as integers.
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", _multiply)
        yield


def _multiply(self, x, y, total, *_):
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def numbers(x):
        if x.dtype.scalar == tl.bfloat16:
            return (x.data.astype(np.uint32) << 16).view(np.float32)
        return x.data.astype(np.float32)

    product = np.matmul(numbers(x), numbers(y)).astype(total.data.dtype)
    return TensorHandle(product + total.data, total.dtype.scalar)


def draw(T=40, S=40, k=(3, 4), heads=2, depth=16, tables="shared shared", dtype="float32"):
    """Returns a dict of arrays by name that are rounded to a dtype."""
    rng = np.random.default_rng(20180401)
    rows = sum(k) + 1
    shapes = {"query": (2, heads, T, depth), "key": (2, heads, S, depth)}
    shapes["value"] = shapes["key"]
    for name, kind in zip(NAMES[3:], tables.split(), strict=True):
        if kind != "none":
            shapes[name] = (rows, depth) if kind == "shared" else (heads, rows, depth)
    arrays = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    arrays["query"] *= depth**-0.5
    rounded = {name: ops.cast(ops.cast(x, dtype), "float32") for name, x in arrays.items()}
    return {name: ops.convert_to_numpy(x) for name, x in rounded.items()}


def make_key_mask(S):
    """Returns bool `[2, S]`: a sequence without its first keys, and one of padding only."""
    mask = np.random.default_rng(1).random((2, S)) < 0.7
    mask[0, : S // 2] = mask[1] = False
    return mask


def check(k=(3, 4), causal=False, masked=False, offset=None, dtype="float32", layout=None, **sizes):
    """Compares outputs and gradients of the kernel with the definition."""
    arrays = draw(k=k, dtype=dtype, **sizes)
    length, num_keys = arrays["query"].shape[2], arrays["key"].shape[2]
    key_mask = make_key_mask(num_keys) if masked else None
    positions = np.arange(length) + (num_keys - length if offset is None else offset)
    allowed = np.ones((2, 1, length, num_keys), bool)
    if masked:
        allowed &= key_mask[:, None, None]
    if causal:
        allowed &= np.arange(num_keys) <= positions[:, None]
    cotangent = np.random.default_rng(2).normal(size=arrays["query"].shape)

    def by_kernel(xs):
        xs = {name: ops.cast(x, dtype) for name, x in xs.items()}
        for name in NAMES[:3] if layout else ():
            xs[name] = layout(xs[name])
        outputs, weights = attend(
            **xs, max_relative_position=k, causal=causal, key_mask=key_mask, query_offset=offset,
            return_weights=False, implementation="fused",
        )  # fmt: skip
        assert weights is None and keras.backend.standardize_dtype(outputs.dtype) == dtype
        return ops.cast(outputs, "float32")

    def by_definition(xs):
        return attention_of_pairs(
            **xs, max_relative_position=k, query_positions=positions,
            key_positions=np.arange(num_keys), mask=allowed,
        )[0]  # fmt: skip

    found, expected = (
        output_and_gradients(f, arrays, cotangent) for f in (by_kernel, by_definition)
    )
    for name in ("outputs", *arrays):
        x, y = (r[0] if name == "outputs" else r[1][name] for r in (found, expected))
        error = np.abs(x - y).max() / max(1, np.abs(y).max())
        assert error < TOLERANCES[dtype], name


CASES = {
    "bidirectional": {"T": 70, "S": 70, "k": (5, 3)},
    "causal": {"T": 70, "S": 70, "k": (5, 3), "causal": True},
    "T > S, masked": {"T": 70, "S": 45, "masked": True},
    "T < S, causal, masked": {"T": 33, "S": 90, "causal": True, "masked": True},
    "wide": {"T": 49, "S": 49, "k": (20, 2)},
    "right only": {"k": (0, 4)},
    "left only": {"k": (4, 0)},
    "K = 0": {"k": (0, 0)},
    "wider than the sequence": {"k": (60, 70)},
    "one query": {"T": 1, "S": 50, "causal": True},
    "offset before all keys": {"S": 56, "offset": -20},
    "offset, causal": {"S": 56, "offset": 30, "causal": True},
    "table per head, none": {"tables": "head none", "masked": True},
    "none, table per head": {"tables": "none head"},
    "bfloat16": {"dtype": "bfloat16", "depth": 20},
    "features before positions": {"layout": lambda x: x.mT.contiguous().mT},
}
MATRIX = [
    *({"T": t, "S": s, "causal": c, "masked": m}
      for (t, s), c, m in itertools.product([(64, 64), (70, 45), (33, 90)], *2 * [(False, True)])),
    *({"T": 49, "S": 49, "k": k, "causal": c}
      for k, c in itertools.product([(1, 1), (1, 0), (0, 1), (16, 16), (64, 8)], (False, True))),
    *({"S": 56, "offset": offset, "causal": c}
      for offset, c in itertools.product([-(2**30), -100, 0, 7, 200], (False, True))),
    *({"T": 50, "S": 70, "tables": tables, "causal": c, "masked": True} for tables, c in
      itertools.product(["head head", "shared head", "none shared"], (False, True))),
    *({"depth": depth, "heads": 1} for depth in (32, 64, 80, 96, 128)),
    *({"T": 50, "S": 70, "dtype": dtype, "causal": True, "masked": True}
      for dtype in ("float16", "bfloat16")),
]  # fmt: skip


@needs_kernel
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outputs_and_gradients(case):
    check(**case)


@needs_kernel
@pytest.mark.long
@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_outputs_and_gradients_of_all_combinations(case):
    check(**case)


@needs_kernel
@pytest.mark.parametrize("causal", [False, True])
def test_heads_of_one_projection(causal):
    """Layers have queries, keys and values as slices of `[B, T, N, H]`. They are not copied."""
    from t2t_relpos import backend

    x = torch.randn(3, 2, 40, 2, 16)
    tables, settings = [torch.randn(8, 16)] * 2, [3, 4, 0, int(causal)]
    vectors = x.permute(1, 3, 2, 0, 4).contiguous().unbind(3)
    separate = [each.contiguous() for each in vectors]
    kernel = backend.fused_kernel()
    read = kernel._prepare(*vectors, *tables, None, settings)[0]
    assert [each.data_ptr() for each in read] == [each.data_ptr() for each in vectors]
    results = [kernel.forward(*each, *tables, None, settings) for each in (vectors, separate)]
    gradients = [
        kernel.backward(*each, *tables, None, settings, *result, separate[0])
        for each, result in zip((vectors, separate), results)
    ]
    for found, expected in zip(results[0] + gradients[0], results[1] + gradients[1], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@needs_kernel
def test_second_derivatives():
    arrays = draw(T=20, S=20, heads=1)

    def squares(name):
        options = {"implementation": name, "max_relative_position": (3, 4)}
        return lambda xs: ops.sum(attend(**xs, **options, return_weights=False)[0] ** 2)

    found, expected = (
        gradients_of_squared_gradients(squares(n), arrays) for n in ("fused", "by_id")
    )
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=0, atol=1e-4 * np.abs(x).max())


@needs_kernel
def test_operators_have_shapes_and_strides_without_data():
    from t2t_relpos import backend

    kernel, arrays = backend.fused_kernel(), draw(T=9, S=12)
    tensors = [torch.tensor(arrays[name]) for name in NAMES]
    arguments = *tensors, None, [3, 4, 3, 0]
    tests = "test_schema", "test_faketensor"
    torch.library.opcheck(kernel.forward, arguments, test_utils=tests)
    results = kernel.forward(*arguments)
    arguments = *arguments, *results, torch.randn_like(tensors[0])
    torch.library.opcheck(kernel.backward, arguments, test_utils=tests)


@needs_kernel
def test_compiled_function_has_one_graph():
    tensors = {name: torch.tensor(x) for name, x in draw().items()}
    options = {"implementation": "fused", "max_relative_position": (3, 4), "return_weights": False}

    key_mask = torch.tensor(make_key_mask(40))

    def loss(xs):
        return attend(**xs, **options, key_mask=key_mask)[0].square().sum()

    for tensor in tensors.values():
        tensor.requires_grad_()
    expected = torch.autograd.grad(loss(tensors), list(tensors.values()))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(tensors), list(tensors.values()))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


@needs_kernel
def test_layer_selects_the_kernel(run_log):
    layer = RelativeMultiHeadAttention(2, 16, max_relative_position=(3, 4), flash_attention=True)
    layer(torch.randn(1, 20, 32), torch.randn(1, 20, 32))
    assert run_log == ["fused"]
