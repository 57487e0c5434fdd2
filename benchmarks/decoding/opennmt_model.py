"""This project's weights in a model of OpenNMT-tf 2.32, as a SavedModel. Runs in OpenNMT-tf's own environment.

    PYTHON_OF_OPENNMT benchmarks/opennmt_model.py FOLDER BEAM_SIZE MAX_LENGTH SAVED_MODEL

FOLDER holds what `models.write_for_opennmt` wrote. Their vocabulary begins with three special tokens and ends with one for the
unknown; ours begins with padding and end of sentence. What it has beyond ours is never chosen. Their layer normalization has an
epsilon of at least 1.001e-5 here, below which Keras 2 takes a slower way.
"""

import json
import sys
from pathlib import Path

import numpy as np
import opennmt
import tensorflow as tf

# <blank>, <s> and </s> before the pieces; the unknown after them.
SPECIAL = 3
EOS_ID = 1
NEVER = -1e9
LEAST_EPSILON = 1.001e-5


def rows(table):
    """Our embeddings `[V, D]` in their order, `[V + 2, D]`: zeros for padding, start and unknown."""
    zeros = np.zeros((1, table.shape[1]), "float32")
    return np.concatenate([zeros, zeros, table[EOS_ID:], zeros])


def set_attention(theirs, weights, prefix):
    for name in ("queries", "keys", "values", "output"):
        getattr(theirs.layer, f"linear_{name}").kernel.assign(weights[f"{prefix}/{name}"])
    if theirs.layer.maximum_relative_position is not None:
        theirs.layer.relative_position_keys.assign(weights[f"{prefix}/key_table"])
        theirs.layer.relative_position_values.assign(weights[f"{prefix}/value_table"])
    set_norm(theirs.input_layer_norm or theirs.output_layer_norm, weights, prefix)


def set_norm(norm, weights, prefix):
    norm.gamma.assign(weights[f"{prefix}/gamma"])
    norm.beta.assign(weights[f"{prefix}/beta"])


def set_layer(layer, weights, prefix):
    set_attention(layer.self_attention, weights, f"{prefix}/self")
    if hasattr(layer, "attention"):
        set_attention(layer.attention[0], weights, f"{prefix}/cross")
    for name in ("inner", "outer"):
        dense = getattr(layer.ffn.layer, name)
        dense.kernel.assign(weights[f"{prefix}/{name}/kernel"])
        dense.bias.assign(weights[f"{prefix}/{name}/bias"])
    set_norm(layer.ffn.input_layer_norm or layer.ffn.output_layer_norm, weights, f"{prefix}/ffn")


def transformer(settings):
    """Their Transformer of our architecture, not initialized yet.

    Args:
        settings: of a `TransformerConfig`, as a dict.
    """
    return opennmt.models.Transformer(
        num_layers=(settings["num_encoder_layers"], settings["num_decoder_layers"]),
        num_units=settings["hidden_dim"],
        num_heads=settings["num_heads"],
        ffn_inner_dim=settings["intermediate_dim"],
        dropout=settings["dropout"],
        attention_dropout=settings["attention_dropout"],
        ffn_dropout=settings["activation_dropout"],
        mha_bias=False,
        position_encoder_class=None,
        maximum_relative_position=settings["max_relative_position"],
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        pre_norm=settings["normalize_first"],
    )


def initialize(model, vocabulary, params, settings):
    """Gives the model its vocabulary, its params, and variables."""
    data = {
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary,
        "source_sequence_controls": {"end": True},
    }
    model.initialize(data, params=params)
    for module in model.submodules:
        if isinstance(module, tf.keras.layers.LayerNormalization):
            module.epsilon = max(settings["layer_norm_epsilon"], LEAST_EPSILON)
    model.create_variables()


def build(folder, beam_size, max_length):
    """The model with the settings of its search, as `write_for_opennmt` describes it."""
    settings = json.loads((folder / "architecture.json").read_text())
    model = transformer(settings)
    search = {
        "beam_width": beam_size,
        "length_penalty": settings["alpha"],
        "maximum_decoding_length": max_length,
    }
    initialize(model, str(folder / "vocabulary.txt"), search, settings)
    return model


def set_weights(model, weights):
    table = rows(weights["embeddings"])
    model.features_inputter.embedding.assign(table)
    bias = np.zeros(len(table), "float32")
    bias[[0, 1, -1]] = NEVER
    model.decoder.output_layer.bias.assign(bias)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, layer in enumerate(stack.layers):
            set_layer(layer, weights, f"{name}/{i}")
        if stack.layer_norm is not None:
            set_norm(stack.layer_norm, weights, name)


def main(folder, beam_size, max_length, saved_model):
    tf.get_logger().setLevel("ERROR")
    folder = Path(folder)
    model = build(folder, int(beam_size), int(max_length))
    set_weights(model, np.load(folder / "weights.npz"))
    model.export(saved_model)


if __name__ == "__main__":
    main(*sys.argv[1:])
