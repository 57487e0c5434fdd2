"""Learning rates as functions of the step."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="trainer")
class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then the inverse square root of the step.

    The rate at step s, the first update being step 0, is
    `multiplier · min(1, s / warmup_steps) · max(s, warmup_steps)^-0.5 · model_width^-0.5`.

    Args:
        model_width: width D of the model.
        warmup_steps: updates until the rate is largest.
        multiplier: factor of it all; t2t's third version of the base model has 2, Vaswani et al. 1.

    Raises:
        ValueError: where an argument is not positive.

    Reference: t2t `learning_rate_factor`, `constant*linear_warmup*rsqrt_decay*rsqrt_hidden_size`;
    Vaswani et al. 2017, equation 3.

    Example:

    >>> schedule = NoamSchedule(model_width=64, warmup_steps=100)
    >>> [round(float(schedule(step)), 5) for step in (0, 50, 100, 400)]
    [0.0, 0.0125, 0.025, 0.0125]
    """

    def __init__(self, model_width: int, warmup_steps: int, multiplier: float = 2.0):
        for name, value in (
            ("model_width", model_width),
            ("warmup_steps", warmup_steps),
            ("multiplier", multiplier),
        ):
            if not value > 0:
                raise ValueError(f"Expected {name} to be positive. Received: {value}.")
        self.model_width = model_width
        self.warmup_steps = warmup_steps
        self.multiplier = multiplier

    def __call__(self, step):
        step = ops.cast(step, "float32")
        warmup = ops.minimum(1.0, step / self.warmup_steps)
        decay = ops.rsqrt(ops.maximum(step, float(self.warmup_steps)))
        return self.multiplier * self.model_width**-0.5 * warmup * decay

    def get_config(self):
        return {
            "model_width": self.model_width,
            "warmup_steps": self.warmup_steps,
            "multiplier": self.multiplier,
        }
