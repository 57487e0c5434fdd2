"""The position-wise feed-forward network."""

import keras

from t2t_relpos.layers import checks
from t2t_relpos.layers.dropout import Dropout


@keras.saving.register_keras_serializable(package="t2t_relpos")
class FeedForward(keras.layers.Layer):
    """`relu(x·W1 + b1)·W2 + b2`, the same at every position.

    Args:
        intermediate_dim: width between the two products.
        dropout: rate on what relu gives.
        seed: of the dropout.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, T, D]`.
        training: whether dropout is on.

    Returns:
        `[B, T, D]`.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import FeedForward
    >>> tuple(FeedForward(intermediate_dim=5)(np.ones((1, 2, 3))).shape)
    (1, 2, 3)

    Reference: Vaswani et al. 2017, section 3.3; t2t `dense_relu_dense`.
    """

    def __init__(self, intermediate_dim, dropout=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.intermediate_dim = checks.positive_int("intermediate_dim", intermediate_dim)
        self.dropout = checks.rate("dropout", dropout)
        self.seed = seed
        self.supports_masking = True

    def build(self, input_shape):
        policy = self.dtype_policy
        self.inner = keras.layers.Dense(
            self.intermediate_dim, activation="relu", dtype=policy, name="inner"
        )
        self.inner.build(input_shape)
        self.dropout_layer = Dropout(self.dropout, seed=self.seed, dtype=policy)
        self.outer = keras.layers.Dense(input_shape[-1], dtype=policy, name="outer")
        self.outer.build((*input_shape[:-1], self.intermediate_dim))

    def call(self, inputs, training=None):
        return self.outer(self.dropout_layer(self.inner(inputs), training=training))

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "seed": self.seed,
        }
