import time

import keras
import numpy as np
import pytest

from trainer.training.callbacks import Steps
from trainer.training.reports import StepLog


class Model:
    """A model whose steps have given losses and 13 tokens."""

    stop_training = False
    optimizer = keras.optimizers.SGD(0.25)

    def reset_metrics(self):
        self.seen = []

    def logs(self, losses):
        self.seen += losses
        return {"loss": np.mean(self.seen), "tokens": 13.0 * len(self.seen)}


class Run:
    """A run whose steps take a second."""

    def __init__(self, monkeypatch, first=0, last=100, log_every=2):
        self.now, self.model, self.reports = 100.0, Model(), []
        self.steps = Steps(first, last)
        self.log = StepLog(self.steps, log_every, [self])
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def fit(self, losses, after_step=lambda: None):
        """Trains an epoch."""
        self.model.reset_metrics()
        for callback in (self.steps, self.log):
            callback.set_model(self.model)
            callback.on_epoch_begin(0)
        for i, loss in enumerate(losses):
            self.now += 1
            logs = self.model.logs([loss])
            for callback in (self.steps, self.log):
                callback.on_train_batch_end(i, logs)
            after_step()

    def trained(self, logs, *, is_due):
        if is_due:
            self.reports.append({"step": self.steps.step} | logs)

    def of(self, name):
        return [report[name] for report in self.reports]


def test_reports_are_means_since_the_last_report(monkeypatch):
    run = Run(monkeypatch)
    run.fit([8.0, 6.0, 4.0, 1.0])
    assert run.of("step") == [2, 4]
    # The first step, in which TensorFlow traces, is excluded from the speed only.
    assert run.of("loss") == [7.0, 2.5]
    assert run.of("tokens_per_second") == [pytest.approx(13.0)] * 2
    assert run.of("seconds_left") == [pytest.approx(98), pytest.approx(96)]
    assert run.of("learning_rate") == [0.25, 0.25]


def test_resumed_run_reports_its_first_step_and_excludes_evaluations(monkeypatch):
    run = Run(monkeypatch, first=8, last=15, log_every=5)
    run.fit([8.0, 4.0, 1.0, 1.0])
    assert run.of("step") == [10] and run.of("loss") == [6.0]
    run.now += 1000  # an evaluation
    run.fit([1.0] * 3)
    assert run.of("step") == [10, 15]
    assert run.of("tokens_per_second")[1] == pytest.approx(13.0)


def test_speed_excludes_checkpoints(monkeypatch):
    run = Run(monkeypatch)

    def checkpoint():
        with run.steps.paused():
            run.now += 1000

    run.fit([1.0] * 6, after_step=checkpoint)
    assert run.of("tokens_per_second") == [pytest.approx(13.0)] * 3


def test_first_report_is_early(monkeypatch):
    run = Run(monkeypatch, log_every=70)
    run.fit([1.0] * 80)
    assert run.of("step") == [31, 70]
    assert run.of("seconds_left")[0] == pytest.approx(69)


@pytest.mark.parametrize("compile_seconds", [{}, {"compile_seconds": 1.0}])
def test_first_step_has_no_speed_and_no_remaining_time(monkeypatch, compile_seconds):
    run = Run(monkeypatch, log_every=1)
    logs_of = run.model.logs
    monkeypatch.setattr(run.model, "logs", lambda losses: logs_of(losses) | compile_seconds)
    run.fit([1.0])
    assert run.reports == [
        {"step": 1, "loss": 1.0, "tokens": 13.0, "learning_rate": 0.25} | compile_seconds
    ]
    monkeypatch.setattr(run.model, "logs", logs_of)
    run.fit([1.0])
    assert run.of("step") == [1, 2] and run.reports[1]["seconds_left"] == pytest.approx(98)


def test_speed_excludes_compilation(monkeypatch):
    run = Run(monkeypatch, log_every=4)
    logs_of, seconds = run.model.logs, iter([None, 30.0, 20.0, None])

    def logs(losses):
        compiled = next(seconds)
        run.now += compiled or 0.0
        return logs_of(losses) | ({"compile_seconds": compiled} if compiled else {})

    monkeypatch.setattr(run.model, "logs", logs)
    run.fit([1.0] * 4)
    assert run.of("tokens_per_second") == [pytest.approx(13.0)]
    assert run.of("seconds_left") == [pytest.approx(96)]
