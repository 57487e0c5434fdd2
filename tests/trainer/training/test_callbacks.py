"""Tests of the step counter, of the ends of a run, and of when checkpoints are written."""

import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from trainer.model_dir import ModelDirectory
from trainer.training.callbacks import (
    FirstStep,
    NotFiniteError,
    Steps,
    StopAtNan,
    StopSignals,
    WriteCheckpoints,
)
from trainer.training.checkpoints import Checkpoints
from trainer.training.optimizer import LossScale


class Model:
    """A `TrainingModel` that is its own Transformer."""

    stop_training = stop_evaluating = False
    compute_dtype = "float32"

    def __init__(self):
        self.transformer = self

    def save(self, path):
        path.write_bytes(b"model")


def counter(first=0, last=100, signals=None):
    steps = Steps(first, last, signals)
    steps.set_model(Model())
    return steps


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def number(request):
    """Returns a signal with a handler. The process that started the tests may ignore SIGHUP."""
    inherited = signal.signal(request.param, signal.default_int_handler)
    yield request.param
    signal.signal(request.param, inherited)


def test_signal_ends_the_run_after_its_step(number):
    with StopSignals() as signals:
        steps = counter(signals=signals)
        steps.on_train_batch_end(0)
        assert signal.getsignal(number) != signal.default_int_handler
        assert not steps.interrupted and not steps.model.stop_training
        os.kill(os.getpid(), number)
        # The next signal has its default effect.
        assert signal.getsignal(number) == signal.default_int_handler
        steps.on_train_batch_end(1)
        assert steps.interrupted and steps.model.stop_training
        steps.on_test_batch_end(0)
        assert steps.model.stop_evaluating
    assert signals.received is number
    with StopSignals() as signals:
        pass
    assert signal.getsignal(number) == signal.default_int_handler and signals.received is None


@pytest.mark.parametrize("has_trained", [False, True])
def test_signal_is_reported_at_once_and_ends_the_process_before_the_first_step(
    number, has_trained, monkeypatch
):
    """Python calls the handler after the current operation. A compilation can take minutes."""
    ends, reports = [], []
    with StopSignals(ends.append) as signals:
        if has_trained:
            counter(signals=signals).on_train_batch_end(0)
        record = lambda text: reports.append((text, signals.received))
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=record, flush=list))
        # Another thread receives the signal, as while TensorFlow compiles.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        signals._thread.join(timeout=10)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert ends == ([] if has_trained else [number])
    assert reports[0] == (f"\n{number.name}: training ends after the current step.", None)
    assert signals.received is number


def test_wait_for_the_first_step_is_announced_and_recorded_once(capsys, monkeypatch):
    times, recorded = iter([10.0, 43.96]), []
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    for seconds in (None, 33.96):
        step = FirstStep(seconds, recorded.append)
        step.on_train_begin()
        if seconds is None:
            for batch in range(2):
                step.on_train_batch_end(batch)
            step.on_train_begin()
            times = iter([50.0])
    assert recorded == [34.0]
    line = "Tracing and compiling the first training step."
    assert capsys.readouterr().out.splitlines() == [
        f"{line} This can take a minute or more.",
        f"{line} It took 34 s the last time.",
    ]


def test_signals_are_not_handled_in_other_threads():
    with ThreadPoolExecutor() as pool:
        assert pool.submit(StopSignals().__enter__).result().received is None


@pytest.mark.parametrize("number", [signal.SIGHUP], indirect=True)
def test_ignored_hangup_is_still_ignored(number):
    signal.signal(number, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), number)
    assert signals.received is None


FINE = {"loss": 2.5, "gradient_norm": 0.5, "accuracy": 0.5}
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture
def stop():
    return StopAtNan(Steps(117, 200), schedule=lambda update: update / 1000)


@pytest.mark.parametrize("logs", [{"loss": NAN}, {"loss": INFINITY}, {"gradient_norm": INFINITY}])
def test_not_finite_value_raises(stop, logs):
    stop.on_train_batch_end(0, FINE)
    stop.on_train_batch_end(0, {"loss": 2.5})
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


class RecordedCheckpoints(Checkpoints):
    def __init__(self, directory):
        super().__init__(directory)
        self.saved = []

    def save(self, model, step):
        self.saved.append(step)
        self.path(step).mkdir(parents=True)


class Run:
    """Runs the step counter and the callback that writes checkpoints."""

    def __init__(self, directory, first=0, **settings):
        self.signals = StopSignals()
        self.steps = counter(first, signals=self.signals)
        self.checkpoints = RecordedCheckpoints(directory / "checkpoints")
        self.write = WriteCheckpoints(
            self.steps, ModelDirectory(directory), self.checkpoints, **settings
        )
        self.write.set_model(self.steps.model)

    def __call__(self, batches, before_step=lambda batch: None):
        for batch in range(batches):
            before_step(batch)
            for callback in (self.steps, self.write):
                callback.on_train_batch_end(batch, {})
        return self.checkpoints.saved


@pytest.mark.parametrize(
    ("first", "batches", "every", "expected"),
    [(2, 7, 3, [3, 6, 9]), (0, 7, None, []), (96, 4, 50, [100])],
)
def test_checkpoints_at_multiples_of_steps_and_after_the_last(
    tmp_path, first, batches, every, expected
):
    run = Run(tmp_path, first, every=every)
    assert run(batches) == expected
    assert run.steps.model.stop_training == (first + batches == 100)


def test_checkpoints_at_intervals_of_minutes(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run = Run(tmp_path, minutes=2.0, every=7)

    def half_a_minute(batch):
        now[0] += 30

    # The checkpoint after 7 steps restarts the interval.
    assert run(12, before_step=half_a_minute) == [4, 7, 11]


def test_checkpoint_after_a_signal_between_callbacks(tmp_path):
    run = Run(tmp_path)
    run.steps.on_train_batch_end(0, {})
    run.signals.received = 15
    run.write.on_train_batch_end(0, {})
    assert run.checkpoints.saved == []
    assert run(2)[0] == 2 and run.write.model.stop_training


def test_write_reports_the_checkpoint(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", iter([3.0, 10.0, 11.0]).__next__)
    run = Run(tmp_path, every=2)
    run.write.write()
    assert list(tmp_path.iterdir()) == []  # Without a step, there is nothing to write.
    run(2)
    assert (tmp_path / "model.keras").read_bytes() == b"model"
    path = tmp_path / "checkpoints" / "step-000002"
    assert capsys.readouterr().out == f"checkpoint {path}\n"
    assert run.steps.clock() == 11.0 - 7.0


def test_same_step_is_written_once(tmp_path):
    run = Run(tmp_path, first=5)
    run.checkpoints.path(5).mkdir(parents=True)
    run.write.write()
    assert run.checkpoints.saved == []
    run(2)
    run.write.write()
    run.write.write()
    assert run.checkpoints.saved == [7]


def test_only_the_first_checkpoint_is_written_before_the_model(tmp_path, fill_disk):
    run = Run(tmp_path, every=2)
    fill_disk(run.write.model.transformer, "save")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device"):
            run(2)
    # The second failure is before the checkpoint of step 4.
    assert run.checkpoints.saved == [2]
    assert not (tmp_path / "model.keras").exists()
