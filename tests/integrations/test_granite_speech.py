"""Tests that Granite Speech with exchanged attention computes the same numbers."""

import copy

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
import transformers
from torch_graphs import compiled

from t2t_relpos.integrations.families import imported, registered_families
from t2t_relpos.integrations.transformers import (
    replace_attention,
    replaced_modules,
    restore_attention,
)

# The name of newer versions of transformers does not exist in older ones.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated"),
]
# The attention of transformers is in blocks of 20 frames here.
SIZE = 20
# One frame; less than a block; one, two and five blocks; two blocks and a part of one.
LENGTHS = 1, 13, 20, 40, 100, 57
NAMES = "Granite Speech", "Granite Speech Plus", "Granite Speech 5"


def make(name, dtype=torch.float64, **changes):
    """Returns an encoder of a family, with attention that is not uniform."""
    torch.manual_seed(1)
    family = registered_families()[name]
    config = family.small_config()
    for key, value in ({"context_size": SIZE} | changes).items():
        setattr(config, key, value)
    encoder = imported(family.encoder)(config)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=max(parameter.shape[-1], 4) ** -0.5)
    return encoder.to(dtype)


def padding_mask(length):
    """Returns a mask `[2, T]` with padding on the left of one sequence and on the right of one."""
    positions = torch.arange(length)
    return torch.stack([positions >= length // 3, positions < length - length // 4])


def outputs_of(name, encoder, length, padding=None):
    x = torch.randn(2, length, 16, generator=torch.Generator().manual_seed(5))
    x = x.to(next(encoder.parameters()).dtype)
    if not name.endswith("5"):
        return encoder(x).last_hidden_state
    outputs = encoder(x, padding)
    if padding is None:
        return outputs.last_hidden_state
    return outputs.last_hidden_state[outputs.attention_mask.bool()]


def gradients(encoder, outputs):
    encoder.zero_grad()
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    (outputs * weights.to(outputs.dtype)).sum().backward()
    return {name: x.grad for name, x in encoder.named_parameters() if x.grad is not None}


def assert_equal_calls(name, encoder, length, padding, tolerance):
    """Compares outputs and gradients, relative to the largest value of a tensor or to 1."""
    other = copy.deepcopy(encoder)
    assert replace_attention(other) == 2
    expected, found = (outputs_of(name, x, length, padding) for x in (encoder, other))
    expected_gradients, found_gradients = gradients(encoder, expected), gradients(other, found)
    assert found_gradients.keys() == expected_gradients.keys()
    assert any("rel_pos_emb" in key for key in found_gradients)
    pairs = [(found, expected)]
    pairs += [(found_gradients[key], x) for key, x in expected_gradients.items()]
    for x, y in pairs:
        largest = max(1.0, y.abs().max().item())
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_equal(name, length, training):
    encoder = make(name).train(training)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        if dtype == torch.float32 and training:
            continue  # Batch normalization of one frame divides by rounding errors.
        assert_equal_calls(name, encoder.to(dtype), length, None, tolerance)


@pytest.mark.parametrize("subsample_layers", [[], [0], [0, 1]])
@pytest.mark.parametrize("length", [40, 57, 103])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_padding_is_masked_in_granite_speech_5(implementation, length, subsample_layers):
    name = NAMES[-1]
    # With "eager", transformers computes the softmax in float32.
    eager = implementation == "eager"
    encoder = make(
        name, torch.float32 if eager else torch.float64, subsample_layers=subsample_layers
    )
    encoder.set_attn_implementation(implementation)
    # Gradients are sums of 100 terms.
    tolerance = 5e-6 if eager else 1e-9
    assert_equal_calls(name, encoder, length, padding_mask(length), tolerance)


def test_blocks_of_padding_give_finite_numbers():
    encoder = make(NAMES[-1])
    replace_attention(encoder)
    padding = torch.arange(90) < torch.tensor([[90], [15]])
    x = torch.randn(2, 90, 16, dtype=torch.float64, requires_grad=True)
    outputs = encoder(x, padding).last_hidden_state
    outputs.sum().backward()
    assert outputs.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES[:2])
def test_padding_is_attended_to_in_the_first_families(name):
    encoder = make(name).eval()
    replace_attention(encoder)
    x = torch.randn(1, 15, 16, dtype=torch.float64)
    padded = torch.nn.functional.pad(x, (0, 0, 0, 3))
    difference = encoder(padded)[0][:, :10] - encoder(x)[0][:, :10]
    assert difference.abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_published_sizes_are_equal(name):
    """Blocks of 200 and 128 frames, and tables of 1,025 rows."""
    size = 128 if name.endswith("5") else 200
    limit = {"max_position_embeddings": 512} if size == 128 else {"max_pos_emb": 512}
    encoder = make(name, context_size=size, **limit).eval()
    assert_equal_calls(name, encoder, 2 * size + 77, None, 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_as_exact_as_transformers(name):
    encoder = make(name).eval()
    expected, errors = outputs_of(name, encoder, 57), []
    for exchange in (False, True):
        other = copy.deepcopy(encoder)
        if exchange:
            replace_attention(other)
        outputs = outputs_of(name, other.to(torch.bfloat16), 57)
        assert outputs.dtype == torch.bfloat16
        errors.append((outputs.double() - expected).square().mean().sqrt().item())
    assert 0 < errors[1] <= 1.2 * errors[0]


@pytest.mark.parametrize("name", NAMES)
def test_modules_are_listed_restored_and_copied(name):
    encoder = make(name)
    classes = [type(module) for module in encoder.modules()]
    assert replace_attention(encoder) == 2
    assert len(replaced_modules(encoder)) == 2
    other = copy.deepcopy(encoder)
    assert torch.equal(outputs_of(name, other, 30), outputs_of(name, encoder, 30))
    assert restore_attention(encoder) == 2
    assert [type(module) for module in encoder.modules()] == classes
    assert len(replaced_modules(other)) == 2


def test_gradient_checkpointing_repeats_dropout():
    name, results = NAMES[-1], []
    encoder = make(name, attention_dropout=0.4).train()
    replace_attention(encoder)
    for checkpointing in (False, True):
        if checkpointing:
            encoder.gradient_checkpointing_enable()
        torch.manual_seed(3)
        outputs = outputs_of(name, encoder, 57, padding_mask(57))
        results.append([outputs, *gradients(encoder, outputs).values()])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)
    assert not torch.allclose(outputs_of(name, encoder, 57, padding_mask(57)), results[0][0])


@pytest.mark.parametrize("name", NAMES)
def test_compiled_encoders_are_equal(name):
    encoder = make(name, torch.float32).eval()
    replace_attention(encoder)
    expected = outputs_of(name, encoder, 57)
    torch.testing.assert_close(outputs_of(name, compiled(encoder)[0], 57), expected)


def test_generated_tokens_are_equal():
    """The whole of Granite Speech: encoder, projector and language model."""
    torch.manual_seed(2)
    config = transformers.GraniteSpeechConfig(
        text_config={
            "model_type": "granite",
            "vocab_size": 23,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        encoder_config=registered_families()["Granite Speech"].small_config().to_dict(),
        projector_config={
            "model_type": "blip_2_qformer",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "encoder_hidden_size": 16,
        },
        audio_token_index=22,
        has_lora_adapter=False,
    )
    model = transformers.GraniteSpeechForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=max(parameter.shape[-1], 4) ** -0.5)
    # A window of 15 frames makes 3 audio tokens.
    ids = torch.tensor([[1, *[22] * 9, 2, 3]])
    inputs = {"input_ids": ids, "input_features": torch.randn(1, 45, 16)}
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    expected = model.generate(**inputs, **options)
    assert replace_attention(model) == 2
    assert torch.equal(model.generate(**inputs, **options), expected)
