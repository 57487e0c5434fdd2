"""Sums over replicas, and loss scaling for float16."""

import functools

import keras
import tensorflow as tf


def sum_over_replicas(values):
    """Returns a tensor or a list of tensors, summed over all replicas.

    Must be called in the replica context of a training or evaluation step.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


class LossScale:
    """Dynamic loss scaling, which keeps the gradients of float16 computations in range.

    If a gradient is not finite, the scale is halved and the update is skipped. After `growth_steps`
    consecutive updates with finite gradients, the scale is doubled. It stays between `smallest` and
    `largest`. Unlike for `keras.optimizers.LossScaleOptimizer`, skipped updates increment
    `optimizer.iterations`.

    Args:
        optimizer: a built optimizer. Two variables are added to it, so that checkpoints contain the
            state.

    Reference: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
    """

    growth_steps = 2000
    # At a smaller scale, gradients of a usual model underflow. At 0, they are not numbers.
    smallest = 2.0**-14
    # The largest power of two in float32. Twice as much is infinite, and so is half of that.
    largest = 2.0**127

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        self._optimizer = optimizer
        # Aggregation "none": every replica computes the same values.
        add = functools.partial(optimizer.add_variable, (), aggregation="none")
        initial = keras.initializers.Constant(2.0**15)
        self.scale = add(initializer=initial, dtype="float32", name="loss_scale")
        name = "steps_since_loss_scale_changed"
        self._since_change = add(initializer="zeros", dtype="int32", name=name)

    def apply(self, gradients: list[tf.Tensor], variables: list, finite: tf.Tensor):
        """Applies gradients if they are finite, and adapts the scale.

        Args:
            gradients: unscaled gradients, summed over replicas.
            variables: the variables to update.
            finite: scalar bool, whether all gradients are finite.
        """
        # Variables are updated in a merge call, which is not possible inside tf.cond.
        tf.distribute.get_replica_context().merge_call(
            self._apply_or_count, args=(gradients, finite), kwargs={"variables": variables}
        )
        grows = finite & (self._since_change.value + 1 >= self.growth_steps)
        factor = tf.where(finite, tf.where(grows, 2.0, 1.0), 0.5)
        self._since_change.assign(tf.where(finite & ~grows, self._since_change.value + 1, 0))
        scale = tf.clip_by_value(self.scale.value * factor, self.smallest, self.largest)
        self.scale.assign(scale)

    def _apply_or_count(self, strategy, gradients, finite, variables):
        def update():
            strategy.extended.call_for_each_replica(
                self._optimizer.apply, args=(gradients, variables)
            )

        def count():
            self._optimizer.iterations.assign_add(1)

        # All replicas have the same sums.
        tf.cond(strategy.experimental_local_results(finite)[0], update, count)
