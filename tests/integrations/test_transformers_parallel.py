"""Tests of exchanged attention under DDP and FSDP2, and after `set_attn_implementation`."""

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
from speech_models import CASES
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from t2t_relpos.integrations.transformers import (
    replace_attention,
    replaced_modules,
    restore_attention,
)


@pytest.fixture
def process_group(one_thread):
    """Makes a process group of this process, with one thread."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def results(case, model):
    """Returns outputs with padding, and gradients by name."""
    model.zero_grad()
    padding = case.padding(21)
    outputs = case.outputs(model, 21, padding)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(7))
    (outputs * weights).sum().backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            x = parameter.grad
            x = x.full_tensor() if isinstance(x, DTensor) else x
            gradients[name.removeprefix("module.")] = x
    return outputs.detach(), gradients


def assert_equal_results(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, x in expected[1].items():
        largest = max(1.0, x.abs().max().item())
        torch.testing.assert_close(found[1][name], x, rtol=0, atol=1e-5 * largest)


@pytest.mark.filterwarnings("ignore:Grad strides do not match bucket view strides")
@pytest.mark.parametrize("order", ["exchange first", "DDP first"])
@pytest.mark.parametrize("name", ["w2v-BERT", "SeamlessM4T, chunks", "SpeechT5"])
def test_ddp_has_the_same_gradients(name, order, process_group):
    case = CASES[name]
    model = case.make().train()
    expected = results(case, model)
    if order == "exchange first":
        assert replace_attention(model) == 2
    # Parameters of masks of time have no gradients.
    parallel = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    if order == "DDP first":
        assert replace_attention(parallel) == 2
    assert len(replaced_modules(parallel)) == 2
    for _ in range(2):
        assert_equal_results(results(case, parallel), expected)
    assert restore_attention(parallel) == 2


@pytest.mark.parametrize("name", ["w2v-BERT", "SeamlessM4T, chunks"])
def test_fsdp2_after_the_exchange_has_the_same_gradients(name, process_group):
    case = CASES[name]
    model = case.make().train()
    expected = results(case, model)
    assert replace_attention(model) == 2
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    for layer in model.encoder.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert len(replaced_modules(model)) == 2
    for _ in range(2):
        assert_equal_results(results(case, model), expected)
    for function in (replace_attention, restore_attention):
        with pytest.raises(ValueError, match="before `fully_shard`"):
            function(model)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["w2v-BERT", "SeamlessM4T"])
def test_attn_implementation_may_be_set_after_the_exchange(name, implementation):
    case = CASES[name]
    model = case.make("eager" if implementation == "sdpa" else "sdpa").train()
    # "eager" of SeamlessM4T v2 adds masks as 0 and 1.
    expected = results(case, case.make("sdpa").train())
    assert replace_attention(model) == 2
    model.set_attn_implementation(implementation)
    assert len(replaced_modules(model)) == 2
    assert_equal_results(results(case, model), expected)
    restore_attention(model)
    assert model.config._attn_implementation == implementation
    other = case.make(implementation).train()
    assert_equal_results(results(case, model), results(case, other))
