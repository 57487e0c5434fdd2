"""Adam with one TensorFlow op per variable. Keras's Adam uses fourteen."""

import keras
import tensorflow as tf

from trainer.training import keras_compat


class FusedAdam(keras.optimizers.Adam):
    """keras.optimizers.Adam with a fused update op.

    Results are equal to Keras's up to rounding. Variables have the same names, so checkpoints are
    interchangeable. With `amsgrad`, and for sparse gradients, Keras's update is used.

    Reference: Kingma and Ba 2015, algorithm 1 with the change at the end of section 2.

    Example:

    >>> weight = keras.Variable([1.0, 2.0])
    >>> FusedAdam(learning_rate=0.5).apply([tf.constant([3.0, -0.1])], [weight])
    >>> weight.numpy().round(4).tolist()
    [0.5, 2.5]
    """

    def __init__(self, *args, name="adam", **kwargs):
        super().__init__(*args, name=name, **kwargs)

    def update_step(self, gradient, variable, learning_rate):
        if self.amsgrad or isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        momentum, velocity = (x.value for x in keras_compat.adam_slots(self, variable))
        dtype, steps = variable.dtype, tf.cast(self.iterations.value + 1, variable.dtype)
        beta_1, beta_2, epsilon = (
            tf.constant(x, dtype) for x in (self.beta_1, self.beta_2, self.epsilon)
        )
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=momentum.handle,
            v=velocity.handle,
            beta1_power=beta_1**steps,
            beta2_power=beta_2**steps,
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.cast(gradient, dtype),
        )
