"""Tests of Conformers with the relative positions of Transformer-XL."""

import copy

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
from speech_models import CASES, fastspeech2, wav2vec2_conformer

from t2t_relpos.integrations.families import transformer_xl
from t2t_relpos.integrations.transformers import replace_attention

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = "w2v-BERT, relative", "Wav2Vec2-Conformer", "SeamlessM4T v1", "FastSpeech2-Conformer"


def replaced(model):
    model = copy.deepcopy(model)
    assert replace_attention(model, verify=False) == 2
    return model


def assert_equal(found, expected, tolerance=1e-9):
    """Compares outputs and gradients, two dicts, relative to the largest value or to 1."""
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        largest = max(1.0, x.abs().max().item())
        torch.testing.assert_close(found[name], x, rtol=0, atol=tolerance * largest, msg=name)


def results(case, model, length, padding, **options):
    """Returns outputs at valid frames and gradients, in float64."""
    outputs = case.outputs(model.double(), length, padding, dtype=torch.float64, **options)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(7)).double()
    model.zero_grad()
    (outputs * weights).sum().backward()
    gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    return {"outputs": outputs.detach()} | gradients


@pytest.mark.parametrize("heads", [2, 1])
@pytest.mark.parametrize("name", NAMES)
def test_calls_of_several_and_of_single_heads_are_equal(name, heads, monkeypatch):
    case = CASES[name]
    model, padding = case.make().train(), case.padding(140)
    monkeypatch.setattr(transformer_xl, "LARGEST_GROUP", 2 * 140 * 8 * heads)
    found = results(case, replaced(model), 140, padding)
    assert sum("linear_pos" in x for x in found) == sum("pos_bias_u" in x for x in found) == 2
    assert_equal(found, results(case, model, 140, padding))


def test_weights_of_single_heads_are_joined(monkeypatch):
    case = CASES["Wav2Vec2-Conformer"]
    model, padding = case.make("eager").eval(), case.padding(21)
    monkeypatch.setattr(transformer_xl, "LARGEST_GROUP", 1)
    found, expected = (
        case.call(x, 21, padding, output_attentions=True).attentions
        for x in (replaced(model), model)
    )
    for x, y in zip(found, expected, strict=True):
        assert x.shape == (2, 2, 21, 21)
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


def test_sound_longer_than_the_sinusoids_is_equal():
    case = CASES["Wav2Vec2-Conformer"]
    model = wav2vec2_conformer(max_source_positions=4).train()
    padding = case.padding(21)
    assert_equal(results(case, replaced(model), 21, padding), results(case, model, 21, padding))


def test_frames_of_padding_are_equal():
    for name in NAMES:
        case = CASES[name]
        model, padding = case.make().eval(), case.padding(21)
        found, expected = (case.call(x, 21, padding)[0] for x in (replaced(model), model))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_dropout_of_positions_is_that_of_transformers():
    case = CASES["FastSpeech2-Conformer"]
    rates = {f"{part}_positional_dropout_rate": 0.4 for part in ("encoder", "decoder")}
    model, padding = fastspeech2(dropout=rates).train(), case.padding(21)
    found = []
    for x in (replaced(model), model):
        torch.manual_seed(3)
        found.append(results(case, x, 21, padding))
    assert_equal(*found)


def test_programs_of_torch_export_take_new_lengths():
    case = CASES["Wav2Vec2-Conformer"]
    model = case.make("eager").eval()
    encoder = replaced(model).encoder
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    inputs = lambda batch, length: (
        torch.randn(batch, length, 16),
        torch.arange(length).expand(batch, -1) < length // 2 + 1,
    )
    program = torch.export.export(encoder, inputs(2, 21), dynamic_shapes=(dynamic, dynamic))
    for batch, length in ((1, 3), (3, 40)):
        x, mask = inputs(batch, length)
        found, expected = (
            f(x.clone(), mask)["last_hidden_state"] for f in (program.module(), model.encoder)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_training_steps_of_fastspeech2_have_the_same_losses():
    model, found = fastspeech2().train(), []
    generator = torch.Generator().manual_seed(4)
    spectrogram = torch.randn(2, 14, 4, generator=generator)
    spectrogram[1, 10:] = -100
    durations = torch.tensor([[2] * 7, [2] * 5 + [0] * 2])
    labels = {
        "input_ids": torch.randint(1, 19, (2, 7), generator=generator),
        "attention_mask": (durations > 0).long(),
        "spectrogram_labels": spectrogram,
        "duration_labels": durations,
        "pitch_labels": torch.randn(2, 7, 1, generator=generator),
        "energy_labels": torch.randn(2, 7, 1, generator=generator),
    }
    for x in (replaced(model), model):
        torch.manual_seed(3)  # Dropout of the predictors.
        found.append(x(**labels).loss.item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)
