import pytest
import tensorflow as tf

from trainer.model_dir import ModelDirectory
from trainer.visualization.train_loss import read_train_loss


def record(logs, losses):
    with tf.summary.create_file_writer(str(logs)).as_default():
        for step, loss in losses.items():
            tf.summary.scalar("loss", loss, step=step)
            tf.summary.scalar("learning_rate", 0.5, step=step)


def test_resumed_run(tmp_path):
    assert read_train_loss(tmp_path / "absent") == []
    record(tmp_path, {100: 5.5, 200: 4.25, 300: 3.5})
    assert read_train_loss(tmp_path) == [(100, 5.5), (200, 4.25), (300, 3.5)]
    # The run resumed from step 100.
    record(tmp_path, {200: 4.0})
    assert read_train_loss(tmp_path) == [(100, 5.5), (200, 4.0)]


@pytest.mark.slow
def test_log_of_the_trainer(small_run, tmp_path):
    small_run(tmp_path / "run")
    losses = read_train_loss(ModelDirectory.open(tmp_path / "run").logs / "train")
    assert [step for step, _ in losses] == [2, 4]
    assert all(loss > 0 for _, loss in losses)
