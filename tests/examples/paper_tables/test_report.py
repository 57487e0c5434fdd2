"""Tests of result tables and CSV files."""

import pytest

from examples.paper_tables import report
from examples.paper_tables.scoring import Result, bucket_labels, score_trial
from trainer.metrics import Score, sacrebleu

pytestmark = pytest.mark.slow
SIGNATURE = "nrefs:1|case:mixed"
NOTE = "The paper reports tokenized BLEU on WMT 2014. "
BUCKETS = [(2, 40.0), (3, 30.0), (0, None), (1, 20.0), (4, 10.0)]


@pytest.fixture
def make_result(make_trial):
    """Returns `make_result(label, seed, *bleu)`; `bleu` has scores of val, test_a and test_b."""

    def make(label, seed, *bleu, buckets=()):
        trial = make_trial({"use_key_table": label == "with"}, seed=seed, label=label)
        scores = {
            split: Score("BLEU", value, SIGNATURE)
            for split, value in zip(trial.dataset.eval_splits, bleu)
        }
        return Result(trial, scores, list(buckets))

    return make


@pytest.fixture
def results(make_result):
    return [
        [make_result("with", 1, 30.0, 31.0, 32.0), make_result("with", 2, 31.0, 32.5, 33.0)],
        [make_result("without", 1, 5.0, 6.04, 7.0), make_result("without", 2)],
    ]


def test_format_table_of_scores(results):
    columns = "{0}, seed 1 | {0}, seed 2 | {0}, mean"
    splits = " | ".join(columns.format(split) for split in ("val", "test_a", "test_b"))
    assert report.format_table(results).splitlines() == [
        f"|  | paper: newstest | {splits} | steps |",
        "|" + " --- |" * 12,
        "| with | 25.5 | 30.0 | 31.0 | 30.5 | 31.0 | 32.5 | 31.8 | 32.0 | 33.0 | 32.5 | 7 |",
        "| without | 25.5 | 5.0 | – | – | 6.0 | – | – | 7.0 | – | – | 7 |",
        "",
        f"{NOTE}Ours: `{SIGNATURE}`.",
    ]


def test_format_table_without_scores(make_result):
    header, _, row, _, note = report.format_table([[make_result("with", 1)]]).splitlines()
    splits = "val, seed 1 | test_a, seed 1 | test_b, seed 1"
    assert header == f"|  | paper: newstest | {splits} | steps |"
    assert row == "| with | 25.5 | – | – | – | 7 |"
    assert note == f"{NOTE}No model is trained yet."


def test_format_table_by_length_of_buckets(make_result):
    results = [[make_result("with", 1, 1.0, 2.0, 3.0, buckets=BUCKETS), make_result("with", 2)]]
    assert report.format_table_by_length(results, 8).splitlines() == [
        "|  | seed | 1–4 tokens | 5–8 tokens | 9–10 tokens | 11–12 tokens | 13– tokens |",
        "|" + " --- |" * 7,
        "| with | 1 | 40.0 | 30.0 | – | 20.0 | 10.0 |",
        "| with | 2 | – | – | – | – | – |",
        "| sentences |  | 2 | 3 | 0 | 1 | 4 |",
        "",
        "Trained on sentences of at most 8 tokens. All test sets together.",
    ]


def test_score_trial_of_translations(make_trial, folder):
    trial = make_trial()
    assert score_trial(trial).scores == {} and score_trial(trial).bleu("val") is None
    trial.run()
    hypotheses = [f"TEST_A EN {n} A B C D" for n in range(3)]
    references = [f"test_a de {n} a b c d" for n in range(3)]
    expected = sacrebleu(hypotheses, references).value
    assert score_trial(trial).bleu("test_a") == expected > 0
    trial.translations("val").write_text((folder / "val.de").read_text())
    assert score_trial(trial).bleu("val") == pytest.approx(100.0)
    # A Unicode line separator doesn't end a translation.
    trial.translations("test_b").write_text("a\u2028b\n\x1cb\n", encoding="utf-8")
    assert 0 <= score_trial(trial).bleu("test_b") < 100


def test_bucket_labels_of_short_sentences():
    assert bucket_labels(4) == ["1–2", "3–4", "5–5", "6–6", "7–"]
