import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.summary.summary_iterator import summary_iterator

from trainer.training.step_log import StepLog, StepRecord, TensorBoard, Terminal


class Recorder:
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


def run(callback, losses, clock, epoch=0, per_execution=1):
    """An epoch whose steps have these losses, 4 right tokens of 8 target tokens, and 5 source tokens."""
    callback.on_epoch_begin(epoch)
    for i in range(per_execution, len(losses) + 1, per_execution):
        clock.now += per_execution
        logs = {"loss": np.mean(losses[:i]), "accuracy": 0.5, "tokens": 13.0 * i, "target_tokens": 8.0 * i}
        callback.on_train_batch_end(i - 1, logs)
    callback.on_epoch_end(epoch, logs)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def recorder():
    return Recorder()


def step_log(recorder, first_step=0, last_step=100, log_every=2, epoch_steps=4):
    callback = StepLog(first_step, last_step, log_every, epoch_steps, [recorder])
    callback.set_model(Model())
    return callback


def test_records_are_means_of_their_own_steps(recorder, clock):
    run(step_log(recorder), [8.0, 6.0, 4.0, 1.0], clock)
    first, second = recorder.records()
    assert (first.step, second.step) == (2, 4)
    # The first step, in which TensorFlow compiles, is left out.
    assert first.loss == pytest.approx(6.0) and second.loss == pytest.approx(2.5)
    assert first.accuracy == second.accuracy == pytest.approx(0.5)
    assert first.tokens_per_second == second.tokens_per_second == pytest.approx(13.0)
    assert (first.seconds_left, second.seconds_left) == (pytest.approx(98), pytest.approx(96))
    assert first.learning_rate == 0.25


def test_steps_go_on_counting_over_epochs_and_runs(recorder, clock):
    callback = step_log(recorder, first_step=10, last_step=17, log_every=5)
    run(callback, [1.0] * 4, clock)
    clock.now += 1000  # a checkpoint
    run(callback, [1.0] * 3, clock, epoch=1)
    assert [call for call in recorder.calls if call[0] == "begin"] == [("begin", 10, 14), ("begin", 14, 17)]
    assert [call[:2] for call in recorder.calls if call[0] == "end"] == [("end", 14), ("end", 17)]
    assert [record.step for record in recorder.records()] == [15]
    assert recorder.records()[0].tokens_per_second == pytest.approx(13.0)
    assert callback.step == 17


def test_training_stops_at_the_last_step(recorder, clock):
    callback = step_log(recorder, last_step=3)
    run(callback, [1.0] * 2, clock)
    assert not callback.model.stop_training
    run(callback, [1.0], clock, epoch=1)
    assert callback.model.stop_training


def test_several_steps_in_an_execution(recorder, clock):
    run(step_log(recorder, log_every=3, epoch_steps=8), [1.0] * 8, clock, per_execution=4)
    assert [record.step for record in recorder.records()] == [4, 8]
    assert recorder.records()[1].tokens_per_second == pytest.approx(13.0)


def test_lines_where_there_is_no_terminal(capsys, clock):
    report = Terminal(7000, interactive=False)
    report.begin(0, 1000)
    report.step(1, {})
    report.record(StepRecord(200, 3.25, 0.5, 0.00125, 12345.6, 3725.0))
    report.end(1000, {"val_loss": 2.5, "val_accuracy": 0.625})
    assert capsys.readouterr().out.splitlines() == [
        "step 200/7000: loss 3.2500, accuracy 0.5000, learning rate 0.00125, 12,346 source+target tokens/s, 1 h 02 min left",
        "step 1000/7000: dev loss 2.5000, accuracy 0.6250",
    ]


def test_progress_bar_on_a_terminal(capsys, clock):
    report = Terminal(7000, interactive=True)
    callback = StepLog(0, 7000, 2, 4, [report])
    callback.set_model(Model())
    run(callback, [8.0, 6.0, 4.0, 2.0], clock)
    out = capsys.readouterr().out
    assert out.startswith("Steps 1 to 4 of 7000\n")
    assert "4/4" in out and "━" in out
    assert "loss: 5.0000" in out and "accuracy: 0.5000" in out and "source+target tokens/s: 13.0000" in out


def scalars(directory):
    found = {}
    for file in directory.iterdir():
        for event in summary_iterator(str(file)):
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


@pytest.mark.filterwarnings("ignore:.*tf_record_iterator.*")
def test_tensorboard_files(tmp_path):
    report = TensorBoard(tmp_path)
    report.begin(0, 4)
    report.record(StepRecord(2, 3.25, 0.5, 0.125, 1000.0, 0.0))
    report.end(4, {"val_loss": 2.5, "val_accuracy": 0.625})
    assert scalars(tmp_path / "train") == {
        ("loss", 2): 3.25,
        ("accuracy", 2): 0.5,
        ("learning_rate", 2): 0.125,
        ("tokens_per_second", 2): 1000.0,
    }
    assert scalars(tmp_path / "dev") == {("loss", 4): 2.5, ("accuracy", 4): 0.625}


def test_tensorboard_without_evaluation_has_no_dev_files(tmp_path):
    report = TensorBoard(tmp_path)
    report.end(4, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == []
