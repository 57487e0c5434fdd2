"""Tests that PyTorch computes on one accelerator, and that the host does not wait for it."""

import keras
import numpy as np
import pytest
from keras import ops

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from t2t_relpos import CausalLM, Transformer, backend
from t2t_relpos.attention import attend, dispatch
from t2t_relpos.layers import (
    LocalRelativeMultiHeadAttention,
    RelationMultiHeadAttention,
    RelativeMultiHeadAttention,
    RelativeMultiHeadAttention2D,
    RelativeMultiHeadAttentionV2,
    SinusoidalPositionEncoding,
    TransformerDecoder,
)
from t2t_relpos.models.config import TransformerConfig

# Methods of a tensor that return values to the host.
READS = "item", "cpu", "numpy", "tolist", "__bool__", "__int__", "__float__", "__index__"


@pytest.fixture
def reads(monkeypatch):
    """Returns a list of the methods that read values. CPU tensors count as those of a GPU."""
    monkeypatch.setattr(backend, "can_be_read", lambda values: not ops.is_tensor(values))
    names = []

    def counted(name, method):
        def read(*args, **kwargs):
            names.append(name)
            return method(*args, **kwargs)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    return names


class WithExplicitDevices(TorchFunctionMode):
    """Raises an error if a tensor is created on PyTorch's default device, which is the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_explicit = function not in _device_constructors() or kwargs.get("device") is not None
        assert is_explicit, f"{function} without a device"
        return function(*args, **kwargs)


def encoder_decoder(rng):
    sizes = {"hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2, "dropout": 0.0}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = Transformer(TransformerConfig(vocab_size=13, **layers, **sizes))
    ids = {n: rng.integers(1, 13, (3, 7)).astype("int32") for n in ("inputs", "targets")}
    return model, [{name: ops.convert_to_tensor(x) for name, x in ids.items()}], {}


def language_model(rng):
    ids = ops.convert_to_tensor(rng.integers(1, 13, (3, 7)).astype("int32"))
    return CausalLM(13, 1, 8, 16, 2, 4), [ids], {}


def attention(rng):
    x = ops.convert_to_tensor(rng.normal(size=(3, 70, 6)).astype("float32"))
    mask = ops.convert_to_tensor(rng.integers(0, 2, (3, 70)).astype("int32"))
    layer = RelativeMultiHeadAttention(2, 4, max_relative_position=3)
    return layer, [x, x], {"value_mask": mask, "use_causal_mask": True}


def relations(rng):
    x = ops.convert_to_tensor(rng.normal(size=(3, 5, 6)).astype("float32"))
    labels = ops.convert_to_tensor(rng.integers(-1, 4, (3, 5, 5)).astype("int32"))
    return RelationMultiHeadAttention(2, 4, num_relations=4), [x, x], {"relations": labels}


@pytest.mark.parametrize("make", [encoder_decoder, language_model, attention, relations])
def test_a_training_step_reads_no_values(make, reads, rng):
    model, args, options = make(rng)
    model(*args, **options)
    optimizer = torch.optim.SGD([v.value for v in model.trainable_variables], lr=0.1)
    reads.clear()
    with WithExplicitDevices():
        outputs = model(*args, **options, training=True)
        (outputs**2).sum().backward()
        optimizer.step()
    assert reads == []


@pytest.mark.parametrize("implementation", [row.name for row in dispatch.TABLE])
def test_attention_creates_tensors_on_explicit_devices(implementation, rng):
    """Keras creates those of `ops.max(initial=...)` on the CPU."""
    row = dispatch.by_name(implementation)
    num_tables = 0 if dispatch.NO_TABLES in row.requirements else 2
    tables = [torch.randn(5, 8, requires_grad=True) for _ in range(num_tables)]
    computed = 0
    for length in (1, 20, 150):
        tensors = [torch.randn(2, 2, length, 8, requires_grad=True) for _ in range(3)]
        for options in (
            {},
            {"causal": True},
            {"key_mask": torch.ones(2, length, dtype=torch.bool)},
            {"sliding_window": 9, "causal": True},
        ):
            options |= {"implementation": implementation, "return_weights": False}
            try:
                with WithExplicitDevices():
                    outputs, _ = attend(*tensors, *tables, **options)
                    (outputs**2).sum().backward()
            except ValueError as error:
                assert "Received: AttentionCall" in str(error)
                continue
            computed += 1
    is_for_others = isinstance(row.function, str) or dispatch.HAS_FUSED_KERNEL in row.requirements
    assert (computed == 0) == is_for_others


@pytest.mark.parametrize("length", [20, 300])
def test_attend_computes_on_the_device_of_the_query(length, rng):
    arrays = [rng.normal(size=(2, 3, length, 8)) for _ in range(3)]
    arrays += [rng.normal(size=(5, 8)) for _ in range(2)]
    mask = torch.arange(length) < length - 3

    def results():
        tensors = [torch.tensor(x, dtype=torch.float32, requires_grad=True) for x in arrays]
        outputs, _ = attend(*tensors, key_mask=mask.expand(2, -1), return_weights=False)
        return outputs, *torch.autograd.grad(outputs.square().sum(), tensors)

    expected = results()
    with keras.device("meta"):
        found = results()
    for one, other in zip(found, expected):
        assert one.device.type == "cpu"
        torch.testing.assert_close(one, other)


def masked_attention(rng):
    layer, inputs, options = attention(rng)
    masks = {"attention_mask": torch.ones(70, 70, dtype=torch.bool).tril(5), "query_offset": 2}
    return layer, inputs, options | masks


def dropped_attention(rng):
    settings = {"dropout": 0.4, "seed": 3, "use_gate": True, "output_shape": (3, 2)}
    _, inputs, options = attention(rng)
    return RelativeMultiHeadAttention(2, 4, max_relative_position=3, **settings), inputs, options


def decoder(rng):
    x = ops.convert_to_tensor(rng.normal(size=(3, 7, 6)).astype("float32"))
    layer = TransformerDecoder(8, 2, max_relative_position=3, dropout=0.3)
    mask = torch.arange(7).expand(3, 7) < 5
    return layer, [x, x], {"encoder_padding_mask": mask}


def positions(rng):
    x = ops.convert_to_tensor(rng.normal(size=(3, 7, 6)).astype("float32"))
    return SinusoidalPositionEncoding(), [x], {"start": 4}


def variant_v2(rng):
    _, inputs, options = attention(rng)
    return RelativeMultiHeadAttentionV2(2, 4, max_relative_position=3, dropout=0.3), inputs, options


def variant_2d(rng):
    x = ops.convert_to_tensor(rng.normal(size=(3, 3, 5, 6)).astype("float32"))
    return RelativeMultiHeadAttention2D(2, 4, max_relative_position=3), [x, x], {}


def local_variant(rng):
    x = ops.convert_to_tensor(rng.normal(size=(3, 11, 6)).astype("float32"))
    return LocalRelativeMultiHeadAttention(2, 4, block_length=4), [x, x], {}


VARIANTS = [variant_v2, variant_2d, local_variant]
LAYERS = [masked_attention, dropped_attention, decoder, relations, positions, *VARIANTS]


@pytest.mark.parametrize("make", LAYERS)
def test_a_training_step_of_a_layer_compiles_as_one_graph(make, rng):
    layer, inputs, options = make(rng)
    if "start" not in options:
        options["training"] = True
    layer(*inputs, **options)
    weights = [v.value for v in layer.trainable_variables] or [inputs[0].requires_grad_()]
    seeds = [v for v in layer.non_trainable_variables if "seed" in v.path]
    first = [np.array(ops.convert_to_numpy(v)) for v in seeds]

    def results(call):
        for seed, value in zip(seeds, first, strict=True):
            seed.assign(value)
        outputs = call(*inputs)
        gradients = torch.autograd.grad(outputs.sin().sum(), weights, allow_unused=True)
        return outputs, *gradients, *(v.value.clone() for v in seeds)

    torch.compiler.reset()
    expected = results(lambda *args: layer(*args, **options))
    compiled = torch.compile(
        lambda *args: layer(*args, **options), fullgraph=True, backend="aot_eager"
    )
    for found, one in zip(results(compiled), expected, strict=True):
        torch.testing.assert_close(found, one)


def test_values_on_the_host_are_checked(rng):
    model, [ids], _ = language_model(rng)
    with pytest.raises(ValueError, match=r"token ids in \[0, 13\). Received: values from 13 to 13"):
        model(ops.full_like(ids, 13))


def test_the_device_is_found_without_a_tensor(monkeypatch):
    monkeypatch.setattr(ops, "convert_to_tensor", None)
    assert backend.device() == "cpu"
    with keras.device("meta"):
        assert backend.device() == "cpu"
