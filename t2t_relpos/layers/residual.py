"""Layer normalization, dropout and the residual sum around a sublayer."""

import keras
from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos.attention.dropout import drop
from t2t_relpos.layers.layer_mixin import LayerMixin, config_of


@keras.saving.register_keras_serializable(package="t2t_relpos")
class Residual(LayerMixin, keras.layers.Layer):
    """Layer normalization, dropout and residual sum around a sublayer.

    Pre-norm: `x + dropout(f(norm(x)))`. Post-norm: `norm(x + dropout(f(x)))`.

    Args:
        normalize_first: True for pre-norm, False for post-norm. Default: True.
        dropout: rate of the dropout of the sublayer's outputs. Default: 0.0.
        epsilon: added to the variance in the layer normalization. Default: 1e-6.
        seed: seed of the dropout. Default: None, a random seed.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, T, D]`.
        sublayer: a function of one tensor `[B, T, D]`, passed by keyword. In a functional model, it
            must not have weights.
        training: whether dropout is applied. Default: Keras's training mode.

    Returns:
        `[B, T, D]`.

    Raises:
        ValueError: if `dropout` is not in [0, 1), or `sublayer` is a layer in a functional model.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from t2t_relpos.layers import Residual
    >>> residual = Residual(normalize_first=True)
    >>> outputs = residual(np.array([[[1.0, 3.0]]]), sublayer=lambda x: 10 * x)
    >>> keras.ops.convert_to_numpy(outputs).round(3).tolist()
    [[[-9.0, 13.0]]]

    Reference: t2t `layer_preprocess` and `layer_postprocess`: `n` and `da` (pre-norm), none and
    `dan` (post-norm).
    """

    def __init__(self, normalize_first=True, dropout=0.0, epsilon=1e-6, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.normalize_first = normalize_first
        self.dropout = _checks.rate(dropout, "dropout")
        self.epsilon = epsilon
        self.seed = seed
        self.supports_masking = True

    def build(self, input_shape):
        policy = self.dtype_policy
        self.norm = LayerNormalization(
            epsilon=self.epsilon, dtype=policy, trainable=self.trainable, name="norm"
        )
        self.norm.build(input_shape)
        self.dropout_layer = Dropout(self.dropout, seed=self.seed, dtype=policy)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(self, inputs, sublayer, training=None):
        """Returns the shape and dtype of the outputs, without a call of the sublayer.

        JAX can't infer them, because a function is an argument.
        """
        is_symbolic = isinstance(inputs, keras.KerasTensor)
        if is_symbolic and isinstance(sublayer, keras.layers.Layer):
            raise ValueError(
                "Expected `sublayer` to be a function without weights in a functional model, which "
                f"would not contain the weights of a layer. Received: the layer {sublayer.name}. "
                "Write a layer that has the residual and the sublayer as attributes, and calls the "
                "residual in its `call`."
            )
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def call(self, inputs, sublayer, training=None):
        return self.after(inputs, sublayer(self.before(inputs)), training=training)

    def before(self, inputs):
        """Returns the inputs of the sublayer: normalized if pre-norm.

        Args:
            inputs: `[B, T, D]`.
        """
        return self.norm(inputs) if self.normalize_first else inputs

    def after(self, inputs, outputs, training=None):
        """Returns the sum of inputs and sublayer outputs, normalized if post-norm.

        Args:
            inputs: `[B, T, D]`, the inputs of `before`.
            outputs: `[B, T, D]`, the outputs of the sublayer.
            training: whether dropout is applied. Default: Keras's training mode.
        """
        x = inputs + self.dropout_layer(outputs, training=training)
        return x if self.normalize_first else self.norm(x)

    def get_config(self):
        return {**super().get_config(), **config_of(self, "normalize_first dropout epsilon seed")}


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
    >>> from t2t_relpos.layers.residual import LayerNormalization
    >>> outputs = LayerNormalization()(np.array([[1.0, 3.0]]))
    >>> keras.ops.convert_to_numpy(outputs).round(2).tolist()
    [[-1.0, 1.0]]

    Reference: Ba et al. 2016; t2t `layer_norm_compute`.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(epsilon=_checks.rate(epsilon, "epsilon"), **kwargs)

    def call(self, inputs):
        if self.rms_scaling:
            return super().call(inputs)
        outputs = backend.layer_normalization(
            inputs,
            self.gamma if self.scale else None,
            self.beta if self.center else None,
            sorted(axis % len(inputs.shape) for axis in self.axis),
            self.epsilon,
        )
        return super().call(inputs) if outputs is None else ops.cast(outputs, self.compute_dtype)


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
    >>> from t2t_relpos.layers.residual import Dropout
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
        super().__init__(_checks.rate(rate, "rate"), seed=seed, **kwargs)

    def call(self, inputs, training=False):
        if not self.rate or not training:
            return inputs
        return drop(inputs, self.rate, backend.traced_seeds(self.seed_generator))

    def get_config(self):
        config = super().get_config()
        # This class has no argument `noise_shape`: the mask has the shape of the inputs.
        del config["noise_shape"]
        return config
