"""Converts a trained `keras.layers.MultiHeadAttention` to relative attention."""

import keras

from t2t_relpos._keras_compat import attention_projections


def from_keras_attention(cls, layer, extra):
    """Returns a layer of the class `cls` with the weights of Keras's layer and zero tables.

    Args:
        cls: `RelativeMultiHeadAttention` or a subclass.
        layer: a built `keras.layers.MultiHeadAttention` with one attention axis.
        extra: arguments of `cls` that Keras's layer does not have.

    Raises:
        ValueError: if `layer` is not a `keras.layers.MultiHeadAttention`, is not built, has several
            attention axes, or has LoRA or quantized weights.
    """
    if not isinstance(layer, keras.layers.MultiHeadAttention):
        raise ValueError(
            "Expected a `keras.layers.MultiHeadAttention`. Received: a "
            f"{type(layer).__name__}. Pass the attention layer that it contains."
        )
    if not layer.built:
        raise ValueError(
            "Expected a built layer. Received: one without weights. Call it once first."
        )
    _check_projections(layer)
    relative_layer = cls.from_config(layer.get_config() | extra | {"table_initializer": "zeros"})
    # The order is that of the arguments of `build`.
    projections = layer.query_dense, layer.value_dense, layer.key_dense
    relative_layer.build(*((None, None, dense.kernel.shape[0]) for dense in projections))
    for name, keras_dense in attention_projections(layer).items():
        getattr(relative_layer, f"{name}_dense").set_weights(keras_dense.get_weights())
    relative_layer.built = True
    return relative_layer


def _check_projections(layer):
    """Raises ValueError if a projection of Keras's layer has LoRA or quantized weights."""
    for name, dense in attention_projections(layer).items():
        if dense.lora_enabled:
            raise ValueError(
                f"Expected a layer without LoRA. Received: LoRA in the {name} projection of "
                f"{layer.name}. Convert the layer before `enable_lora`, or save and load its "
                "model. That merges LoRA into the weights."
            )
        if dense.quantization_mode is not None:
            raise ValueError(
                f"Expected a layer with floating-point weights. Received: {layer.name}, whose "
                f"{name} projection is quantized to {dense.quantization_mode}. Convert the layer "
                "before `quantize`, then quantize the result."
            )


def check_attention_axes(attention_axes):
    """Raises ValueError unless `attention_axes` is None or the sequence axis of `[B, T, D]`."""
    if attention_axes not in (None, 1, (1,), [1], -2, (-2,), [-2]):
        raise ValueError(
            "Expected `attention_axes` to be None or 1, the sequence axis of "
            "[batch, length, width]: relative positions have one axis. "
            f"Received: attention_axes={attention_axes!r}"
        )
