import tensorflow as tf

from trainer.learning_curves import draw_curves, read_train_loss
from trainer.model_dir import ModelDirectory
from trainer.training.dev_set import DevResult, DevResults


def points(figure):
    return {trace.name: list(zip(trace.x, trace.y)) for trace in figure.data}


def test_curves_have_training_and_dev_losses_and_bleu_if_measured(tmp_path):
    directory = ModelDirectory(tmp_path)
    assert draw_curves(directory) is None
    directory.write_run({"label_smoothing": 0.125})
    results = DevResults(directory.evaluations_file, until=0)
    results.add(DevResult(150, 4.5, 0.25))
    assert points(draw_curves(directory)) == {"dev loss": [(150, 4.5)]}
    record(directory.logs / "train", {100: 5.5, 200: 4.25})
    results.add(DevResult(300, 3.25, 0.5, 12.5))
    assert points(draw_curves(directory)) == {
        "training loss (label smoothing 0.125)": [(100, 5.5), (200, 4.25)],
        "dev loss": [(150, 4.5), (300, 3.25)],
        "dev BLEU": [(300, 12.5)],
    }


def record(logs, losses):
    with tf.summary.create_file_writer(str(logs)).as_default():
        for step, loss in losses.items():
            tf.summary.scalar("loss", loss, step=step)
            tf.summary.scalar("learning_rate", 0.5, step=step)


def test_read_train_loss_of_a_resumed_run(tmp_path):
    assert read_train_loss(tmp_path / "absent") == []
    record(tmp_path, {100: 5.5, 200: 4.25, 300: 3.5})
    assert read_train_loss(tmp_path) == [(100, 5.5), (200, 4.25), (300, 3.5)]
    # The run resumed from step 100.
    record(tmp_path, {200: 4.0})
    assert read_train_loss(tmp_path) == [(100, 5.5), (200, 4.0)]


def test_read_train_loss_of_a_training_run(finished_run):
    losses = read_train_loss(ModelDirectory.open(finished_run).logs / "train")
    assert [step for step, _ in losses] == [2, 4, 6, 8]
    assert all(loss > 0 for _, loss in losses)


def test_read_train_loss_of_a_truncated_file(tmp_path):
    record(tmp_path, {100: 5.5, 200: 4.25, 300: 3.5})
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert read_train_loss(tmp_path) == [(100, 5.5), (200, 4.25), (300, 3.5)]
    file.write_bytes(file.read_bytes()[:-150])
    assert read_train_loss(tmp_path)[:1] == [(100, 5.5)]
