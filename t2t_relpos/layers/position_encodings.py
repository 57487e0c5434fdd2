"""Absolute position encodings, added to the embeddings."""

import math

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos._portable import arange, is_portable


def sinusoids(positions, width, max_wavelength=10_000.0):
    """Returns sines, then cosines, of `positions` at geometrically spaced frequencies.

    Args:
        positions: float `[...]`.
        width: D. If it is odd, the last column is zero.
        max_wavelength: inverse of the lowest frequency. Default: 10,000.

    Returns:
        float `[..., D]`: `concat(sin, cos)`, as in t2t. The paper's formula interleaves them, which
        only changes the order of the columns.

    Reference: Vaswani et al. 2017, section 3.5; t2t `get_timing_signal_1d`.
    """
    count = width // 2
    step = math.log(max_wavelength) / max(count - 1, 1)
    rates = ops.exp(ops.cast(arange(count), "float32") * -step)
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * rates
    signal = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
    if width % 2:
        signal = ops.concatenate([signal, ops.zeros_like(angles[..., :1])], axis=-1)
    return signal


@keras.saving.register_keras_serializable(package="t2t_relpos")
class SinusoidalPositionEncoding(keras.layers.Layer):
    """Adds fixed sines and cosines of the position.

    Args:
        **kwargs: `name`, `dtype` of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, T, D]`.
        start: position of the first input: an int, a scalar tensor, or int `[B]`. Default: 0.

    Returns:
        `[B, T, D]`, the inputs plus the encoding.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.layers import SinusoidalPositionEncoding
    >>> x = SinusoidalPositionEncoding()(np.zeros((1, 2, 4)))
    >>> ops.convert_to_numpy(x[0, 0]).tolist()
    [0.0, 0.0, 1.0, 1.0]

    Reference: t2t `add_timing_signal_1d`.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, start=0):
        signal = sinusoids(_positions(inputs, start), inputs.shape[-1])
        return inputs + ops.cast(signal, inputs.dtype)


@keras.saving.register_keras_serializable(package="t2t_relpos")
class LearnedPositionEmbedding(keras.layers.Layer):
    """Adds a learned vector for every position.

    Args:
        max_length: number of positions with a vector.
        embeddings_initializer: initializer of the table. Default: None, a normal distribution of
            standard deviation `D ** -0.5`, as for `TokenEmbedding`.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, T, D]`.
        start: position of the first input: an int, a scalar tensor, or int `[B]`. Default: 0.

    Returns:
        `[B, T, D]`, the inputs plus the vectors. Positions of `max_length` or more use the last
        vector if lengths are unknown.

    Raises:
        ValueError: if a length is known to exceed `max_length`.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import LearnedPositionEmbedding
    >>> layer = LearnedPositionEmbedding(max_length=5)
    >>> tuple(layer(np.zeros((2, 3, 4))).shape)
    (2, 3, 4)

    Reference: t2t `add_positional_embedding`.
    """

    def __init__(self, max_length, embeddings_initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.max_length = _checks.positive_int("max_length", max_length)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape):
        width = input_shape[-1]
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, width),
            initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=width**-0.5),
        )

    def call(self, inputs, start=0):
        if isinstance(start, int):
            self._check_length(inputs.shape[1], start)
        positions = ops.minimum(_positions(inputs, start), self.max_length - 1)
        table = ops.convert_to_tensor(self.embeddings)
        if is_portable():
            return inputs + ops.take(table, positions, axis=0)
        # The gradient of `take` along axis 1 of [1, P, D] is dense.
        return inputs + ops.take(table[None], positions, axis=1)[0]

    def compute_output_shape(self, input_shape):
        # Without this method, Keras would call the layer with an arbitrary length, at least on
        # PyTorch.
        self._check_length(input_shape[1], 0)
        return input_shape

    def _check_length(self, length, start):
        if isinstance(length, int) and start + length > self.max_length:
            raise ValueError(
                f"Expected at most max_length={self.max_length} positions. Received: "
                f"{start + length}. Raise `max_length`, or use relative positions, which "
                "have no limit."
            )

    def get_config(self):
        initializer = self.embeddings_initializer
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "embeddings_initializer": initializer and keras.initializers.serialize(initializer),
        }


def _positions(inputs, start):
    """Returns int32 positions `[T]`, or `[B, T]` if each batch entry has its own start."""
    positions = arange(ops.shape(inputs)[1])
    start = ops.cast(start, "int32")
    return ops.expand_dims(start, -1) + positions if len(start.shape) else start + positions
