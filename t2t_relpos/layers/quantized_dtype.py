"""Dtype policies of quantized sublayers, so that a quantized layer or model can be loaded."""

import re

import keras

from t2t_relpos._keras_compat import sublayers


def quantized_dtype(layer):
    """Returns `{"dtype": policies}` for the config of a layer, or `{}` if nothing is quantized.

    Keras stores the quantization of a layer in that layer's config. A layer that creates its own
    sublayers therefore has to add their dtype policies to its config.
    """
    quantized = [
        part for part in sublayers(layer) if getattr(part, "quantization_mode", None) is not None
    ]
    if not quantized:
        return {}
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = keras.dtype_policies.get(policy.default_policy)
    policies = keras.dtype_policies.DTypePolicyMap(default_policy=policy.name)
    for part in quantized:
        inner = part.path.removeprefix(f"{layer.path}/")
        # Enclosing models prepend their names to paths.
        policies[f"(.*/)?{re.escape(layer.name)}/{re.escape(inner)}"] = part.dtype_policy
    return {"dtype": keras.saving.serialize_keras_object(policies)}


def sublayer_dtype(layer, name):
    """Returns the dtype policy for a sublayer that `layer.build` creates.

    The sublayer gets a single policy, not the `DTypePolicyMap` of `layer`. With a map, Keras could
    not save a quantized sublayer, because it reads the mode from the map's default policy.
    """
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy[f"{layer.path}/{name}"]
    return policy
