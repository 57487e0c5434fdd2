"""Every layer with inputs, masks and dropout, for tests that apply to all layers."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from t2t_relpos import layers

WIDTH, BATCH = 6, 3
# Axes of the inputs after the batch axis. Letters are unknown sizes.
INPUTS = {
    "x": ("T", WIDTH),
    "y": ("S", WIDTH),
    "long": ("L", WIDTH),
    "image": ("H", "W", WIDTH),
    "labels": ("T", "S"),
    "ids": ("T",),
    "y_ids": ("S",),
    "x_mask": ("T",),
    "y_mask": ("S",),
    "long_mask": ("L",),
    "image_mask": ("H", "W"),
}
SIZES = {"T": 17, "S": 19, "L": 71, "H": 5, "W": 7}
HEADS = {"num_heads": 2, "key_dim": 5}
RELATIVE = HEADS | {"max_relative_position": 3}
BLOCK = {"intermediate_dim": 11, "num_heads": 2, "max_relative_position": 3}


class LayerCase(NamedTuple):
    """A layer and the inputs of its call.

    Args:
        make: `make(dropout=0.0, **settings)` returns the layer.
        inputs: names of the positional arguments, separated by spaces.
        masks: names of inputs, or True, by argument of a call with masks.
        others: other arguments of every call: names of inputs, or functions.
    """

    make: Callable
    inputs: str
    masks: dict = {}
    others: dict = {}

    def input_names(self, masks=False):
        """Returns the names of all inputs of a call."""
        arguments = [*self.inputs.split(), *self.others.values()]
        arguments += self.masks.values() if masks else []
        return list(dict.fromkeys(each for each in arguments if isinstance(each, str)))

    def call(self, function, inputs, masks=False):
        """Calls the layer, or a function with the same signature, with a dict of inputs."""
        named = self.others | (self.masks if masks else {})
        named = {
            name: inputs[value] if isinstance(value, str) else value
            for name, value in named.items()
        }
        return function(*(inputs[name] for name in self.inputs.split()), **named)


def _without_dropout(layer, **settings):
    return lambda dropout=0.0, **others: layer(**settings | others)


def _encoder(dropout=0.0, **settings):
    settings = BLOCK | {"normalize_first": True, "activation_dropout": dropout} | settings
    return layers.TransformerEncoder(**settings, dropout=dropout)


_relative, _v2 = layers.RelativeMultiHeadAttention, layers.RelativeMultiHeadAttentionV2
_local, _decoder = layers.LocalRelativeMultiHeadAttention, layers.TransformerDecoder
_DECODER_MASKS = {"decoder_padding_mask": "x_mask", "encoder_padding_mask": "y_mask"}
CASES = {
    "relative": LayerCase(
        partial(_relative, **RELATIVE),
        "x y",
        {"value_mask": "y_mask", "use_causal_mask": True},
    ),
    "relative_per_head": LayerCase(
        partial(_relative, **RELATIVE, share_heads=False), "x y", {"value_mask": "y_mask"}
    ),
    "relative_flash": LayerCase(
        partial(_relative, **RELATIVE, flash_attention=True), "x y", {"value_mask": "y_mask"}
    ),
    "relative_without_tables": LayerCase(
        partial(_relative, **RELATIVE, use_key_table=False, use_value_table=False), "x x"
    ),
    "relative_left_right": LayerCase(
        partial(_relative, **HEADS, max_relative_position=(6, 2)),
        "x y",
        {"value_mask": "y_mask"},
    ),
    # K is larger than all distances.
    "relative_large_k": LayerCase(partial(_relative, **HEADS, max_relative_position=40), "x x"),
    "relative_positions": LayerCase(
        partial(_relative, **RELATIVE),
        "x y",
        others={"query_positions": "ids", "key_positions": "y_ids"},
    ),
    "relative_window": LayerCase(
        partial(_relative, **RELATIVE, sliding_window=4),
        "long long",
        {"use_causal_mask": True},
    ),
    "v2": LayerCase(
        partial(_v2, **RELATIVE, use_value_table=True), "x y", {"value_mask": "y_mask"}
    ),
    "v2_masked": LayerCase(partial(_v2, **RELATIVE, masked=True), "x y", {"value_mask": "y_mask"}),
    "2d": LayerCase(
        partial(layers.RelativeMultiHeadAttention2D, **RELATIVE),
        "image image",
        {"value_mask": "image_mask"},
    ),
    "local": LayerCase(
        partial(_local, **HEADS, block_length=3, use_value_table=True),
        "x x",
        {"value_mask": "x_mask"},
    ),
    "relations": LayerCase(
        partial(layers.RelationMultiHeadAttention, **HEADS, num_relations=7),
        "x y",
        {"value_mask": "y_mask"},
        {"relations": "labels"},
    ),
    "position_embedding": LayerCase(
        _without_dropout(layers.RelativePositionEmbedding, max_relative_position=3, depth=5), "x y"
    ),
    "sinusoids": LayerCase(_without_dropout(layers.SinusoidalPositionEncoding), "x"),
    "learned_positions": LayerCase(
        _without_dropout(layers.LearnedPositionEmbedding, max_length=31), "x"
    ),
    "tokens": LayerCase(
        _without_dropout(layers.TokenEmbedding, vocab_size=7, hidden_dim=WIDTH), "ids"
    ),
    "feed_forward": LayerCase(partial(layers.FeedForward, intermediate_dim=11), "x"),
    "residual": LayerCase(
        partial(layers.Residual, normalize_first=True), "x", others={"sublayer": ops.tanh}
    ),
    "encoder": LayerCase(_encoder, "x", {"padding_mask": "x_mask"}),
    "decoder": LayerCase(partial(_decoder, **BLOCK, normalize_first=True), "x y", _DECODER_MASKS),
    "decoder_relative_cross_attention": LayerCase(
        # The activation is smooth, so that finite differences are close to gradients.
        partial(
            _decoder,
            **BLOCK,
            normalize_first=True,
            relative_cross_attention=True,
            activation="silu",
        ),
        "x y",
        _DECODER_MASKS,
    ),
    "decoder_only": LayerCase(partial(_decoder, **BLOCK), "x", {"decoder_padding_mask": "x_mask"}),
}
# Settings in addition to those of CASES.
VARIANTS = {
    "relative": [
        {"share_heads": False, "value_dim": 7, "output_shape": 11},
        {"use_bias": False, "use_value_table": False, "sliding_window": 3},
        {"use_gate": True, "use_key_table": False, "seed": 5, "dropout": 0.1},
        {"kernel_regularizer": "l2", "bias_constraint": "unit_norm", "activity_regularizer": "l1"},
    ],
    "v2": [
        {"masked": True, "value_dim": 7, "output_shape": 11},
        {"share_heads": True, "use_bias": False, "sliding_window": 3},
        {"table_initializer": "zeros", "use_gate": True, "use_value_table": False, "seed": 5},
    ],
    "2d": [
        {"share_heads": True, "value_dim": 7, "output_shape": 11, "use_bias": False},
        {"table_initializer": "zeros", "use_gate": True, "dropout": 0.1, "seed": 5},
    ],
    "local": [
        {"share_heads": True, "value_dim": 7, "output_shape": 11},
        {"table_initializer": "zeros", "use_gate": True, "use_value_table": False, "dropout": 0.1},
    ],
    "relations": [
        {"share_heads": False, "value_dim": 7},
        {"use_key_table": False, "dropout": 0.1, "seed": 3},
    ],
    "feed_forward": [{"dropout": 0.1}],
    "encoder": [
        {"normalize_first": False, "share_heads": False, "dropout": 0.1, "seed": 3},
        {"sliding_window": 3},
    ],
    "decoder": [{"flash_attention": True, "sliding_window": 3}],
    "decoder_relative_cross_attention": [{"max_relative_position": (4, 1), "share_heads": False}],
}
# (case, settings) by the name of a case and the number of its settings.
LAYERS = {
    f"{name}_{number}": (CASES[name], settings)
    for name in CASES
    for number, settings in enumerate([{}, *VARIANTS.get(name, [])])
}


def dtype_of(name):
    """Returns the dtype of an input."""
    if name.endswith("_mask"):
        return "bool"
    return "int32" if name in ("labels", "ids", "y_ids") else "float32"


def random_inputs(names, rng, sizes=SIZES):
    """Returns arrays by input name. Masks are True. Some labels are -1, no edge."""
    arrays = {}
    for name in names:
        shape = (BATCH, *(sizes.get(axis, axis) for axis in INPUTS[name]))
        values = {
            "float32": lambda: rng.normal(size=shape),
            "int32": lambda: rng.integers(-1 if name == "labels" else 0, 7, shape),
            "bool": lambda: np.ones(shape),
        }[dtype_of(name)]()
        arrays[name] = values.astype(dtype_of(name))
    return arrays


def symbolic_inputs(names, sizes=None):
    """Returns symbolic inputs by name, of unknown sizes or of those of `random_inputs`."""
    return {
        name: keras.Input(
            [(sizes or {}).get(axis) if isinstance(axis, str) else axis for axis in INPUTS[name]],
            dtype=dtype_of(name),
            name=name,
        )
        for name in names
    }


def as_array(x):
    """Returns a tensor of any dtype as an array of float32."""
    return ops.convert_to_numpy(ops.cast(x, "float32"))
