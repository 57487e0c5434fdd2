"""Tests programs of `torch.export`, and ONNX models, of new batch sizes and lengths."""

import copy

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import speech_models
import torch
import transformers
from torch import nn

from t2t_relpos.integrations.torch import RelativeMultiheadAttention
from t2t_relpos.integrations.transformers import replace_attention

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

WIDTH = speech_models.WIDTH
BATCH_SIZES = 1, 3
# Fewer positions than the clipping distances, and more.
LENGTHS = 3, 21, 300
# Raised by PyTorch's exporter.
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


class Module(nn.Module):
    """A model of two layers with the module for PyTorch, one of them causal."""

    def __init__(self):
        super().__init__()
        options = {"max_relative_position": (16, 4), "share_heads": False}
        self.first = RelativeMultiheadAttention(WIDTH, 2, **options)
        self.second = RelativeMultiheadAttention(WIDTH, 2, max_relative_position=2)

    def forward(self, x, is_token):
        masks = {"key_padding_mask": is_token == 0, "need_weights": False}
        x = x + self.first(x, x, x, **masks)[0]
        return x + self.second(x, x, x, is_causal=True, **masks)[0]


class W2vBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = speech_models.w2v_bert()

    def forward(self, x, is_token):
        return self.model(x, attention_mask=is_token).last_hidden_state


class SpeechT5(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = speech_models.speecht5().speecht5.encoder.wrapped_encoder

    def forward(self, x, is_token):
        return self.encoder(x, attention_mask=is_token).last_hidden_state


class Vits(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = speech_models.vits().text_encoder

    def forward(self, ids, is_token):
        mask = is_token[..., None].float()
        return self.encoder(ids, mask, attention_mask=is_token).prior_means


class VitsWithoutMask(Vits):
    def forward(self, ids, is_token):
        return self.encoder(ids, is_token[..., None].float()).prior_means


class Voice(nn.Module):
    """A whole VITS without noise."""

    def __init__(self):
        super().__init__()
        config = speech_models.vits().config
        config.duration_predictor_num_flows = 2  # With one, no flow runs.
        self.model = speech_models.initialize(transformers.VitsModel(config))
        self.model.noise_scale = self.model.noise_scale_duration = 0.0
        # Otherwise, the durations that random weights predict are thousands of frames.
        self.model.speaking_rate = 10.0

    def forward(self, ids, is_token):
        return self.model(ids, attention_mask=is_token).waveform


def inputs(model, batch, length):
    """Returns features or ids, and a mask with padding in the first of several sequences."""
    generator = torch.Generator().manual_seed(length)
    if isinstance(model, (Vits, Voice)):
        x = torch.randint(1, speech_models.VOCAB, (batch, length), generator=generator)
    else:
        width = 8 if isinstance(model, W2vBert) else WIDTH
        x = torch.randn(batch, length, width, generator=generator)
    is_token = torch.ones(batch, length, dtype=torch.long)
    if batch > 1:
        is_token[0, length // 2 + 1 :] = 0
    return x, is_token


def run_onnx(program, path):
    """Returns a function that runs a program of `torch.export` in ONNX Runtime."""
    torch.onnx.export(program, f=path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_inputs()]

    def run(*tensors):
        arrays = [x.numpy() for x in tensors]
        return torch.tensor(session.run(None, dict(zip(names, arrays, strict=True)))[0])

    return run


@pytest.mark.parametrize(
    "kind",
    [
        Module,
        W2vBert,
        SpeechT5,
        Vits,
        VitsWithoutMask,
        pytest.param(Voice, marks=pytest.mark.slow),  # run by `make test-voice`
    ],
)
@torch.no_grad()
def test_exports_are_equal_at_new_batch_sizes_and_lengths(kind, tmp_path, monkeypatch):
    # The checks of VITS's durations can't be converted to ONNX.
    monkeypatch.setenv("TRANSFORMERS_DISABLE_TORCH_CHECK", "1")
    model = kind().eval()
    if kind is not Module:
        replace_attention(model)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    program = torch.export.export(model, inputs(model, 2, 20), dynamic_shapes=(sizes, sizes))
    exports = {"torch.export": program.module(), "ONNX": run_onnx(program, tmp_path / "model.onnx")}
    for batch in BATCH_SIZES:
        for length in LENGTHS:
            arguments = inputs(model, batch, length)
            expected = model(*arguments)
            for name, run in exports.items():
                message = f"{name}, batch size {batch}, length {length}: {{}}".format
                torch.testing.assert_close(
                    run(*arguments), expected, atol=1e-4, rtol=0, msg=message
                )


@torch.no_grad()
def test_float16_differs_by_its_rounding(tmp_path):
    model = Module().eval()
    half = copy.deepcopy(model).half()
    x, is_token = inputs(model, 2, 20)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    program = torch.export.export(half, (x.half(), is_token), dynamic_shapes=(sizes, sizes))
    run = run_onnx(program, tmp_path / "model.onnx")
    for length in LENGTHS:
        x, is_token = inputs(model, 3, length)
        expected = model(x, is_token)
        rounding = torch.finfo(torch.float16).eps * expected.abs().max()
        assert (run(x.half(), is_token) - expected).abs().max() < 2 * rounding


@torch.no_grad()
def test_exports_allocate_no_vectors_of_pairs(tmp_path):
    model = RelativeMultiheadAttention(8, 2, max_relative_position=100).eval()
    x = torch.randn(1, 200, 8)
    sizes = {1: torch.export.Dim("length")}
    shapes = {**dict.fromkeys(("query", "key", "value"), sizes), "need_weights": None}
    program = torch.export.export(model, (x, x, x), {"need_weights": False}, dynamic_shapes=shapes)
    largest = 0

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Record():
        program.module()(x, x, x, need_weights=False)
    # Scores of two heads by distance. One-hot ids of pairs would be 201 · 200 · 200.
    assert largest == 2 * 200 * 401
