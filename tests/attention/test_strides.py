"""Strides of tensors have no effect on the results of attention on PyTorch, for every row."""

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
from torch.nn.functional import pad

from t2t_relpos.attention import attend, dispatch
from t2t_relpos.attention.call import AttentionCall

SHAPE, K = (2, 3, 40, 8), 3
ROWS = [
    (row.name, k, rematerialize)
    for row in dispatch.TABLE
    for k in (K, None)
    for rematerialize in ((None,) if row.saves_weights is None else (None, True))
    if row.match(AttentionCall(SHAPE[2], SHAPE[2], k), ignore_preferences=True)[0] is None
]


def expand(axis):
    return lambda x: x.narrow(axis, 0, 1).expand(x.shape)


def in_order(*axes):
    """Returns a function of a tensor that stores its axes in another order."""
    back = [axes.index(axis) for axis in range(4)]
    return lambda x: x.permute(axes).contiguous().permute(back)


# Functions of a tensor `[B, N, T, H]` that return one of the same shape.
LAYOUTS = {
    "features before positions": in_order(0, 1, 3, 2),
    "heads last": in_order(0, 2, 3, 1),
    "positions before heads": in_order(0, 2, 1, 3),
    "heads before batch": in_order(1, 0, 2, 3),
    "every second feature": lambda x: x.repeat_interleave(2, 3)[..., ::2],
    "every second position": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
    "expanded batch": expand(0),
    "expanded heads": expand(1),
    "expanded positions": expand(2),
    "expanded features": expand(3),
    "overlapping positions": lambda x: x.as_strided(x.shape, (*x.stride()[:2], 1, 1)),
    "next to NaN": lambda x: pad(x, (1, 2, 3, 4), value=torch.nan)[..., 3:-4, 1:-2],
}


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def results(row, tensors, d_outputs, **options):
    """Returns the outputs and all gradients of an entry of ROWS."""
    name, k, rematerialize = row
    options |= {"implementation": name, "rematerialize": rematerialize, "return_weights": False}
    tables = () if k is None else (draw(2 * k + 1, SHAPE[3]), draw(2 * k + 1, SHAPE[3]))
    inputs = [x.detach().requires_grad_() for x in (*tensors, *tables)]
    outputs = attend(*inputs, **options)[0]
    return outputs, *torch.autograd.grad(outputs, inputs, d_outputs)


def assert_equal(found, expected):
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_strides_of_inputs_and_of_gradients_of_outputs(row, layout):
    tensors = [LAYOUTS[layout](x) for x in draw(4, *SHAPE)]
    copies = [x.contiguous() for x in tensors]
    expected = results(row, copies[:3], copies[3])
    assert_equal(results(row, tensors[:3], tensors[3]), expected)
    assert_equal(results(row, copies[:3], tensors[3]), expected)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_strides_of_masks(row):
    tensors, mask = draw(4, *SHAPE), draw(SHAPE[2], SHAPE[0]).gt(0).T
    expected = results(row, tensors[:3], tensors[3], key_mask=mask.contiguous())
    assert_equal(results(row, tensors[:3], tensors[3], key_mask=mask), expected)


class TestCopies:
    """Kernels for GPUs can't run here: what they read is tested instead."""

    @pytest.mark.parametrize("block", [1, 8])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_what_a_kernel_reads(self, layout, block):
        from t2t_relpos.backend import torch_flash

        x = LAYOUTS[layout](draw(*SHAPE))
        (read,) = torch_flash._readable(x, block=block)
        assert torch.equal(read, x)
        assert read.stride(3) == 1 and read.stride(2) >= SHAPE[3]
        assert not any(start % block for start in (read.storage_offset(), *read.stride()[:3]))
        is_readable = {"positions before heads", "heads before batch", "every second position"}
        is_readable |= {"expanded batch", "expanded heads"}
        is_readable |= {"next to NaN"} if block == 1 else set()
        assert (read is x) == (layout in is_readable)

    def test_a_start_that_is_not_aligned_is_copied(self):
        from t2t_relpos.backend import torch_flash

        x = draw(1 + 2 * 3 * 40 * 8)[1:].view(SHAPE)
        assert torch_flash._readable(x)[0] is x
        read = torch_flash._readable(x, block=8)[0]
        assert torch.equal(read, x) and read.storage_offset() == 0

    def test_layout_of_outputs_in_the_gradient_of_the_memory_efficient_kernel(self, monkeypatch):
        from t2t_relpos.backend import torch_flash

        read = []

        def kernel(*args, **options):
            read.append(args[5])
            return args[:4]

        name = "_scaled_dot_product_efficient_attention_backward"
        monkeypatch.setattr(torch.ops.aten, name, kernel)
        query, key, value, outputs = draw(4, *SHAPE)
        results = outputs, draw(*SHAPE[:3]), (0, 0)
        torch_flash._MemoryEfficient.backward(query, key, value, None, results, outputs, True)
        assert torch.equal(read[0], outputs) and read[0].transpose(1, 2).is_contiguous()
