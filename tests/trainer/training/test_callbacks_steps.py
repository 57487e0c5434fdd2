import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from trainer.training.callbacks import Steps, StopSignals


class Model:
    stop_training = stop_evaluating = False


def counter(first=0, last=100, signals=None):
    steps = Steps(first, last, signals)
    steps.set_model(Model())
    return steps


def test_training_ends_after_the_last_step():
    steps = counter(first=10, last=13)
    for batch in (0, 1):
        steps.on_train_batch_end(batch)
    assert steps.step == 12 and not steps.model.stop_training
    steps.on_epoch_begin(1)
    steps.on_train_batch_end(0)
    assert steps.step == 13
    assert steps.model.stop_training and not steps.interrupted


def test_clock_excludes_pauses(monkeypatch):
    times = iter([10.0, 13.0, 20.0, 25.0, 30.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    steps = counter()
    with steps.paused():
        pass
    with pytest.raises(KeyError), steps.paused():
        raise KeyError
    assert steps.clock() == 30.0 - 8.0


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
        assert not steps.interrupted and not steps.model.stop_training
        os.kill(os.getpid(), number)
        # The next signal has its default effect.
        assert signal.getsignal(number) == signal.default_int_handler
        steps.on_train_batch_end(1)
        assert steps.interrupted and steps.model.stop_training
        steps.on_test_batch_end(0)
        assert steps.model.stop_evaluating
    assert signals.received is number


def test_signal_is_reported_before_the_step_ends(number, monkeypatch):
    """Python calls the handler after the current operation. A compilation can take minutes."""
    reports = []
    with StopSignals() as signals:
        record = lambda text: reports.append((text, signals.received))
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=record))
        # Another thread receives the signal, so that it does not interrupt `sleep`.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        time.sleep(0.3)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    name = signal.Signals(number).name
    assert reports[0] == (f"\n{name}: training ends after the current step.", None)
    assert signals.received is number


def test_signal_handlers_are_restored(number):
    with StopSignals() as signals:
        assert signal.getsignal(number) != signal.default_int_handler
    assert signal.getsignal(number) == signal.default_int_handler
    assert signals.received is None


def test_signals_are_not_handled_in_other_threads():
    with ThreadPoolExecutor() as pool:
        assert pool.submit(StopSignals().__enter__).result().received is None


@pytest.mark.parametrize("number", [signal.SIGHUP], indirect=True)
def test_ignored_hangup_is_still_ignored(number):
    signal.signal(number, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), number)
    assert signals.received is None
