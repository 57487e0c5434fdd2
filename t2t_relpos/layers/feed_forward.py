"""The position-wise feed-forward network."""

import keras
from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos.layers.layer_mixin import (
    LayerMixin,
    clone_initializer,
    config_of,
    quantized_dtype,
    sublayer_dtype,
)
from t2t_relpos.layers.residual import Dropout


@keras.saving.register_keras_serializable(package="t2t_relpos")
class FeedForward(LayerMixin, keras.layers.Layer):
    """Two dense layers at every position: `activation(x·W1 + b1)·W2 + b2`.

    Args:
        intermediate_dim: width between the two products.
        dropout: rate of the dropout of the activations. Default: 0.0.
        activation: activation function. Default: `"relu"`.
        kernel_initializer: initializer of both kernels. Default: `"glorot_uniform"`.
        bias_initializer: initializer of both biases. Default: `"zeros"`.
        seed: seed of the dropout. Default: None, a random seed.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, T, D]`.
        training: whether dropout is applied. Default: Keras's training mode.

    Attributes:
        inner: the first `keras.layers.Dense`.
        outer: the second `keras.layers.Dense`.

    Returns:
        `[B, T, D]`.

    Raises:
        ValueError: if `intermediate_dim` is not a positive integer, or `dropout` is not in [0, 1).

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import FeedForward
    >>> tuple(FeedForward(intermediate_dim=5)(np.ones((1, 2, 3))).shape)
    (1, 2, 3)

    Reference: Vaswani et al. 2017, section 3.3; t2t `dense_relu_dense`.
    """

    def __init__(
        self,
        intermediate_dim,
        dropout=0.0,
        activation="relu",
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.intermediate_dim = _checks.positive_int(intermediate_dim, "intermediate_dim")
        self.dropout = _checks.rate(dropout, "dropout")
        self.seed = seed
        self.supports_masking = True

    def build(self, input_shape):
        self.inner = self._dense("inner", self.intermediate_dim, self.activation)
        self.inner.build(input_shape)
        self.dropout_layer = Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy)
        self.outer = self._dense("outer", input_shape[-1])
        self.outer.build((*input_shape[:-1], self.intermediate_dim))

    def _dense(self, name, units, activation=None):
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            bias_initializer=clone_initializer(self.bias_initializer),
            dtype=sublayer_dtype(self, name),
            trainable=self.trainable,
            name=name,
        )

    def call(self, inputs, training=None):
        if len(inputs.shape) == 3 and inputs.shape[0] == 1 and backend.has_dynamic_shapes():
            # Of packed inputs, TensorFlow multiplies matrices with a tenth of the operations.
            return ops.expand_dims(self._feed(ops.squeeze(inputs, 0), training), 0)
        return self._feed(inputs, training)

    def _feed(self, inputs, training):
        return self.outer(self.dropout_layer(self.inner(inputs), training=training))

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        names = "intermediate_dim dropout kernel_initializer bias_initializer seed"
        return {
            **super().get_config(),
            **config_of(self, names),
            "activation": keras.activations.serialize(self.activation),
            **quantized_dtype(self),
        }
