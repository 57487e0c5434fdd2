"""Learning rate schedules."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="trainer")
class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The Noam schedule: linear warm-up, then decay with the inverse square root of the step.

    The learning rate at step s, from 0, is
    `multiplier · min(1, s / warmup_steps) · max(s, warmup_steps)^-0.5 · model_width^-0.5`.

    Args:
        model_width: width D of the model.
        warmup_steps: number of updates until the learning rate reaches its maximum.
        multiplier: constant factor: 1 in Vaswani et al., 2 in t2t's transformer_base_v3.

    Raises:
        ValueError: if an argument is not positive.

    Reference: t2t `learning_rate_factor`, `constant*linear_warmup*rsqrt_decay*rsqrt_hidden_size`;
    Vaswani et al. 2017, equation 3.

    Example:

    >>> schedule = NoamSchedule(model_width=64, warmup_steps=100)
    >>> [round(float(schedule(step)), 5) for step in (0, 50, 100, 400)]
    [0.0, 0.0125, 0.025, 0.0125]
    """

    def __init__(self, model_width: int, warmup_steps: int, multiplier: float = 2.0):
        self._config = {"model_width": model_width, "warmup_steps": warmup_steps}
        self._config["multiplier"] = multiplier
        for name, value in self._config.items():
            if not value > 0:
                raise ValueError(f"Expected {name} to be positive. Received: {value}.")

    def __call__(self, step):
        width, warmup_steps = self._config["model_width"], self._config["warmup_steps"]
        step = ops.cast(step, "float32")
        warmup = ops.minimum(1.0, step / warmup_steps)
        decay = ops.rsqrt(ops.maximum(step, float(warmup_steps)))
        return self._config["multiplier"] * width**-0.5 * warmup * decay

    def get_config(self):
        return dict(self._config)
