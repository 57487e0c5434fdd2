import numpy as np
import pytest
import tensorflow as tf
from markers import needs_matplotlib

from t2t_relpos.models.attention_maps import read_table_norms
from trainer.model_dir import ModelDirectory
from trainer.training.dev_results import DevResult, DevResults
from trainer.visualization import png_plots
from trainer.visualization.png_plots import read_train_loss

pytestmark = needs_matplotlib
EVALUATIONS = [DevResult(150, 4.5, 0.25), DevResult(300, 3.25, 0.5, 12.5)]


def points(axis):
    return {line.get_label(): list(map(tuple, line.get_xydata().tolist())) for line in axis.lines}


def test_curves_have_training_and_dev_losses_and_bleu_if_measured():
    train_loss = [(100, 5.5), (200, 4.25)]
    losses, bleu = png_plots.plot_curves(train_loss, EVALUATIONS, 0.125).axes
    assert points(losses) == {
        "training (label smoothing 0.125)": train_loss,
        "dev": [(150, 4.5), (300, 3.25)],
    }
    assert list(points(bleu).values()) == [[(300, 12.5)]] and bleu.get_ylabel() == "sacreBLEU"
    (losses,) = png_plots.plot_curves(train_loss, EVALUATIONS[:1], 0.0).axes
    assert points(losses).keys() == {"training", "dev"} and losses.get_xlabel() == "step"


@pytest.mark.parametrize(
    "variant, num_kinds",
    [("shared tables", 2), ("tables per head", 2), ("relative cross-attention", 3), ("K = 0", 2)],
)
def test_table_norms_have_a_key_and_a_value_axis_per_kind(make_transformer, variant, num_kinds):
    norms = read_table_norms(make_transformer(variant))
    axes = iter(png_plots.plot_table_norms(norms).axes)
    for lines in list(norms.values())[:num_kinds]:
        for column in (0, 1):
            axis = next(axes)
            expected = [line.norms for line in lines if line.column == column]
            np.testing.assert_allclose([line.get_ydata() for line in axis.lines], expected)
            labels = [text.get_text() for text in axis.get_legend().get_texts()]
            assert labels == [f"layer {n + 1}" for n in range(lines[-1].layer)]
    assert next(axes, None) is None


def test_plot_table_norms_with_a_missing_table(make_transformer):
    norms = read_table_norms(make_transformer("a^V only"))
    key_axis, value_axis = png_plots.plot_table_norms(norms).axes[:2]
    assert [text.get_text() for text in key_axis.texts] == ["no such table"]
    assert len(value_axis.lines) == 2


def test_write_plots(make_transformer, tmp_path):
    directory, folder = ModelDirectory(tmp_path), tmp_path / "a" / "b"
    DevResults(directory.evaluations_file, until=0).add(EVALUATIONS[0])
    lines = png_plots.write_plots(folder, directory, read_table_norms(make_transformer("K = 0")))
    files = [folder / "learning_curves.png", folder / "table_norms.png"]
    assert lines == [f"Wrote {file}" for file in files]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_write_plots_skips_plots_without_data(make_transformer, tmp_path):
    norms = read_table_norms(make_transformer("sinusoidal"))
    assert png_plots.write_plots(tmp_path / "plots", ModelDirectory(tmp_path), norms) == [
        "Skipped learning_curves.png: the model directory has no training log.",
        "Skipped table_norms.png: the model has no relative-position tables.",
    ]
    assert list((tmp_path / "plots").iterdir()) == []


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


@pytest.mark.slow
def test_read_train_loss_of_a_training_run(small_run, tmp_path):
    small_run(tmp_path / "run")
    losses = read_train_loss(ModelDirectory.open(tmp_path / "run").logs / "train")
    assert [step for step, _ in losses] == [2, 4]
    assert all(loss > 0 for _, loss in losses)


def test_read_train_loss_of_a_truncated_file(tmp_path):
    record(tmp_path, {100: 5.5, 200: 4.25, 300: 3.5})
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert read_train_loss(tmp_path) == [(100, 5.5), (200, 4.25), (300, 3.5)]
    file.write_bytes(file.read_bytes()[:-150])
    assert read_train_loss(tmp_path)[:1] == [(100, 5.5)]
