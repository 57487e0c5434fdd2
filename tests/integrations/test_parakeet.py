"""Tests that Parakeet and Nemotron ASR with exchanged attention compute the same numbers."""

import copy

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
import transformers
from torch_graphs import compiled

from t2t_relpos.integrations import families
from t2t_relpos.integrations.families import imported, registered_families, transformer_xl
from t2t_relpos.integrations.families.transformer_xl import key_or_pair_mask
from t2t_relpos.integrations.transformers import replace_attention

PARAKEET, NEMOTRON = "Parakeet", "Nemotron ASR"
NAMES = [x for x in (PARAKEET, NEMOTRON) if not families.import_error(registered_families()[x])]
if not NAMES:
    pytest.skip("transformers has no Parakeet", allow_module_level=True)
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated"),
]
# Settings of Nemotron: one frame a chunk; chunks in one window; a window that is no multiple of the
# smallest one; chunks without others before them; more keys before a window than it has queries.
CHUNKS = [(0, 5), (13, 71), (6, 15), (4, 1), (0, 100)]


def make(name, dtype=torch.float64, **changes):
    """Returns an encoder of a family, with attention that is not uniform."""
    torch.manual_seed(1)
    family = registered_families()[name]
    config = family.small_config()
    for key, value in changes.items():
        setattr(config, key, value)
    encoder = imported(family.encoder)(config)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=max(parameter.shape[-1], 4) ** -0.5)
    return encoder.to(dtype)


def call(encoder, length, padded=True, **options):
    """Returns the outputs of an encoder: those of frames that are no padding, if there is any."""
    x = torch.randn(2, length, 16, generator=torch.Generator().manual_seed(5))
    x = x.to(next(encoder.parameters()).dtype)
    if not padded:
        return encoder(x, **options).last_hidden_state
    mask = torch.arange(length) < torch.tensor([[length], [length - length // 3]])
    outputs = encoder(x, mask, **options)
    return outputs.last_hidden_state[outputs.attention_mask.bool()]


def results(encoder, *args, **options):
    """Returns the outputs and the gradients of all parameters by name."""
    outputs = call(encoder, *args, **options)
    encoder.zero_grad()
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    (outputs * weights.to(outputs.dtype)).sum().backward()
    return {"outputs": outputs} | {
        name: x.grad.clone() for name, x in encoder.named_parameters() if x.grad is not None
    }


def assert_equal(found, expected, tolerance=1e-9):
    """Compares results, relative to the largest value of a tensor or to 1."""
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        atol = tolerance * max(1.0, x.abs().max().item())
        torch.testing.assert_close(found[name], x, rtol=0, atol=atol, msg=name)


def exchanged(encoder):
    other = copy.deepcopy(encoder)
    assert replace_attention(other) == 2
    return other


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 13, 260])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_equal(name, length, padded):
    encoder = make(name).train(length > 1)
    expected = results(encoder, length, padded)
    assert any("relative_k_proj" in key for key in expected)
    assert_equal(results(exchanged(encoder), length, padded), expected)


@pytest.mark.skipif(NEMOTRON not in NAMES, reason="transformers has no Nemotron ASR")
@pytest.mark.parametrize(("lookahead", "window"), CHUNKS)
def test_chunks_are_equal(lookahead, window):
    encoder = make(NEMOTRON, sliding_window=window)
    options = {"num_lookahead_tokens": lookahead}
    expected = results(encoder, 203, **options)
    assert_equal(results(exchanged(encoder), 203, **options), expected)


@pytest.mark.skipif(NEMOTRON not in NAMES, reason="transformers has no Nemotron ASR")
def test_streams_of_chunks_are_equal():
    """Calls with caches: transformers computes them."""
    encoder = make(NEMOTRON).eval()
    found = []
    for each in (encoder, exchanged(encoder)):
        x = torch.randn(1, 20, 16, generator=torch.Generator().manual_seed(5)).double()
        caches = {"cache": None, "padding_cache": None}
        for chunk in x.split(5, dim=1):
            outputs = each(chunk, use_cache=True, num_lookahead_tokens=4, **caches)
            caches = {"cache": outputs.cache, "padding_cache": outputs.padding_cache}
            found.append(outputs.last_hidden_state)
    for x, y in zip(found[:4], found[4:], strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


def test_groups_of_heads_are_equal(monkeypatch):
    encoder = make(PARAKEET, num_attention_heads=4, num_key_value_heads=4)
    expected, other = results(encoder, 50), exchanged(encoder)
    for size in (1, 2 * 50 * 4 * 3):  # Groups of one head, and of three and one.
        monkeypatch.setattr(transformer_xl, "LARGEST_GROUP", size)
        assert_equal(results(other, 50), expected)
        options = {"output_attentions": True}
        weights = other(torch.ones(2, 50, 16).double(), **options).attentions
        assert [tuple(x.shape) for x in weights] == [(2, 4, 50, 50)] * 2


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_returned_if_requested(name):
    encoder = make(name, torch.float32).eval()
    x = torch.randn(2, 90, 16, generator=torch.Generator().manual_seed(5))
    mask = torch.ones(2, 90, dtype=torch.bool)
    options = {"output_attentions": True, "output_hidden_states": True}
    found = exchanged(encoder)(x, mask, **options)
    if name == NEMOTRON:  # transformers returns none with "sdpa", and masks other keys with "eager"
        chunk = torch.arange(90) // 5
        distance = chunk[:, None] - chunk
        is_key = ((distance >= 0) & (distance <= 4)).expand(2, 2, -1, -1)
        for x in found["attentions"]:
            assert torch.equal(x > 0, is_key)
            torch.testing.assert_close(x.sum(-1), torch.ones(2, 2, 90))
        return
    encoder.set_attn_implementation("eager")
    expected = encoder(x, mask, **options)
    assert found.keys() == expected.keys()
    for key in ("attentions", "hidden_states"):
        assert len(found[key]) == len(expected[key]) >= 2
        for each, other in zip(found[key], expected[key], strict=True):
            torch.testing.assert_close(each, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing_repeats_dropout(name, use_reentrant):
    encoder, found = make(name, attention_dropout=0.4).train(), []
    replace_attention(encoder)
    for checkpointing in (False, True):
        if checkpointing:
            options = {"use_reentrant": use_reentrant}
            encoder.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        torch.manual_seed(3)
        found.append(results(encoder, 57))
    assert_equal(*found, tolerance=1e-12)


def test_dropout_of_positions_is_computed_by_transformers():
    encoder = make(PARAKEET, dropout_positions=0.3).train()
    other, found = exchanged(encoder), []
    for each in (encoder, other):
        torch.manual_seed(3)
        found.append(results(each, 30))
    assert_equal(*found, tolerance=1e-12)
    assert_equal(results(other.eval(), 30), results(encoder.eval(), 30))


class OwnEncoder(imported(registered_families()[PARAKEET].encoder)):
    """An encoder with a method of its own, whose masks are of pairs."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def test_encoders_with_methods_of_their_own_are_kept():
    encoder = make(PARAKEET)
    encoder.__class__ = OwnEncoder
    assert_equal(results(exchanged(encoder), 60), results(encoder, 60))


def test_masks_of_pairs_become_masks_of_keys():
    real = torch.arange(6) < torch.tensor([[6], [4]])
    both = (real[:, :, None] & real[:, None])[:, None]
    keys = real[:, None, None].expand(-1, 1, 6, -1)
    for mask in (both, keys):
        assert torch.equal(key_or_pair_mask(mask, 2)["key_mask"], real)
    causal = both & torch.ones(6, 6, dtype=torch.bool).tril()
    assert torch.equal(key_or_pair_mask(causal, 2)["mask"], causal)
    assert key_or_pair_mask(torch.ones(2, 1, 6, 6), 2) is None
    assert key_or_pair_mask(None, 2) == {}


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the number of entries of the largest tensor that an operation returns."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        outputs = function(*args, **(kwargs or {}))
        for x in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
            if isinstance(x, torch.Tensor):
                self.size = max(self.size, x.numel())
        return outputs


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_has_an_entry_per_pair(name):
    length = 1500
    encoder = make(name, torch.float32, hidden_size=16)
    replace_attention(encoder)
    with LargestTensor() as largest:
        results(encoder, length)
    assert largest.size < length**2


@pytest.mark.parametrize("name", NAMES)
def test_compiled_encoders_are_equal(name):
    encoder = make(name, torch.float32, num_hidden_layers=1).eval()
    replace_attention(encoder)
    # transformers logs a warning without it, which a graph can't.
    options = {"num_lookahead_tokens": 4} if name == NEMOTRON else {}
    expected = call(encoder, 90, **options)
    torch.testing.assert_close(call(compiled(encoder)[0], 90, **options), expected)


RECOGNIZERS = "ParakeetForRNNT", "ParakeetForTDT", "NemotronAsrStreamingForRNNT"


@pytest.mark.parametrize("name", NAMES)
def test_programs_of_torch_export_take_new_lengths(name):
    encoder = make(name).eval()
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    inputs = lambda batch, length: (
        torch.randn(batch, length, 16).double(),
        torch.arange(length).expand(batch, -1) < length // 2 + 1,
    )
    program = torch.export.export(
        exchanged(encoder), inputs(2, 40), dynamic_shapes=(dynamic, dynamic)
    )
    for batch, length in ((1, 14), (3, 61)):
        x, mask = inputs(batch, length)
        found, expected = (f(x, mask).last_hidden_state for f in (program.module(), encoder))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [*RECOGNIZERS, "Nemotron3_5AsrForRNNT"])
def test_encoders_of_recognizers_are_equal(kind):
    if not hasattr(transformers, kind):
        pytest.skip(f"transformers has no {kind}")
    torch.manual_seed(2)
    family = registered_families()[PARAKEET if kind.startswith("Parakeet") else NEMOTRON]
    sizes = {"decoder_hidden_size": 8, "num_decoder_layers": 1}
    model_class = getattr(transformers, kind)
    encoder = family.small_config().to_dict()
    model = model_class(model_class.config_class(encoder_config=encoder, **sizes)).eval()
    options = {"attention_mask": torch.arange(40) < torch.tensor([[40], [31]])}
    if kind.startswith("Nemotron3"):
        options["prompt_ids"] = torch.zeros(2, dtype=torch.long)
    x = torch.randn(2, 40, 16)
    expected = model.get_audio_features(x, **options).pooler_output
    assert replace_attention(model) == 2
    found = model.get_audio_features(x, **options).pooler_output
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)


def test_losses_of_ctc_are_equal():
    torch.manual_seed(2)
    encoder = registered_families()[PARAKEET].small_config().to_dict()
    config = transformers.ParakeetCTCConfig(vocab_size=11, pad_token_id=10, encoder_config=encoder)
    model = transformers.ParakeetForCTC(config).eval()
    x, labels = torch.randn(2, 40, 16), torch.randint(0, 9, (2, 5))
    mask = torch.arange(40) < torch.tensor([[40], [31]])
    expected = model(x, attention_mask=mask, labels=labels).loss
    assert replace_attention(model) == 2
    torch.testing.assert_close(model(x, attention_mask=mask, labels=labels).loss, expected)
