import numpy as np
import tensorflow as tf
from markers import needs_matplotlib

from t2t_relpos.models.attention_maps import NormLine
from trainer import png_plots
from trainer.model_dir import ModelDirectory
from trainer.png_plots import read_train_loss
from trainer.training.dev_set import DevResult, DevResults

pytestmark = needs_matplotlib
EVALUATIONS = [DevResult(150, 4.5, 0.25), DevResult(300, 3.25, 0.5, 12.5)]
NO_TABLES = {"encoder": [], "decoder": [], "cross": []}


def norm_lines(columns):
    """Returns lines of the tables of two layers with two heads."""
    return [
        NormLine(layer, column, [-1, 0, 1], np.array([layer, column, head]))
        for layer in (1, 2)
        for column in columns
        for head in (0, 1)
    ]


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


def test_table_norms_have_a_key_and_a_value_axis_per_kind():
    norms = NO_TABLES | {"encoder": norm_lines((0, 1)), "cross": norm_lines((1,))}
    figure = png_plots.plot_table_norms(norms)
    encoder_keys, encoder_values, cross_keys, cross_values = figure.axes
    for axis, kind, column in (
        (encoder_keys, "encoder", 0),
        (encoder_values, "encoder", 1),
        (cross_values, "cross", 1),
    ):
        lines = [line for line in norms[kind] if line.column == column]
        expected = [list(zip(line.distances, line.norms)) for line in lines]
        assert [list(map(tuple, line.get_xydata())) for line in axis.lines] == expected
        labels = [text.get_text() for text in axis.get_legend().get_texts()]
        assert labels == ["layer 1", "layer 2"]
    assert [text.get_text() for text in cross_keys.texts] == ["no such table"]
    assert encoder_keys.get_title() == "Encoder self-attention: $a^K$"
    assert cross_values.get_title() == "Cross-attention: $a^V$"


def test_write_plots(tmp_path):
    directory, folder = ModelDirectory(tmp_path), tmp_path / "a" / "b"
    DevResults(directory.evaluations_file, until=0).add(EVALUATIONS[0])
    norms = NO_TABLES | {"encoder": norm_lines((0,))}
    files = [folder / "learning_curves.png", folder / "table_norms.png"]
    assert png_plots.write_plots(folder, directory, norms) == [f"Wrote {file}" for file in files]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_write_plots_skips_plots_without_data(tmp_path):
    assert png_plots.write_plots(tmp_path / "plots", ModelDirectory(tmp_path), NO_TABLES) == [
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
