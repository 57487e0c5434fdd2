"""The optimizer: Noam's learning rates, Adam as one op per variable, and loss scaling."""

import functools

import keras
import tensorflow as tf
from keras import ops


class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The Noam schedule: linear warm-up, then decay with the inverse square root of the step.

    The learning rate at step s, from 0, is
    `multiplier · min(1, s / warmup_steps) · max(s, warmup_steps)^-0.5 · model_width^-0.5`.

    Args:
        model_width: width D of the model.
        warmup_steps: number of updates until the learning rate reaches its maximum.
        multiplier: constant factor: 1 in Vaswani et al., 2 in t2t's transformer_base_v3.

    Reference: t2t `learning_rate_factor`, `constant*linear_warmup*rsqrt_decay*rsqrt_hidden_size`;
    Vaswani et al. 2017, equation 3.

    Example:

    >>> from trainer.training.optimizer import NoamSchedule
    >>> schedule = NoamSchedule(model_width=64, warmup_steps=100)
    >>> [round(float(schedule(step)), 5) for step in (0, 50, 100, 400)]
    [0.0, 0.0125, 0.025, 0.0125]
    """

    def __init__(self, model_width: int, warmup_steps: int, multiplier: float = 2.0):
        self._width, self._warmup_steps, self._multiplier = model_width, warmup_steps, multiplier

    def __call__(self, step):
        step = ops.cast(step, "float32")
        warmup = ops.minimum(1.0, step / self._warmup_steps)
        decay = ops.rsqrt(ops.maximum(step, float(self._warmup_steps)))
        return self._multiplier * self._width**-0.5 * warmup * decay


class FusedAdam(keras.optimizers.Adam):
    """keras.optimizers.Adam with a fused update op.

    Results are equal to Keras's up to rounding. Variables have the same names, so checkpoints are
    interchangeable.

    Reference: Kingma and Ba 2015, algorithm 1 with the change at the end of section 2.

    Example:

    >>> import keras
    >>> import tensorflow as tf
    >>> from trainer.training.optimizer import FusedAdam
    >>> weight = keras.Variable([1.0, 2.0])
    >>> FusedAdam(learning_rate=0.5).apply([tf.constant([3.0, -0.1])], [weight])
    >>> weight.numpy().round(4).tolist()
    [0.5, 2.5]
    """

    def __init__(self, *args, name="adam", **kwargs):
        super().__init__(*args, name=name, **kwargs)

    def apply(self, grads, trainable_variables=None):
        self._shared = {}  # Results of `_arguments` in this update.
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        index, dtype = self._get_variable_index(variable), variable.dtype
        # In a replica context, the slots of that replica.
        momentum, velocity = self._momentums[index].value, self._velocities[index].value
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:  # on several devices
            arguments = self._arguments(dtype, learning_rate)
        else:
            # A fifth of a step's operations otherwise.
            key = dtype, tf.compat.v1.get_default_graph()
            if key not in self._shared:
                self._shared[key] = self._arguments(dtype, learning_rate)
            arguments = self._shared[key]
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=momentum.handle,
            v=velocity.handle,
            grad=tf.cast(gradient, dtype),
            **arguments,
        )

    def _arguments(self, dtype, learning_rate):
        """Returns the arguments of the operation that the variables of a dtype share."""
        steps = tf.cast(self.iterations.value + 1, dtype)
        names = {"beta1": self.beta_1, "beta2": self.beta_2, "epsilon": self.epsilon}
        values = {name: tf.constant(x, dtype) for name, x in names.items()}
        powers = {f"{name}_power": values[name] ** steps for name in ("beta1", "beta2")}
        return values | powers | {"lr": tf.cast(learning_rate, dtype)}


class LossScale:
    """Dynamic loss scaling, which keeps the gradients of float16 computations in range.

    If a gradient is not finite, the scale is halved and the update is skipped. After `growth_steps`
    consecutive updates with finite gradients, the scale is doubled. It stays between `smallest` and
    `largest`. Unlike for `keras.optimizers.LossScaleOptimizer`, skipped updates increment
    `optimizer.iterations`. Two variables are added to the built optimizer, so that checkpoints
    contain the state.

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
        """Applies finite gradients, unscaled and summed over replicas, and adapts the scale."""
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
