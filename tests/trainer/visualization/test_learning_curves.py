import json

import pytest

from trainer.model_dir import ModelDirectory
from trainer.training.evaluations import Evaluation, Evaluations
from trainer.training.reports import StepRecord, TensorBoard
from trainer.visualization.learning_curves import LearningCurves, read_learning_curves


def record(directory, losses):
    report = TensorBoard(directory.logs)
    for step, loss in losses.items():
        report.record(StepRecord(step, loss, 0.5, 0.125, 1000.0, 0.0))
    report.end(max(losses), {})


def test_recorded_curves(tmp_path):
    directory = ModelDirectory(tmp_path)
    record(directory, {100: 5.5, 200: 4.25, 300: 3.5})
    evaluations = Evaluations(directory.evaluations_file, until=0)
    evaluations.add(Evaluation(150, 4.5, 0.25))
    evaluations.add(Evaluation(300, 3.25, 0.5, 12.5))
    directory.write_run({"label_smoothing": 0.125})
    assert read_learning_curves(directory) == LearningCurves(
        [(100, 5.5), (200, 4.25), (300, 3.5)], [(150, 4.5), (300, 3.25)], [(300, 12.5)], 0.125
    )
    # The run resumed from step 100.
    record(directory, {200: 4.0})
    assert read_learning_curves(directory).train_loss == [(100, 5.5), (200, 4.0)]


@pytest.mark.slow
def test_real_run(small_run, tmp_path):
    small_run(tmp_path / "run", dev_bleu=True, evaluate_every=2, **small_run.dev)
    directory = ModelDirectory.open(tmp_path / "run")
    curves = read_learning_curves(directory)
    entries = json.loads(directory.evaluations_file.read_text())
    assert (
        curves.dev_loss == [(entry["step"], entry["loss"]) for entry in entries]
        and len(entries) >= 2
    )
    assert curves.dev_bleu == [(entry["step"], entry["bleu"]) for entry in entries]
    assert [step for step, _ in curves.train_loss] == [2, 4]
    assert all(loss > 0 for _, loss in curves.train_loss)


def test_no_records(tmp_path):
    assert read_learning_curves(ModelDirectory(tmp_path)) == LearningCurves([], [], [], 0.0)


def test_corrupt_evaluations(tmp_path):
    (tmp_path / "evaluations.json").write_text("{")
    with pytest.raises(
        ValueError, match="Expected a list of evaluations. Received: .*evaluations.json"
    ):
        read_learning_curves(ModelDirectory(tmp_path))
