"""Layer normalization that trains faster on TensorFlow."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos._portable import is_portable


@keras.saving.register_keras_serializable(package="t2t_relpos")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization`; over the last axis with a custom gradient on TensorFlow.

    The results are equal up to rounding. In Keras's layer, the gradients of the separate operations
    read the inputs about twice as often. With another `axis`, `center=False` or `scale=False`,
    Keras's operations are used.

    Args:
        epsilon: added to the variance. Default: 1e-6.
        **kwargs: `axis`, `center`, `scale`, initializers, regularizers and constraints of
            `keras.layers.LayerNormalization`, by keyword; `name`, `dtype`, `trainable` of
            `keras.layers.Layer`.

    Call arguments:
        inputs: `[..., D]`.

    Returns:
        `[..., D]`.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from t2t_relpos.layers.layer_normalization import LayerNormalization
    >>> outputs = LayerNormalization()(np.array([[1.0, 3.0]]))
    >>> keras.ops.convert_to_numpy(outputs).round(2).tolist()
    [[-1.0, 1.0]]

    Reference: Ba et al. 2016; t2t `layer_norm_compute`.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(epsilon=_checks.rate("epsilon", epsilon), **kwargs)

    def call(self, inputs):
        if self.rms_scaling:
            return super().call(inputs)
        rank = len(inputs.shape)
        # Keras's layer normalizes the last axes only, on PyTorch.
        is_last = sorted(axis % rank for axis in self.axis) == list(range(rank))[-len(self.axis) :]
        if keras.backend.backend() == "torch" and (is_portable() or not is_last):
            return self._normalize(inputs)
        if keras.backend.backend() != "tensorflow" or not self._is_default(rank):
            return super().call(inputs)
        from t2t_relpos.layers import _tensorflow_layer_normalization

        arguments = map(ops.convert_to_tensor, (inputs, self.gamma, self.beta))
        outputs = _tensorflow_layer_normalization.normalize(*arguments, self.epsilon)
        return ops.cast(outputs, self.compute_dtype)

    def _is_default(self, rank):
        """Returns whether the last axis is normalized, scaled and centered."""
        return self.axis in ([-1], [rank - 1]) and self.scale and self.center

    def _normalize(self, inputs):
        """Returns the outputs, computed with elementary operations.

        PyTorch can't export its layer normalization to ONNX if a length is unknown.
        """
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        axes = tuple(axis % len(x.shape) for axis in self.axis)
        centred = x - ops.mean(x, axis=axes, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=axes, keepdims=True)
        outputs = centred * ops.rsqrt(variance + self.epsilon)
        sizes = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
        if self.scale:
            outputs = outputs * ops.reshape(self.gamma, sizes)
        if self.center:
            outputs = outputs + ops.reshape(self.beta, sizes)
        return ops.cast(outputs, self.compute_dtype)
