"""Tests of measurements of a run, and of their reports."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.summary.summary_iterator import summary_iterator

from trainer.streams import write_line
from trainer.training.callbacks import Steps
from trainer.training.dev_set import DevResult, Sample
from trainer.training.reports import StepLog, TensorBoard, Terminal

SAMPLES = [Sample("a dog", "ein Hund", "ein | Hut")]
LOGS = {"loss": 3.25, "accuracy": 0.5, "tokens_per_second": 12345.6, "seconds_left": 3725.0}
REPORTED = LOGS | {"learning_rate": 0.00125}


@pytest.fixture
def steps():
    return Steps(200, 7000)


def test_terminal_writes_lines_to_a_file(steps, capsys):
    terminal = Terminal(steps, interactive=False)
    terminal.begin()
    terminal.trained(LOGS, is_due=False)
    unmeasured = {"loss": 3.5, "accuracy": 0.25, "learning_rate": 0.5}
    terminal.trained(unmeasured, is_due=True)
    terminal.trained(LOGS | {"programs": 3, "compile_seconds": 12.345}, is_due=False)
    terminal.trained(REPORTED, is_due=True)
    steps.step = 400
    terminal.trained(REPORTED | {"seconds_left": 65.0, "gradient_norm": 0.125}, is_due=True)
    terminal.end()
    terminal.begin()
    terminal.evaluated(DevResult(1000, 2.5, 0.625), [])
    terminal.evaluated(DevResult(1200, 2.5, 0.625, 23.456, 45.678), SAMPLES)
    assert capsys.readouterr().out.splitlines() == [
        "step 200/7000: loss 3.5000, accuracy 0.2500, learning rate 0.5",
        "step 200/7000: XLA compiled for 12.3 s, programs so far: 3",
        "step 200/7000: loss 3.2500, accuracy 0.5000, learning rate 0.00125, 12,346 source+target "
        "tokens/s, 1 h 02 min left",
        "step 400/7000: loss 3.2500, accuracy 0.5000, learning rate 0.00125, gradient norm 0.125, "
        "12,346 source+target tokens/s, 1 min 05 s left",
        "step 1000/7000: dev loss 2.5000, accuracy 0.6250",
        "  source:      a dog",
        "  reference:   ein Hund",
        "  translation: ein | Hut",
        "",
        "step 1200/7000: dev loss 2.5000, accuracy 0.6250, dev BLEU = 23.46, dev chrF2 = 45.68",
    ]


def test_terminal_updates_a_progress_bar(steps, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal(steps, interactive=True)
    terminal.begin()
    for steps.step in (201, 202):
        terminal.trained(REPORTED, is_due=True)
    write_line("checkpoint x")
    terminal.end()
    out = capsys.readouterr().out
    *updates, last, end = out.replace("\n", "\r").split("\r")
    assert end == "" and out.count("\n") == 2 and "\rcheckpoint x\n" in out
    assert last.startswith("  3%|")
    assert last.endswith("| step 202/7000, loss 3.2500, 12,346 tokens/s, 1 h 02 min left")
    assert any("step 200/7000" in update for update in updates) and "learning rate" not in out


def scalars(directory):
    """Returns numbers and texts of all event files by (name, step)."""
    events = [event for file in directory.iterdir() for event in summary_iterator(str(file))]
    return {
        (value.tag, event.step): tf.make_ndarray(value.tensor).item()
        for event in events
        for value in event.summary.value
    }


@pytest.mark.filterwarnings("ignore:.*tf_record_iterator.*")
def test_tensorboard_files(steps, tmp_path):
    board = TensorBoard(steps, tmp_path)
    board.trained(LOGS, is_due=False)
    board.end()
    assert list(tmp_path.iterdir()) == []
    board.trained(REPORTED | {"learning_rate": 0.125, "gradient_norm": 0.75}, is_due=True)
    board.end()
    assert [entry.name for entry in tmp_path.iterdir()] == ["train"]
    board.evaluated(DevResult(4, 2.5, 0.625, 12.5), SAMPLES)
    board.evaluated(DevResult(6, 2.5, 0.625), [])
    assert scalars(tmp_path / "train") == {
        ("loss", 200): 3.25,
        ("accuracy", 200): 0.5,
        ("learning_rate", 200): 0.125,
        ("tokens_per_second", 200): pytest.approx(12345.6),
        ("gradient_norm", 200): 0.75,
    }
    table = b"source | reference | translation\n--- | --- | ---\na dog | ein Hund | ein \\| Hut"
    assert scalars(tmp_path / "dev") == {
        ("loss", 4): 2.5,
        ("accuracy", 4): 0.625,
        ("bleu", 4): 12.5,
        ("translations", 4): table,
        ("loss", 6): 2.5,
        ("accuracy", 6): 0.625,
    }


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


def test_resumed_run_reports_its_first_step_and_speed_excludes_pauses(monkeypatch):
    run = Run(monkeypatch, first=8, last=15, log_every=5)
    run.fit([8.0, 4.0, 1.0, 1.0])
    assert run.of("step") == [10] and run.of("loss") == [6.0]
    run.now += 1000  # an evaluation

    def checkpoint():
        with run.steps.paused():
            run.now += 1000

    run.fit([1.0] * 3, after_step=checkpoint)
    assert run.of("step") == [10, 15]
    assert run.of("tokens_per_second")[1] == pytest.approx(13.0)


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
