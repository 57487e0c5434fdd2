"""Tests of `examples.music.chorales`: ids of scores, splits, windows, and a small run."""

import json

import numpy as np
import pytest
from programs import loaded, start

from examples.music import chorales

pytestmark = pytest.mark.slow


def fake_chorale(length, seed):
    """Returns ids of `length` sixteenths: four keys a voice, each for four sixteenths."""
    keys = np.random.default_rng(seed).integers(0, 4, (length // 4, 4)) + [33, 23, 13, 3]
    return np.repeat(keys, 4, axis=0).flatten().tolist()


@pytest.fixture
def folder(tmp_path):
    """Returns an output directory with the ids of eight chorales, so that no score is parsed."""
    ids = {f"bwv{i}.mxl": fake_chorale(96, i) for i in range(253, 261)}
    (tmp_path / "chorales.json").write_text(json.dumps([ids, {"other than 4 parts": ["bwv1"]}]))
    return tmp_path


def test_parse_score_of_the_corpus():
    music21 = pytest.importorskip("music21")
    path = music21.common.getCorpusFilePath() / "bach/bwv269.mxl"
    ids = np.array(chorales.parse_score(path)).reshape(-1, 4)
    # The upbeat is a quarter note: G4, D4, B3, G2.
    assert ids[:4].tolist() == [[67 - 33, 62 - 33, 59 - 33, 43 - 33]] * 4
    assert ids.min() >= chorales.REST and ids.max() < chorales.VOCAB_SIZE


def test_parse_score_names_the_reason():
    music21 = pytest.importorskip("music21")
    path = music21.common.getCorpusFilePath() / "bach/bwv846.mxl"
    with pytest.raises(ValueError, match="other than 4 parts"):
        chorales.parse_score(path)


def test_is_validation_depends_on_the_number_only():
    names = [f"bwv{i}.mxl" for i in range(250, 450)]
    assert 30 <= sum(map(chorales.is_validation, names)) <= 50
    assert chorales.is_validation("bwv18.5-lz.mxl") == chorales.is_validation("bwv18.5-w.mxl")


def test_sample_examples_begin_with_a_soprano():
    songs = [[10 * song + i % 4 for i in range(length)] for song, length in enumerate((256, 512))]
    examples = chorales.sample_examples(songs, 200, np.random.default_rng(1))
    assert examples.shape == (200, 256) and set(examples[:, 0]) == {0, 10}
    # One of 66 starts is in the first chorale.
    assert 0 < (examples[:, 0] == 0).sum() < 15


def test_validation_windows_score_each_id_once():
    songs = [list(range(384)), list(range(1000, 1256))]
    windows, weights = chorales.validation_windows(songs)
    assert sorted(windows[weights > 0]) == sorted(sum(songs, []))
    # Windows start at 0 and 128. The first ids of the second are not scored again.
    assert windows[:, 0].tolist() == [0, 128, 1000]
    assert weights.sum(1).tolist() == [256, 128, 256]


def run(folder, *arguments):
    start("examples.music.chorales", f"--output_dir={folder}", "--width=16", *arguments)


def test_program_trains_each_run_once(folder, capfd):
    arguments = ("--steps=3", "--seeds=1")
    run(folder, "--positions=relative_v2", *arguments)
    (path,) = folder.glob("relative_v2-*.json")
    assert path.name == "relative_v2-width=16-steps=3-seed=1.json"
    loss = json.loads(path.read_text())["loss"]
    assert abs(loss - np.log(chorales.VOCAB_SIZE)) < 0.5
    # The finished run is read, not repeated.
    path.write_text(json.dumps({"loss": 1.25, "parameters": 1234}))
    capfd.readouterr()
    run(folder, "--positions=sinusoidal,relative_v2", *arguments)
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == ["Scores: 9", "Not used, other than 4 parts: 1"]
    assert lines[-1] == "| relative_v2 | 1,234 | 1.2500 | 1.2500 |"
    assert lines[-4] == "| Positions | Parameters | Seed 1 | Mean |"


def test_training_learns(folder):
    run(folder, "--positions=relative", "--steps=80", "--seeds=2", "--width=32")
    (path,) = folder.glob("relative-*.json")
    result = json.loads(path.read_text())
    # Fewer than the 16 keys that occur are likely.
    assert result["loss"] < np.log(16)
    assert result["parameters"] > 2 * 12 * 32**2


def test_format_table_of_results():
    with loaded("examples.music.chorales") as program:
        program.FLAGS(["chorales", "--seeds=1,2", "--positions=relative"])
        results = {("relative", s): {"loss": x, "parameters": 1e3} for s, x in (("1", 1), ("2", 2))}
        table = program.format_table(results)
    assert table.splitlines() == [
        "| Positions | Parameters | Seed 1 | Seed 2 | Mean |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| relative | 1,000.0 | 1.0000 | 2.0000 | 1.5000 |",
    ]
