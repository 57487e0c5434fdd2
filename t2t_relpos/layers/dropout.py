"""Dropout that trains faster on TensorFlow."""

import keras

from t2t_relpos import _checks
from t2t_relpos.attention.dropout import drop
from t2t_relpos.layers.layer_mixin import LayerMixin


@keras.saving.register_keras_serializable(package="t2t_relpos")
class Dropout(LayerMixin, keras.layers.Dropout):
    """`keras.layers.Dropout` that draws half as many random bits on TensorFlow.

    Args:
        rate: fraction of entries set to zero, in `[0, 1)`; on TensorFlow rounded to 1 / 65,536.
        seed: seed of the masks. Default: None, a random seed.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        inputs: a floating-point tensor of any shape.
        training: whether dropout is applied. Default: Keras's training mode.

    Returns:
        A tensor with the shape and dtype of `inputs`.

    Raises:
        ValueError: if `rate` is not in `[0, 1)`, or `noise_shape` is given.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from t2t_relpos.layers.dropout import Dropout
    >>> outputs = Dropout(0.2, seed=1)(np.ones((7, 11)), training=True)
    >>> sorted(set(keras.ops.convert_to_numpy(outputs).ravel().round(3).tolist()))
    [0.0, 1.25]
    """

    def __init__(self, rate, seed=None, **kwargs):
        if kwargs.get("noise_shape") is not None:
            raise ValueError(
                "Expected no `noise_shape`: the mask has the shape of the inputs. Received: "
                f"noise_shape={kwargs['noise_shape']}. Use keras.layers.Dropout."
            )
        super().__init__(_checks.rate("rate", rate), seed=seed, **kwargs)

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        return drop(inputs, self.rate, self.seed_generator)

    def get_config(self):
        config = super().get_config()
        # This class has no argument `noise_shape`: the mask has the shape of the inputs.
        del config["noise_shape"]
        return config
