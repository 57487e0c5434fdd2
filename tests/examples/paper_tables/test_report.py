"""Tables of invented scores, as they are written."""

import csv
import importlib.util
import io

import pytest

from examples.paper_tables import report
from examples.paper_tables.scoring import Result, bucket_labels, result
from trainer.metrics import Score, sacrebleu

SIGNATURE = "nrefs:1|case:mixed"


@pytest.fixture
def make_result(make_trial):
    """`make_result(label, seed, *bleu)`: of val, test_a and test_b."""

    def make(label, seed, *bleu, buckets=()):
        trial = make_trial({"use_key_table": label == "with"}, seed=seed, label=label)
        trial._note_seconds(90.0)
        scores = {
            split: Score("BLEU", value, SIGNATURE)
            for split, value in zip(trial.sentences.splits[1:], bleu)
        }
        return Result(trial, scores, list(buckets))

    return make


@pytest.fixture
def results(make_result):
    return [
        [make_result("with", 1, 30.0, 31.0, 32.0), make_result("with", 2, 31.0, 32.5, 33.0)],
        [make_result("without", 1, 5.0, 6.04, 7.0), make_result("without", 2)],
    ]


def test_markdown(results):
    header, line, first, second, _, note = report.markdown(results).splitlines()
    assert header == (
        "|  | paper: newstest | val, seed 1 | val, seed 2 | val, mean | test_a, seed 1 | test_a, seed 2 | test_a, mean "
        "| test_b, seed 1 | test_b, seed 2 | test_b, mean | steps | minutes |"
    )
    assert line == "|" + " --- |" * 13
    assert (
        first
        == "| with | 25.5 | 30.0 | 31.0 | 30.5 | 31.0 | 32.5 | 31.8 | 32.0 | 33.0 | 32.5 | 7 | 1.5, 1.5 |"
    )
    assert second == "| without | 25.5 | 5.0 | – | – | 6.0 | – | – | 7.0 | – | – | 7 | 1.5, – |"
    assert (
        note
        == f"The paper's numbers are of WMT 2014: BLEU of tokenised text, as tensor2tensor counted it then. Ours: `{SIGNATURE}`."
    )


def test_markdown_of_nothing(make_result):
    assert report.markdown([[make_result("with", 1)]]).splitlines() == [
        "|  | paper: newstest | val, seed 1 | test_a, seed 1 | test_b, seed 1 | steps | minutes |",
        "|" + " --- |" * 7,
        "| with | 25.5 | – | – | – | 7 | – |",
        "",
        "The paper's numbers are of WMT 2014: BLEU of tokenised text, as tensor2tensor counted it then. Nothing is trained yet.",
    ]


def test_by_length(make_result):
    buckets = [(2, 40.0), (3, 30.0), (0, None), (1, 20.0), (4, 10.0)]
    table = report.markdown_by_length(
        [[make_result("with", 1, 1.0, 2.0, 3.0, buckets=buckets), make_result("with", 2)]], 8
    )
    assert table.splitlines() == [
        "|  | seed | 1–4 tokens | 5–8 tokens | 9–10 tokens | 11–12 tokens | 13– tokens |",
        "|" + " --- |" * 7,
        "| with | 1 | 40.0 | 30.0 | – | 20.0 | 10.0 |",
        "| with | 2 | – | – | – | – | – |",
        "| sentences |  | 2 | 3 | 0 | 1 | 4 |",
        "",
        "Trained on sentences of at most 8 tokens a side. All test sets together.",
    ]


def test_csv(results, make_result):
    rows = list(csv.DictReader(io.StringIO(report.csv_text(results))))
    assert [(row["row"], row["seed"], row["split"], row["bleu"]) for row in rows[3:]] == [
        *(
            ("with", "2", "val", "31.0"),
            ("with", "2", "test_a", "32.5"),
            ("with", "2", "test_b", "33.0"),
        ),
        *(
            ("without", "1", "val", "5.0"),
            ("without", "1", "test_a", "6.04"),
            ("without", "1", "test_b", "7.0"),
        ),
    ]
    assert (rows[0]["signature"], rows[0]["steps"], rows[0]["seconds"]) == (SIGNATURE, "7", "90")
    assert "--use_key_table=true --seed=1" in rows[0]["command"]
    one = [[make_result("with", 1, 1.0, 2.0, 3.0, buckets=[(2, 40.0), (0, None)])]]
    by_length = list(csv.DictReader(io.StringIO(report.csv_text(one, 8))))[3:]
    assert [(row["split"], row["tokens"], row["sentences"], row["bleu"]) for row in by_length] == [
        ("test_a+test_b", "1–4", "2", "40.0"),
        ("test_a+test_b", "5–8", "0", ""),
    ]


def test_scores_of_translations(make_trial, folder):
    trial = make_trial()
    assert result(trial).scores == {} and result(trial).bleu("val") is None
    trial.run()
    scored = result(trial)
    lines = (
        [f"TEST_A EN {n} A B C D" for n in range(3)],
        [f"test_a de {n} a b c d" for n in range(3)],
    )
    assert scored.bleu("test_a") == sacrebleu(*lines).value > 0
    trial.translations("val").write_text((folder / "val.de").read_text())
    assert result(trial).bleu("val") == pytest.approx(100.0)


def test_a_translation_may_hold_what_ends_lines_elsewhere(make_trial, folder):
    trial = make_trial()
    trial.run()
    trial.translations("test_b").write_text("a\u2028b\n\x1cb\n", encoding="utf-8")
    assert 0 <= result(trial).bleu("test_b") < 100


def test_buckets_of_a_short_limit():
    assert bucket_labels(4) == ["1–2", "3–4", "5–5", "6–6", "7–"]


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None,
    reason="needs matplotlib: pip install '.[plots]'",
)
def test_plots(results, make_result, tmp_path, monkeypatch):
    from examples.paper_tables import plots

    figures = {}
    monkeypatch.setattr(
        plots, "save_figure", lambda figure, path: figures.update({path.name: figure})
    )
    plots.plot_rows(tmp_path / "rows.png", results)
    first, second, paper = figures["rows.png"].axes
    points = [line.get_data()[1] for line in second.lines if line.get_marker() == "o"]
    assert [list(values) for values in points] == [
        [32.0, 33.0],
        [7.0],
    ] and second.get_title() == "Ours: test_b"
    assert list(paper.lines[0].get_data()[1]) == [25.5, 25.5]
    assert [label.get_text() for label in paper.get_xticklabels()] == ["with", "without"]
    buckets = [(2, 40.0), (3, 30.0), (1, 24.0), (1, 20.0), (4, 10.0)]
    plots.plot_lengths(
        tmp_path / "lengths.png",
        [[make_result("with", 1, 1.0, 2.0, 3.0, buckets=buckets)], [make_result("none", 1)]],
        8,
    )
    (axis,) = figures["lengths.png"].axes
    assert {
        line.get_label(): list(line.get_data()[1])
        for line in axis.lines
        if len(line.get_data()[1]) == 5
    } == {"with": [40.0, 30.0, 24.0, 20.0, 10.0]}
