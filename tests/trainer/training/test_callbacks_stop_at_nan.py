import re

import pytest

from trainer.training.callbacks import NotFiniteError, Steps, StopAtNan
from trainer.training.optimizer import LossScale


@pytest.fixture
def stop():
    steps = Steps(100, 200)
    made = StopAtNan(steps, schedule=lambda update: update / 1000)
    made.steps = steps
    steps.step = 117
    return made


FINE = {"loss": 2.5, "gradient_norm": 0.5, "accuracy": 0.5}
NAN, INFINITY = float("nan"), float("inf")


def test_finite_numbers_pass(stop):
    stop.on_train_batch_end(0, FINE)
    stop.on_train_batch_end(0, {"loss": 2.5})


@pytest.mark.parametrize("logs", [{"loss": NAN}, {"loss": INFINITY}, {"gradient_norm": INFINITY}])
def test_not_finite_value_raises(stop, logs):
    ((name, value),) = logs.items()
    message = (
        f"Expected a finite {name.replace('_', ' ')}. Received: {value} at step 117, with "
        "learning rate 0.116. No checkpoint was written since. Start from the last one"
    )
    with pytest.raises(NotFiniteError, match=re.escape(message)):
        stop.on_train_batch_end(0, FINE | logs)


def test_float16_accepts_gradients_that_are_not_finite(stop):
    stop.on_train_batch_end(0, FINE | {"gradient_norm": INFINITY, "loss_scale": 32768.0})
    with pytest.raises(NotFiniteError, match="Expected a finite loss"):
        stop.on_train_batch_end(0, FINE | {"loss": NAN, "loss_scale": 32768.0})


def test_float16_stops_if_no_gradient_is_finite_at_the_smallest_scale(stop):
    """Nine bad batches in a row do not end a run."""
    skipped = FINE | {"gradient_norm": NAN, "loss_scale": LossScale.smallest}
    for _ in range(3):
        for _ in range(9):
            stop.on_train_batch_end(0, skipped)
        stop.on_train_batch_end(0, skipped | {"gradient_norm": 0.5})
    message = (
        "Expected a finite gradient norm at the smallest loss scale, 6.1e-05. Received: nan at "
        "step 117, .* set --clip_norm. Or train without --precision=float16."
    )
    with pytest.raises(NotFiniteError, match=message):
        for _ in range(10):
            stop.on_train_batch_end(0, skipped)
