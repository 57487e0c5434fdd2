"""From the gradients of every replica to one update of the weights: sum, loss scale, norm,
clipping.
"""

import keras
import tensorflow as tf


def sum_over_replicas(values):
    """The sums of every replica's tensors, inside of a step; the tensors themselves with one
    replica.

    Args:
        values: a tensor or a list of tensors.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def clip(gradients: list[tf.Tensor], norm: tf.Tensor, clip_norm: float) -> list[tf.Tensor]:
    """Scales gradients of the global norm `norm` down to `clip_norm` where it is larger."""
    factor = clip_norm / tf.maximum(norm, clip_norm)
    return [gradient * factor for gradient in gradients]


class LossScale:
    """A factor of the loss that keeps the gradients of float16 computations in range.

    It is halved, and the update left out, when a gradient is infinite or not a number; it is
    doubled when that has not happened for a while. An update left out is counted as one, so that
    the number of updates stays that of the batches.

    Args:
        optimizer: a built optimizer; gets two variables more, with which its checkpoints hold the
            state.
        initial: the scale to begin with, in units of the loss.
        growth_steps: updates after which it is doubled.

    Reference: Micikevicius et al. 2018, "Mixed precision training", section 3.2;
    `keras.optimizers.LossScaleOptimizer`, which leaves updates uncounted.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        initial: float = 2.0**15,
        growth_steps: int = 2000,
    ):
        self._optimizer = optimizer
        self._growth_steps = growth_steps
        # Aggregation "none": every replica computes the same values.
        self.scale = optimizer.add_variable(
            (),
            initializer=keras.initializers.Constant(initial),
            dtype="float32",
            aggregation="none",
            name="loss_scale",
        )
        self._since_change = optimizer.add_variable(
            (),
            initializer="zeros",
            dtype="int32",
            aggregation="none",
            name="steps_since_loss_scale_changed",
        )

    def apply(self, gradients: list[tf.Tensor], variables: list, finite: tf.Tensor):
        """Makes an update of unscaled gradients summed over replicas, or leaves it out, and adapts
        the scale.
        """
        # Replicas update variables together, which they can't do in a separate branch.
        tf.distribute.get_replica_context().merge_call(
            self._apply_or_count, args=(gradients, finite), kwargs={"variables": variables}
        )
        grows = finite & (self._since_change.value + 1 >= self._growth_steps)
        factor = tf.where(finite, tf.where(grows, 2.0, 1.0), 0.5)
        self._since_change.assign(tf.where(finite & ~grows, self._since_change.value + 1, 0))
        self.scale.assign(self.scale.value * factor)

    def _apply_or_count(self, strategy, gradients, finite, variables):
        def update():
            strategy.extended.call_for_each_replica(
                self._optimizer.apply, args=(gradients, variables)
            )

        def count():
            self._optimizer.iterations.assign_add(1)

        # All replicas have the same sums.
        tf.cond(strategy.experimental_local_results(finite)[0], update, count)
