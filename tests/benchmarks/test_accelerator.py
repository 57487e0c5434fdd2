"""Tests of the accelerator benchmark with tiny sizes, on the CPU."""

import pytest
from benchmark_runs import read_csv, run_table

pytestmark = pytest.mark.long
SIZES = ["--lengths=8", "--batch_tokens=16", "--max_relative_position=2", "--runs=2"]
SIZES += ["--preset=tiny", "--vocab_size=11", "--pairs=2", "--pair_length=4"]
FAST = ["--directions=causal", "--dtypes=bfloat16", "--nomemory"]


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_accelerator_benchmark_compares_all_implementations(backend, tmp_path, monkeypatch):
    pytest.importorskip(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    header, *rows = run_table("accelerator", *SIZES, *FAST, f"--output_dir={tmp_path}")
    assert header[:6] == ["part", "direction", "dtype", "positions", "batch", "implementation"]
    flash = [] if backend == "tensorflow" else ["flash"]
    names = ["plain", *flash, "relative", "relative_linear"]
    expected = [
        *(
            [part, "causal", "bfloat16", "8", "2", name]
            for part in ("core", "layer")
            for name in names
        ),
        *(["training", "", "bfloat16", "4", "2", name] for name in ("plain", "relative")),
    ]
    assert [row[:6] for row in rows] == expected
    in_file = read_csv(tmp_path / "accelerator.csv")
    assert [row["implementation"] for row in in_file] == [row[5] for row in rows]
    for row in in_file:
        assert float(row["milliseconds"]) > 0 and float(row["over_plain"]) > 0
        assert bool(row["over_flash"]) == (bool(flash) and row["part"] != "training")
        assert bool(row["tokens_per_second"]) == (row["part"] == "training")
    text = (tmp_path / "accelerator.md").read_text()
    assert text.startswith(f"CPU, {backend} ") and text.count("\n") == len(rows) + 4


def test_accelerator_benchmark_measures_memory(tmp_path):
    flags = ["--parts=core", "--dtypes=float32", "--directions=bidirectional", "--runs=1"]
    flags += ["--lengths=64,512", "--batch_tokens=512", "--plain_max_length=64"]
    _, *rows = run_table("accelerator", *flags, f"--output_dir={tmp_path}")
    assert [(row[3], row[5]) for row in rows] == [
        *(("64", name) for name in ("plain", "relative", "relative_linear")),
        *(("512", name) for name in ("relative", "relative_linear")),
    ]
    assert all(float(row[9]) >= 0 for row in rows)
    assert [bool(row[7]) for row in rows] == [True, True, True, False, False]
