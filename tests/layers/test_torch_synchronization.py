"""Tests that PyTorch computes on one accelerator, and that the host does not wait for it."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
from layer_cases import CASES, random_inputs
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch_graphs import compiled

from t2t_relpos import CausalLM, RelativeMultiHeadAttention, Transformer, backend
from t2t_relpos.attention import attend, dispatch
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


def layer_of(name, rng, **settings):
    """Returns a layer of `layer_cases`, and the arguments of its call. Masks are integers."""
    case = CASES[name]
    arrays = random_inputs(case.input_names(masks=True), rng)
    masks = {n: rng.integers(0, 2, x.shape) for n, x in arrays.items() if n.endswith("_mask")}
    inputs = {n: ops.convert_to_tensor(x) for n, x in (arrays | masks).items()}
    args, options = case.call(lambda *args, **named: (args, named), inputs, masks=True)
    return case.make(**settings), args, options


attention, relations = (functools.partial(layer_of, name) for name in ("relative", "relations"))


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
            {"rematerialize": True},
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


@pytest.mark.parametrize(
    "name, settings",
    [
        ("relative", {"dropout": 0.4, "seed": 3, "use_gate": True, "output_shape": (3, 2)}),
        ("decoder", {"dropout": 0.3}),
        ("v2", {"dropout": 0.3}),
        *((name, {}) for name in ("relative_positions", "relative_window", "relations")),
        *((name, {}) for name in ("sinusoids", "2d", "local")),
    ],
)
def test_a_training_step_of_a_layer_compiles_as_one_graph(name, settings, rng):
    layer, inputs, options = layer_of(name, rng, **settings)
    options |= {"start": 4} if name == "sinusoids" else {"training": True}
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


def test_five_lengths_of_a_layer_make_two_graphs(rng):
    layer = RelativeMultiHeadAttention(2, 4, max_relative_position=(5, 3))
    layer.build((None, None, 6), (None, None, 6))
    weights = [v.value for v in layer.trainable_variables]
    function, num_graphs = compiled(lambda x, mask: layer(x, x, key_mask=mask, training=True))
    for length in (5, 21, 40, 250, 300):
        x = ops.convert_to_tensor(rng.normal(size=(2, length, 6)).astype("float32"))
        mask = ops.arange(length) < ops.convert_to_tensor([[length], [length // 2]])
        found, expected = (
            (outputs, *torch.autograd.grad(outputs.sin().sum(), weights))
            for outputs in (function(x, mask), layer(x, x, key_mask=mask, training=True))
        )
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other)
    assert num_graphs() <= 2


def test_values_on_the_host_are_checked(rng):
    model, [ids], _ = language_model(rng)
    with pytest.raises(ValueError, match=r"token ids in \[0, 13\). Received: values from 13 to 13"):
        model(ops.full_like(ids, 13))


def test_the_device_is_found_without_a_tensor(monkeypatch):
    monkeypatch.setattr(ops, "convert_to_tensor", None)
    assert backend.device() == "cpu"
    with keras.device("meta"):
        assert backend.device() == "cpu"
