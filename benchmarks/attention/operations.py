"""Counts the operations of PyTorch in a step of an attention layer.

    KERAS_BACKEND=torch python -m benchmarks.attention.operations

On a GPU, each operation that computes is at least one kernel. Steps run on the CPU, with the
implementations that a GPU would select where the table says so. Their numbers depend on neither the
batch size nor the width.
"""

import collections
from unittest import mock

import keras
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from t2t_relpos import backend
from t2t_relpos.attention import explain
from t2t_relpos.integrations.torch import RelativeMultiheadAttention
from t2t_relpos.layers import RelativeMultiHeadAttention, TransformerDecoder

WIDTH, HEADS, K = 64, 4, 16
_NO_KERNEL = "empty", "empty_like", "new_empty", "detach", "lift_fresh", "_unsafe_view"


class _Kernels(TorchDispatchMode):
    """Counts the operations that compute, in contrast to views and allocations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view and function.overloadpacket.__name__ not in _NO_KERNEL
        return function(*args, **(kwargs or {}))


def count(step) -> tuple[int, int]:
    """Returns (operations that are not part of another one, operations that compute) of a step."""
    step()
    with _Kernels() as kernels:
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    events = [event for event in profiled.events() if event.name.startswith("aten::")]
    return sum(not _is_part(event) for event in events), kernels.count


def _is_part(event):
    parent = event.cpu_parent
    while parent is not None and not parent.name.startswith("aten::"):
        parent = parent.cpu_parent
    return parent is not None


def training_steps(length: int) -> dict:
    """Returns functions that run forward and backward with a key mask and a causal mask."""
    x = torch.randn(2, length, WIDTH, requires_grad=True)
    keys = torch.arange(length) < torch.tensor([[length - 5], [length]])
    causal = torch.ones(length, length, dtype=torch.bool).triu(1)
    masks = {"key_padding_mask": ~keys, "attn_mask": causal, "is_causal": True}
    sizes = {"num_heads": HEADS, "key_dim": WIDTH // HEADS}

    def of_pytorch(module):
        return module, lambda: module(x, x, x, need_weights=False, **masks)[0]

    def of_keras(layer, **options):
        layer.build(x.shape, x.shape)
        return layer, lambda: layer(x, x, training=True, use_causal_mask=True, **options)

    calls = {
        "nn.MultiheadAttention": of_pytorch(
            torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        ),
        "RelativeMultiheadAttention": of_pytorch(
            RelativeMultiheadAttention(WIDTH, HEADS, max_relative_position=K)
        ),
        "keras.layers.MultiHeadAttention": of_keras(
            keras.layers.MultiHeadAttention(**sizes), key_mask=keys, value_mask=keys
        ),
        "RelativeMultiHeadAttention": of_keras(
            RelativeMultiHeadAttention(**sizes, max_relative_position=K), key_mask=keys
        ),
    }
    return {name: _training_step(*call, x) for name, call in calls.items()}


def _training_step(module, call, x):
    variables = [x, *(p for p in module.parameters() if p.requires_grad)]
    return lambda: torch.autograd.grad(call().square().sum(), variables)


def decoder_step():
    """Returns a function that runs a decoder block for one position, with both caches."""
    block = TransformerDecoder(2 * WIDTH, HEADS, max_relative_position=K)
    token, source = torch.randn(2, 1, WIDTH), torch.randn(2, 20, WIDTH)
    block(token, source)
    own, of_source = (torch.zeros(2, 2, size, HEADS, WIDTH // HEADS) for size in (32, 20))
    mask = torch.arange(20) < torch.tensor([[15], [20]])

    @torch.no_grad()
    def step():
        block(
            token,
            source,
            encoder_padding_mask=mask,
            self_attention_cache=own,
            self_attention_cache_update_index=5,
            cross_attention_cache=of_source,
        )

    return step


def main():
    rows = collections.defaultdict(list)
    for device, length in (("cpu", 64), ("cpu", 512), ("gpu", 64), ("gpu", 512), ("gpu", 2048)):
        chosen = explain(length, None, K, causal=True, device=device).chosen
        print(f"{device} {length}: {chosen}")
        with mock.patch.object(backend, "device", lambda device=device: device):
            for name, step in training_steps(length).items():
                rows[name].append("{} / {}".format(*count(step)))
    for name, counts in rows.items():
        print(f"{name:32}", *(f"{text:>11}" for text in counts))
    print("step of TransformerDecoder: {} / {}".format(*count(decoder_step())))


if __name__ == "__main__":
    main()
