"""Tests that only apply to `flash`. test_implementations.py tests all implementations.

There, `flash without a kernel` has a plain function in place of the kernel.
"""

import dataclasses
import itertools

import keras
import numpy as np
import plain_flash_kernel
import pytest
from gradients import output_and_gradients
from keras import ops
from sizes import largest_tensor

from t2t_relpos import RelativeMultiHeadAttention
from t2t_relpos.attention import attend, dispatch, limits
from t2t_relpos.attention.call import AttentionCall

BACKEND = keras.backend.backend()
TENSORS = ("query", "key", "value", "key_table", "value_table")
FLASH = dataclasses.replace(
    dispatch.by_name("flash"), sizes=dict.fromkeys(("cpu", "gpu"), limits.Sizes(64, smallest=2))
)
if BACKEND != "torch":
    FLASH = plain_flash_kernel.without_kernel(FLASH)
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="requires PyTorch's kernels")


def draw_inputs(draw, length, k):
    return dict(zip(TENSORS, draw(length, length, k), strict=True))


def compute(arrays, implementation, **options):
    """Returns the outputs and gradients of `attend`."""

    def outputs(xs):
        return attend(**xs, implementation=implementation, return_weights=False, **options)[0]

    return output_and_gradients(outputs, arrays)


@pytest.mark.parametrize("window", [None, 8, 66])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "length, k, masks",
    # Blocks have 64 queries, or as many as the band has diagonals.
    [
        *((64, 5, {}), (65, 5, {}), (130, 64, {}), (130, 65, {}), (130, 130, {}), (2, 1, {})),
        (150, 5, {"key_mask": np.arange(150)[None] % 7 > 2}),
    ],
)
def test_lengths_around_blocks(length, k, masks, causal, window, draw, assert_close):
    arrays = draw_inputs(draw, length, k)
    options = {"causal": causal, "sliding_window": window, **masks}
    assert_close(compute(arrays, FLASH, **options), compute(arrays, "by_id", **options))


@pytest.mark.parametrize("window", [None, 4, 5, 9])
@pytest.mark.parametrize("as_features", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_longer_than_a_tail(causal, as_features, window, draw, assert_close, monkeypatch):
    """Some queries have keys in the band only, in one tail only, or nowhere."""
    implementation = FLASH
    if as_features:  # Kernels for GPUs have no masks of keys.
        monkeypatch.setattr(plain_flash_kernel, "HAS_MASKS", False)
        implementation = plain_flash_kernel.without_kernel(FLASH)
    arrays, mask = draw_inputs(draw, 41, 3), np.ones((2, 41), bool)
    mask[0, :37], mask[1, 2:] = False, False
    options = {"causal": causal, "key_mask": mask, "sliding_window": window}
    found = compute(arrays, implementation, **options)
    assert_close(found, compute(arrays, "by_id", **options))
    mask[0] = False
    outputs, gradients = compute(arrays, implementation, **options)
    for x in (outputs, *(gradients[name] for name in TENSORS[:3])):
        np.testing.assert_array_equal(x[0], 0)


@pytest.mark.parametrize("shape", [(1, 19), (2, 1, 19), (2, 1, 1, 19), (1, 1)])
def test_masks_of_keys_in_all_shapes(shape, draw, rng, assert_close):
    arrays, mask = draw_inputs(draw, 19, 2), rng.random(shape) < 0.6
    assert_close(compute(arrays, FLASH, mask=mask), compute(arrays, "by_id", mask=mask))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_queries(causal, window, draw, assert_close):
    arrays = draw_inputs(draw, 41, 3)
    arrays |= {name: arrays[name][:, :1] for name in ("key", "value")}
    options = {"causal": causal, "key_mask": np.arange(41)[None] > 3, "sliding_window": window}
    found = compute(arrays, FLASH, **options)
    assert_close(found, compute(arrays, "by_id", **options))


@on_torch
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("causal", [False, True])
def test_no_tensor_is_quadratic_in_length(causal, window, draw):
    arrays = [x[:1, :1] if x.ndim == 4 else x for x in draw(515, 515, 3)]

    def outputs(xs, _):
        options = {"causal": causal, "sliding_window": window, "return_weights": False}
        return attend(*xs, implementation=FLASH, **options)[0]

    # The largest tensors are the keys of the blocks: 9 * (64 + 4) * 5, and the products with them.
    assert largest_tensor(outputs, arrays, []) <= 9 * 64 * 70


@pytest.mark.skipif(BACKEND != "jax", reason="requires JAX")
@pytest.mark.parametrize("length", [1, 37])
def test_shapes_of_the_kernel_of_jax(length, monkeypatch):
    """Shape inference checks the arguments of JAX's private functions."""
    import jax

    from t2t_relpos.backend import jax_flash

    module = jax_flash._cudnn()
    monkeypatch.setattr(module, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(module, "check_compute_capability", lambda capability: True)
    x = jax.ShapeDtypeStruct((2, 3, length, 8), "bfloat16")
    assert jax_flash.has_kernel(x)
    assert jax_flash.supports(x, 256) and not jax_flash.supports(x, 264)

    def compute(query, key, value, d_outputs):
        results = jax_flash.forward(query, key, value, None, True)
        return *results[:2], *jax_flash.backward(query, key, value, None, results, d_outputs, True)

    outputs, log_sums, *gradients = jax.eval_shape(compute, x, x, x, x)
    assert [(y.shape, y.dtype) for y in (outputs, *gradients)] == 4 * [(x.shape, x.dtype)]
    assert (log_sums.shape, log_sums.dtype) == (x.shape[:3], "float32")


def test_no_kernel_if_private_functions_of_jax_changed(monkeypatch):
    pytest.importorskip("jax")
    from jax._src.cudnn import fused_attention_stablehlo as module

    from t2t_relpos.backend import jax_flash

    monkeypatch.setattr(module, "_dot_product_attention_bwd_rule", lambda scale, seed: None)
    jax_flash._cudnn.cache_clear()
    try:
        assert not jax_flash.has_kernel(None)
    finally:
        jax_flash._cudnn.cache_clear()


@on_torch
class TestKernels:
    def test_the_kernel_of_the_cpu_runs_except_on_empty_tensors(self, draw, monkeypatch):
        from t2t_relpos.backend import torch_flash

        queries, forward = [], torch_flash.forward
        monkeypatch.setattr(
            torch_flash,
            "forward",
            lambda q, *args: (queries.append(q.shape), forward(q, *args))[1],
        )
        options = {"return_weights": False, "rematerialize": True}
        arrays = draw(41, 41, 5)
        attend(*arrays, **options)
        assert queries == [(2, 3, 36, 5)] * 2
        for length in (0, 1, 5):
            attend(*(x[:, :, :length] for x in arrays[:3]), *arrays[3:], **options)
        attend(*(x[:0] for x in arrays[:3]), *arrays[3:], **options)
        assert len(queries) == 2
        attend(*(x[:, :, :21] for x in arrays[:3]), *arrays[3:], causal=True, **options)
        assert queries[2:] == [(2, 3, 16, 5)]

    @pytest.mark.parametrize("name", ["_Flash", "_MemoryEfficient", "_OnCPU"])
    def test_shapes_of_all_kernels(self, name):
        """Shape inference checks the signatures of kernels for GPUs too."""
        import torch

        from t2t_relpos.backend import torch_flash

        kernel = getattr(torch_flash, name)
        query, key, value, d_outputs = torch.empty(
            4, 2, 3, 37, 8, device="meta", dtype=torch.bfloat16
        )
        key_mask = torch.empty(2, 3, 37, device="meta", dtype=torch.bool)
        masks = (None,) if name == "_Flash" else (None, key_mask)
        for mask, is_causal in itertools.product(masks, (True, False)):
            results = kernel.forward(query, key, value, mask, is_causal)
            gradients = kernel.backward(query, key, value, mask, results, d_outputs, is_causal)
            assert [tuple(x.shape) for x in (results[0], *gradients)] == [(2, 3, 37, 8)] * 4
            assert tuple(results[1].shape) == (2, 3, 37)

    def test_rows_of_the_mask_are_aligned(self):
        import torch

        from t2t_relpos.backend import torch_flash

        mask = torch.tensor([[[True, False, True]], [[True, True, False]]])
        bias = torch_flash._aligned_bias(mask, torch.zeros(2, 5, 3, 8))
        assert bias.shape == (2, 5, 3, 3) and bias.stride() == (16, 0, 0, 1)
        expected = [[0, -np.inf, 0], [0, 0, -np.inf]]
        np.testing.assert_array_equal(bias[:, 4, 2], expected)

    def test_requirements(self, draw):
        def unmet(*tensors, **options):
            call = AttentionCall.from_arguments(
                19, 19, 2, **dict(zip(TENSORS, map(ops.convert_to_tensor, tensors))), **options
            )
            condition, _ = dispatch.by_name("flash").match(call)
            return condition and condition.text

        arrays, options = draw(19, 19, 2), {"rematerialize": True}
        assert unmet(*arrays, **options) is None
        for mask in (ops.ones((19, 19)), ops.ones((1, 3, 1, 19))):
            assert unmet(*arrays, mask=mask, **options).startswith("a `mask` of keys only")

    def test_layer_uses_the_kernel(self, run_log, rng):
        x = rng.normal(size=(2, 300, 8)).astype("float32")
        layer = RelativeMultiHeadAttention(2, 4, max_relative_position=3, flash_attention=True)
        layer(x[:, :13], x[:, :13], use_causal_mask=True)
        RelativeMultiHeadAttention(2, 4, max_relative_position=3)(x, x)
        assert run_log == ["flash", "flash"]
