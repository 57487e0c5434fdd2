"""Tests that layers on PyTorch do not wait for an accelerator."""

import keras
import pytest
from keras import ops

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch

from t2t_relpos import CausalLM, Transformer, _backend, _checks
from t2t_relpos.layers import RelationMultiHeadAttention, RelativeMultiHeadAttention
from t2t_relpos.models.config import TransformerConfig

# Methods of a tensor that return values to the host.
READS = "item", "cpu", "numpy", "tolist", "__bool__", "__int__", "__float__", "__index__"


@pytest.fixture
def reads(monkeypatch):
    """Returns a list of the methods that read values. CPU tensors count as those of a GPU."""
    monkeypatch.setattr(_checks, "_is_on_torch_accelerator", lambda values: ops.is_tensor(values))
    names = []

    def counted(name, method):
        def read(*args, **kwargs):
            names.append(name)
            return method(*args, **kwargs)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    return names


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
    outputs = model(*args, **options, training=True)
    (outputs**2).sum().backward()
    optimizer.step()
    assert reads == []


def test_values_on_the_host_are_checked(rng):
    model, [ids], _ = language_model(rng)
    with pytest.raises(ValueError, match=r"token ids in \[0, 13\). Received: values from 13 to 13"):
        model(ops.full_like(ids, 13))


def test_the_device_is_found_without_a_tensor(monkeypatch):
    monkeypatch.setattr(ops, "convert_to_tensor", None)
    assert _backend.device() == "cpu"
    with keras.device("meta"):
        assert _backend.device() == "cpu"
