import time

import keras
import numpy as np
import pytest

from trainer.training.reports import Report, StepRecord
from trainer.training.step_counter import Steps
from trainer.training.step_log import StepLog


class Recorder(Report):
    def __init__(self):
        self.calls = []

    def begin(self, step, until):
        self.calls.append(("begin", step, until))

    def step(self, step, logs):
        self.calls.append(("step", step))

    def record(self, record):
        self.calls.append(record)

    def end(self, step, logs):
        self.calls.append(("end", step, logs))

    def records(self):
        return [call for call in self.calls if isinstance(call, StepRecord)]


class Model:
    stop_training = False
    optimizer = keras.optimizers.SGD(0.25)


class Clock:
    """One second passes with every step."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


def run(log, losses, clock, per_execution=1, **others):
    """An epoch whose steps have these losses, 4 right tokens of 8 target tokens, and 5 source
    tokens.
    """
    callbacks = log.steps, log
    for callback in callbacks:
        callback.on_epoch_begin(0)
    for i in range(per_execution, len(losses) + 1, per_execution):
        clock.now += per_execution
        logs = {
            "loss": np.mean(losses[:i]),
            "accuracy": 0.5,
            "tokens": 13.0 * i,
            "target_tokens": 8.0 * i,
        } | others
        for callback in callbacks:
            callback.on_train_batch_end(i - 1, logs)
    log.on_epoch_end(0, logs)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def recorder():
    return Recorder()


def step_log(recorder, first_step=0, last_step=100, log_every=2, epoch_steps=4):
    steps = Steps(first_step, last_step)
    callback = StepLog(steps, log_every, epoch_steps, recorder)
    callback.steps = steps
    for made in (steps, callback):
        made.set_model(Model())
    return callback


def test_records_are_means_of_their_own_steps(recorder, clock):
    run(step_log(recorder), [8.0, 6.0, 4.0, 1.0], clock)
    first, second = recorder.records()
    assert (first.step, second.step) == (2, 4)
    # The first step, in which TensorFlow compiles, is left out of the rate only.
    assert first.loss == pytest.approx(7.0) and second.loss == pytest.approx(2.5)
    assert first.accuracy == second.accuracy == pytest.approx(0.5)
    assert first.tokens_per_second == second.tokens_per_second == pytest.approx(13.0)
    assert (first.seconds_left, second.seconds_left) == (pytest.approx(98), pytest.approx(96))
    assert first.learning_rate == 0.25
    assert first.gradient_norm is None


def test_steps_go_on_counting_over_epochs_and_runs(recorder, clock):
    log = step_log(recorder, first_step=8, last_step=15, log_every=5)
    run(log, [1.0] * 4, clock)
    clock.now += 1000  # an evaluation
    run(log, [1.0] * 3, clock)
    assert [call for call in recorder.calls if call[0] == "begin"] == [
        ("begin", 8, 12),
        ("begin", 12, 15),
    ]
    assert [call[:2] for call in recorder.calls if call[0] == "end"] == [("end", 12), ("end", 15)]
    assert [record.step for record in recorder.records()] == [10, 15]
    assert recorder.records()[1].tokens_per_second == pytest.approx(13.0)


def test_time_of_checkpoints_does_not_count(recorder, clock):
    log = step_log(recorder)
    run(log, [1.0] * 3, clock)
    with log.steps.paused():
        clock.now += 1000
    run(log, [1.0] * 3, clock)
    assert [record.tokens_per_second for record in recorder.records()] == [pytest.approx(13.0)] * 3


def test_several_steps_in_an_execution(recorder, clock):
    run(step_log(recorder, log_every=3, epoch_steps=8), [1.0] * 8, clock, per_execution=4)
    assert [record.step for record in recorder.records()] == [4, 8]
    assert recorder.records()[1].tokens_per_second == pytest.approx(13.0)


def test_first_record_comes_within_a_minute(recorder, clock):
    """For the time left, also where the next one is hours away."""
    run(step_log(recorder, log_every=70, epoch_steps=100), [1.0] * 80, clock)
    first, second = recorder.records()
    assert (first.step, second.step) == (31, 70)
    assert first.seconds_left == pytest.approx(69)


def test_gradient_norm_is_that_of_the_last_step(recorder, clock):
    run(step_log(recorder), [1.0] * 2, clock, gradient_norm=0.75)
    assert recorder.records()[0].gradient_norm == 0.75
