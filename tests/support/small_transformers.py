"""Small Transformers and language models, and the searches that their outputs are compared with."""

import functools

import keras
import numpy as np
from keras import ops

from t2t_relpos.models import CausalLM, Transformer, TransformerConfig

# Sentence pairs with different lengths of sources and of targets.
SOURCE = np.array([[5, 6, 7, 9, 1], [9, 1, 0, 0, 0], [8, 4, 1, 0, 0]], "int32")
TARGETS = np.array([[3, 4, 5, 6, 7, 8, 1], [8, 9, 1, 0, 0, 0, 0], [2, 1, 0, 0, 0, 0, 0]], "int32")
BATCH = {"inputs": SOURCE, "targets": TARGETS}


def small_config(**settings):
    """Returns the configuration of a small Transformer without dropout, with changed settings."""
    sizes = {
        "vocab_size": 13,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 6,
        "intermediate_dim": 7,
        "num_heads": 3,
        "max_relative_position": 3,
        "max_length": 11,
        "dropout": 0.0,
    }
    return TransformerConfig(**sizes | settings)


def with_noise(model, scale):
    """Returns the model with random changes of all weights, including gains, offsets and biases."""
    rng = np.random.default_rng(7)
    for weight in model.weights:
        if "seed" not in weight.path:
            noise = scale * rng.normal(size=weight.shape)
            weight.assign(ops.convert_to_numpy(weight) + noise)
    return model


def random_transformer(scale, **settings):
    """Returns a small Transformer with random weights."""
    return with_noise(Transformer(small_config(**settings)), scale)


@functools.cache
def shared_transformer(scale, **settings):
    """Returns the same `random_transformer` to all tests, which must not change its weights."""
    return random_transformer(scale, **settings)


def small_causal_lm():
    """Returns a language model of two blocks."""
    keras.utils.set_random_seed(7)
    return CausalLM(11, 2, 6, 13, 2, max_relative_position=3)


def search_ids(model, search, source, max_length, **settings):
    """Returns the ids that a search finds without compilation, of the shape of `generate`'s."""
    state = model.encode(ops.cast(source, "int32"), max_length)
    found = search(model.step, state, len(source), max_length, **settings)
    ids = ops.convert_to_numpy(found.ids)
    return ids if settings.get("num_results", 1) > 1 else ids[:, 0]
