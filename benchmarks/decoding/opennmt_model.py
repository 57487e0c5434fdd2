"""Builds OpenNMT-tf 2.32's Transformer with this project's weights. Runs in its environment.

    OPENNMT_PYTHON -m benchmarks.decoding.opennmt_model FOLDER BEAM_SIZE MAX_LENGTH SAVED_MODEL

FOLDER is the output of `models.write_for_opennmt`. OpenNMT-tf's vocabulary has two additional
tokens, start and unknown. A large negative bias prevents the search from choosing them.
"""

import json
import sys
from pathlib import Path

import numpy as np
import opennmt
import tensorflow as tf

SPECIAL_TOKENS = ("<blank>", "<s>", "</s>")
# This project's vocabulary starts with padding and EOS.
EOS_ID = 1
NEVER_CHOSEN = -1e9
# Below this epsilon Keras 2 uses a slower layer normalization.
MIN_EPSILON = 1.001e-5


def make_transformer(config: dict):
    """Returns an uninitialized OpenNMT-tf Transformer of the given architecture.

    Args:
        config: fields of a `TransformerConfig`.
    """
    return opennmt.models.Transformer(
        num_layers=(config["num_encoder_layers"], config["num_decoder_layers"]),
        num_units=config["hidden_dim"],
        num_heads=config["num_heads"],
        ffn_inner_dim=config["intermediate_dim"],
        dropout=config["dropout"],
        attention_dropout=config["attention_dropout"],
        ffn_dropout=config["activation_dropout"],
        mha_bias=False,
        position_encoder_class=None,
        maximum_relative_position=config["max_relative_position"],
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        pre_norm=config["normalize_first"],
    )


def initialize(model, vocabulary: str, params: dict, config: dict):
    """Sets the model's vocabulary file and params, and creates its variables."""
    data = {
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary,
        "source_sequence_controls": {"end": True},
    }
    model.initialize(data, params=params)
    for module in model.submodules:
        if isinstance(module, tf.keras.layers.LayerNormalization):
            module.epsilon = max(config["layer_norm_epsilon"], MIN_EPSILON)
    model.create_variables()


def set_weights(model, weights):
    """Assigns the arrays of `models.write_for_opennmt`."""
    zeros = np.zeros((1, weights["embeddings"].shape[1]), "float32")
    table = np.concatenate([zeros, zeros, weights["embeddings"][EOS_ID:], zeros])
    model.features_inputter.embedding.assign(table)
    bias = np.zeros(len(table), "float32")
    bias[[0, 1, -1]] = NEVER_CHOSEN
    model.decoder.output_layer.bias.assign(bias)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, layer in enumerate(stack.layers):
            _set_layer(layer, weights, f"{name}/{i}")
        if stack.layer_norm is not None:
            _set_norm(stack.layer_norm, weights, name)


def _set_layer(layer, weights, prefix):
    _set_attention(layer.self_attention, weights, f"{prefix}/self")
    if hasattr(layer, "attention"):
        _set_attention(layer.attention[0], weights, f"{prefix}/cross")
    for name in ("inner", "outer"):
        dense = getattr(layer.ffn.layer, name)
        dense.kernel.assign(weights[f"{prefix}/{name}/kernel"])
        dense.bias.assign(weights[f"{prefix}/{name}/bias"])
    _set_norm(layer.ffn.input_layer_norm or layer.ffn.output_layer_norm, weights, f"{prefix}/ffn")


def _set_attention(wrapper, weights, prefix):
    attention = wrapper.layer
    for name in ("queries", "keys", "values", "output"):
        getattr(attention, f"linear_{name}").kernel.assign(weights[f"{prefix}/{name}"])
    if attention.maximum_relative_position is not None:
        attention.relative_position_keys.assign(weights[f"{prefix}/key_table"])
        attention.relative_position_values.assign(weights[f"{prefix}/value_table"])
    _set_norm(wrapper.input_layer_norm or wrapper.output_layer_norm, weights, prefix)


def _set_norm(norm, weights, prefix):
    norm.gamma.assign(weights[f"{prefix}/gamma"])
    norm.beta.assign(weights[f"{prefix}/beta"])


def main(folder, beam_size, max_length, saved_model):
    tf.get_logger().setLevel("ERROR")
    folder = Path(folder)
    config = json.loads((folder / "architecture.json").read_text())
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join(SPECIAL_TOKENS) + "\n" + (folder / "tokens.txt").read_text())
    model = make_transformer(config)
    params = {
        "beam_width": int(beam_size),
        "length_penalty": config["alpha"],
        "maximum_decoding_length": int(max_length),
    }
    initialize(model, str(vocabulary), params, config)
    set_weights(model, np.load(folder / "weights.npz"))
    model.export(saved_model)


if __name__ == "__main__":
    main(*sys.argv[1:])
