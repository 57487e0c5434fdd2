import time

import pytest

from trainer.model_dir import ModelDirectory
from trainer.training.callbacks import Steps, StopSignals, WriteCheckpoints
from trainer.training.checkpoints import Checkpoints


class Model:
    """A `TrainingModel` that is its own Transformer."""

    stop_training, compute_dtype = False, "float32"

    def __init__(self):
        self.transformer = self

    def save(self, path):
        path.write_bytes(b"model")


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
        self.signals, model = StopSignals(), Model()
        self.steps = Steps(first, 100, self.signals)
        self.checkpoints = RecordedCheckpoints(directory / "checkpoints")
        self.write = WriteCheckpoints(
            self.steps, ModelDirectory(directory), self.checkpoints, **settings
        )
        for callback in (self.steps, self.write):
            callback.set_model(model)
        self.steps.on_epoch_begin(0)

    def __call__(self, batches, before_step=lambda batch: None):
        for batch in range(batches):
            before_step(batch)
            for callback in (self.steps, self.write):
                callback.on_train_batch_end(batch, {})
        return self.checkpoints.saved


@pytest.mark.parametrize(
    ("first", "batches", "every", "expected"),
    [(0, 7, 3, [3, 6]), (2, 7, 3, [3, 6, 9]), (0, 7, None, []), (96, 4, 50, [100])],
)
def test_checkpoints_at_multiples_of_steps_and_after_the_last(
    tmp_path, first, batches, every, expected
):
    assert Run(tmp_path, first, every=every)(batches) == expected


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


def test_interrupted_run_without_a_step_writes_no_files(tmp_path):
    Run(tmp_path).write.write()
    assert list(tmp_path.iterdir()) == []


def test_only_the_first_checkpoint_is_written_before_the_model(tmp_path, fill_disk):
    run = Run(tmp_path, every=2)
    fill_disk(run.write.model.transformer, "save")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device"):
            run(2)
    # The second failure is before the checkpoint of step 4.
    assert run.checkpoints.saved == [2]
    assert not (tmp_path / "model.keras").exists()
