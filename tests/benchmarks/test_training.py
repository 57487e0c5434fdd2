"""Tests of the training benchmark with tiny sizes: batches and other systems."""

import gzip
import importlib.util
import re

import numpy as np
import pytest
from absl import flags
from benchmark_runs import run
from programs import loaded

from examples.synthetic_corpus import generate

pytestmark = pytest.mark.slow
INPUTS, TARGETS = np.array([[5, 1, 0], [4, 4, 1]]), np.array([[3, 1], [1, 0]])


@pytest.fixture
def files(tmp_path):
    """Returns flags with 97 pairs of sentences, one side of them compressed."""
    sources, targets = zip(*generate("train", size=97))
    with gzip.open(tmp_path / "source.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(sources) + "\n")
    (tmp_path / "target").write_text("\n".join(targets) + "\n", encoding="utf-8")
    return [f"--train_source={tmp_path}/source.gz", f"--train_target={tmp_path}/target"]


@pytest.mark.long
def test_training_benchmark_measures_all_systems(files):
    done = run("training", *files, "--vocab_size=151", "--batch_tokens=67", "--steps=1", "--runs=2")
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"tiny, 2 runs of 1 steps, \d+ tokens/step, \d+% padding", lines[0])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]
    systems = ["trainer", "trainer bfloat16", "trainer sinusoidal"]
    if importlib.util.find_spec("torch"):
        systems.append("torch")
    assert [row[0] for row in rows] == systems
    for system, rate, ratio, megabytes in rows:
        median, low, high = map(int, re.findall(r"\d+", rate))
        assert 0 < low <= median <= high
        assert (ratio == "1.00 (1.00 – 1.00)") == (system == "trainer")
        assert float(megabytes) > 10


def test_batches_have_at_most_the_given_tokens_and_are_saved(files, tmp_path):
    with loaded("benchmarks.training.__main__") as program:
        flags.FLAGS(["training", *files])
        made = program.make_batches(vocab_size=151, batch_tokens=67, count=3)
        program.write_batches(tmp_path / "batches.npz", made)
        assert program.count_tokens([(INPUTS, TARGETS)]) == 8
    assert len(made) == 3
    for inputs, targets in made:
        assert len(inputs) == len(targets)
        assert max(inputs.size, targets.size) <= 67
    arrays = np.load(tmp_path / "batches.npz")
    np.testing.assert_array_equal(arrays["targets_2"], made[2][1])
