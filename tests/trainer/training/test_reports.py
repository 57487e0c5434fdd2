import time

import pytest
import tensorflow as tf
from tensorflow.python.summary.summary_iterator import summary_iterator

from trainer.training.dev_bleu import Sample
from trainer.training.dev_results import Evaluation
from trainer.training.reports import Report, Reports, StepRecord, TensorBoard, Terminal

SAMPLES = [Sample("a dog", "ein Hund", "ein | Hut")]


def test_lines_where_there_is_no_terminal(capsys):
    report = Terminal(7000, interactive=False)
    report.begin(0, 1000)
    report.step(1, {})
    report.record(StepRecord(200, 3.25, 0.5, 0.00125, 12345.6, 3725.0))
    report.record(StepRecord(400, 3.25, 0.5, 0.00125, 12345.6, 65.0, 0.125))
    report.end(1000, {"loss": 2.0})
    report.evaluated(Evaluation(1000, 2.5, 0.625), [])
    report.note("checkpoint x")
    assert capsys.readouterr().out.splitlines() == [
        "step 200/7000: loss 3.2500, accuracy 0.5000, learning rate 0.00125, 12,346 source+target "
        "tokens/s, 1 h 02 min left",
        "step 400/7000: loss 3.2500, accuracy 0.5000, learning rate 0.00125, gradient norm 0.125, "
        "12,346 source+target tokens/s, "
        "1 min 05 s left",
        "step 1000/7000: dev loss 2.5000, accuracy 0.6250",
        "checkpoint x",
    ]


def test_bleu_and_samples(capsys):
    Terminal(7000, interactive=False).evaluated(Evaluation(1000, 2.5, 0.625, 23.456), SAMPLES)
    assert capsys.readouterr().out.splitlines() == [
        "  source:      a dog",
        "  reference:   ein Hund",
        "  translation: ein | Hut",
        "",
        "step 1000/7000: dev loss 2.5000, accuracy 0.6250, dev BLEU = 23.46",
    ]


def test_progress_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", iter(range(100)).__next__)
    report = Terminal(7000, interactive=True)
    report.begin(0, 4)
    for step in range(1, 5):
        report.step(step, {"loss": 5.0, "accuracy": 0.5, "tokens": 13.0 * step})
        report.record(StepRecord(step, 5.0, 0.5, 0.1, 13.0, 5400.0))
    report.note("checkpoint x")
    report.end(4, {"loss": 5.0, "accuracy": 0.5, "tokens": 52.0})
    out = capsys.readouterr().out
    assert out.startswith("Steps 1 to 4 of 7000\n") and "\ncheckpoint x\n" in out
    assert "4/4" in out and "━" in out and "step 4/7000" not in out
    for part in (
        "loss: 5.0000",
        "accuracy: 0.5000",
        "source+target tokens/s: 7.8000",
        "hours left in all: 1.5000",
    ):
        assert part in out


def scalars(directory):
    found = {}
    for file in directory.iterdir():
        for event in summary_iterator(str(file)):
            for value in event.summary.value:
                content = tf.make_ndarray(value.tensor)
                found[value.tag, event.step] = (
                    float(content) if content.dtype.kind == "f" else content.item().decode()
                )
    return found


@pytest.mark.filterwarnings("ignore:.*tf_record_iterator.*")
def test_tensorboard_files(tmp_path):
    report = TensorBoard(tmp_path)
    report.begin(0, 4)
    report.step(2, {})
    report.record(StepRecord(2, 3.25, 0.5, 0.125, 1000.0, 0.0, 0.75))
    report.end(4, {"loss": 3.0})
    report.evaluated(Evaluation(4, 2.5, 0.625, 12.5), SAMPLES)
    report.note("checkpoint x")
    assert scalars(tmp_path / "train") == {
        ("loss", 2): 3.25,
        ("accuracy", 2): 0.5,
        ("learning_rate", 2): 0.125,
        ("tokens_per_second", 2): 1000.0,
        ("gradient_norm", 2): 0.75,
    }
    table = "source | reference | translation\n--- | --- | ---\na dog | ein Hund | ein \\| Hut"
    assert scalars(tmp_path / "dev") == {
        ("loss", 4): 2.5,
        ("accuracy", 4): 0.625,
        ("bleu", 4): 12.5,
        ("translations", 4): table,
    }


def test_tensorboard_without_evaluation_has_no_dev_files(tmp_path):
    report = TensorBoard(tmp_path)
    report.end(4, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_several_reports_are_told_the_same():
    class Recorder(Report):
        def __init__(self):
            self.told = []

        begin = step = record = end = evaluated = note = lambda self, *args: self.told.append(args)

    recorders = Recorder(), Recorder()
    report = Reports(*recorders)
    for i, name in enumerate(name for name in vars(Report) if not name.startswith("_")):
        getattr(report, name)(*([i] if name in ("record", "note") else [i, i]))
    assert recorders[0].told == recorders[1].told == [(0, 0), (1, 1), (2,), (3, 3), (4, 4), (5,)]
