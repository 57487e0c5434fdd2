"""Builds OpenNMT-tf 2.32's Transformer with this project's weights. Runs in its environment.

    OPENNMT_PYTHON -m benchmarks.decoding.opennmt_model FOLDER BEAM_SIZE MAX_LENGTH

FOLDER is the output of `models.write_for_opennmt`; the SavedModel is written into it. OpenNMT-tf's
vocabulary has two additional tokens, start and unknown, which the search never chooses.
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
    """Assigns arrays to variables, which are named by their paths of attributes and indices."""
    for path, array in weights.items():
        variable = model
        for name in path.split("."):
            variable = variable[int(name)] if name.isdigit() else getattr(variable, name)
        variable.assign(array)


def main(folder, beam_size, max_length):
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
    model.export(str(folder / "saved_model"))


if __name__ == "__main__":
    main(*sys.argv[1:])
