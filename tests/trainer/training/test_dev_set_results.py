import json

import pytest

from trainer.training.dev_set import DevResult, DevResults


def add_evaluations(file, bleus, until=0):
    evaluations = DevResults(file, until)
    for step, bleu in bleus.items():
        evaluations.add(DevResult(step, 2.5, 0.5, bleu))
    return evaluations


def test_file_has_one_line_per_evaluation(tmp_path):
    file = tmp_path / "evaluations.json"
    add_evaluations(file, {3: 12.5, 6: None})
    assert json.loads(file.read_text()) == [
        {"step": 3, "loss": 2.5, "accuracy": 0.5, "bleu": 12.5, "chrf": None},
        {"step": 6, "loss": 2.5, "accuracy": 0.5, "bleu": None, "chrf": None},
    ]
    assert len(file.read_text().splitlines()) == 4


def test_resumed_run_drops_later_evaluations(tmp_path):
    add_evaluations(tmp_path / "file", {3: 10.0, 6: 20.0, 9: 5.0})
    again = DevResults(tmp_path / "file", until=7)
    assert 6 in again and 9 not in again
    assert again.best() == DevResult(6, 2.5, 0.5, 20.0) and again.without_improvement() == 0
    again.add(DevResult(9, 2.5, 0.5, 15.0))
    assert again.without_improvement() == 1
    assert [entry.step for entry in DevResults(tmp_path / "file", until=100).entries] == [3, 6, 9]


def test_equal_or_missing_bleu_is_no_improvement(tmp_path):
    evaluations = add_evaluations(tmp_path / "file", {3: 0.0, 6: 0.0, 9: None, 12: 0.0})
    assert evaluations.best().step == 3 and evaluations.without_improvement() == 2
    evaluations = add_evaluations(tmp_path / "other", {3: None, 6: None})
    assert evaluations.best() is None and evaluations.without_improvement() == 0


def test_best_entry_by_chrf(tmp_path):
    """Entries of earlier versions have no chrF."""
    file = tmp_path / "file"
    file.write_text('[{"step": 3, "loss": 2.5, "accuracy": 0.5, "bleu": 40.0}]')
    results = DevResults(file, 3, "dev_chrf")
    assert results.best() is None
    for step, bleu, chrf in ((6, 30.0, 50.0), (9, 20.0, 60.0), (12, 35.0, 55.0)):
        results.add(DevResult(step, 2.5, 0.5, bleu, chrf))
    assert results.score(results.best()) == 60.0 and results.without_improvement() == 1
    by_bleu = DevResults(file, 12)
    assert (by_bleu.best().step, by_bleu.without_improvement()) == (3, 3)
    assert 3 not in DevResults(file, 3, "dev_chrf", with_scores=True)


@pytest.mark.parametrize("content", ["[", '[{"step": 3}]', "3"])
def test_invalid_file_raises(tmp_path, content):
    (tmp_path / "file").write_text(content)
    message = "Expected a list of evaluations in .*Restore the file, or remove it"
    with pytest.raises(ValueError, match=message):
        DevResults(tmp_path / "file", until=3)


def test_evaluations_without_writes_leave_no_file(tmp_path):
    file = tmp_path / "evaluations.json"
    other = DevResults(file, 0, writes=False)
    other.add(DevResult(2, 1.5, 0.5))
    assert 2 in other and not file.exists()


def test_step_without_bleu_is_evaluated_again_if_bleu_is_required(tmp_path):
    file = tmp_path / "file"
    add_evaluations(file, {3: None, 6: None})
    assert 6 in DevResults(file, until=6)
    again = DevResults(file, until=6, with_scores=True)
    assert 3 in again and 6 not in again
    again.add(DevResult(6, 2.5, 0.5, 12.5))
    assert [(entry.step, entry.bleu) for entry in again.entries] == [(3, None), (6, 12.5)]
    assert 6 in DevResults(file, until=6, with_scores=True)
