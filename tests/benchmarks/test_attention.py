"""Tests of the attention benchmark with tiny sizes."""

import pytest
from benchmark_runs import read_csv, run, run_table

from benchmarks.workers import ROOT

pytestmark = pytest.mark.long
SIZES = ["--lengths=8", "--directions=causal", "--passes=both", "--max_relative_positions=2"]
SIZES += ["--runs=2", "--nomemory"]
CASES = [[part, "causal", "both", "2", "8"] for part in ("core", "encoder")]


def test_attention_benchmark_writes_all_implementations(tmp_path):
    flags = ["--compare_flash", f"--output_dir={tmp_path}"]
    header, *rows = run_table("attention", *SIZES, *flags)
    assert header[:5] == ["part", "direction", "passes", "K", "n"]
    assert header[5:] == ["implementation", "ms", "ratio", "MB"]
    assert [row[:6] for row in rows] == [
        *([*CASES[0], name] for name in ("plain", "relative", "relative_linear", "tensor2tensor")),
        *([*CASES[1], name] for name in ("keras", "relative", "relative_linear")),
    ]
    in_file = read_csv(tmp_path / "attention.csv")
    assert [row["implementation"] for row in in_file] == [row[5] for row in rows]
    for row in in_file:
        assert 0 < float(row["low"]) <= float(row["ratio"]) <= float(row["high"])
        assert float(row["ms"]) > 0
        assert row["MB"] == ""


def test_attention_benchmark_measures_memory(tmp_path):
    flags = ["--lengths=512", "--directions=causal", "--passes=both", "--parts=layer", "--runs=1"]
    _, *rows = run_table("attention", *flags, f"--output_dir={tmp_path}")
    assert [row[5] for row in rows] == ["keras", "relative"]
    assert all(float(row[8]) > 0 for row in rows)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_attention_benchmark_runs_on_other_backends_and_with_xla(backend, tmp_path, monkeypatch):
    pytest.importorskip(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    flags = ["--xla", "--parts=core,layer", f"--output_dir={tmp_path}"]
    _, *rows = run_table("attention", *SIZES, *flags)
    assert [row[0] for row in rows] == [*(["core"] * 3), *(["layer"] * 2)]


def test_attention_benchmark_compares_with_a_baseline(tmp_path):
    flags = ["--steps=1", f"--baseline={ROOT}", f"--output_dir={tmp_path}"]
    header, *rows = run_table("attention", *SIZES, *flags)
    assert header[5:8] == ["baseline ms", "this ms", "this / baseline (95 % interval)"]
    assert [row[:5] for row in rows] == CASES
    for row in read_csv(tmp_path / "baseline.csv"):
        assert 0 < float(row["low"]) <= float(row["ratio"]) <= float(row["high"])


def test_attention_benchmark_rejects_a_baseline_that_is_not_a_checkout(tmp_path):
    message = f"--baseline must be a checkout of this project. Received: {tmp_path}"
    done = run("attention", f"--baseline={tmp_path}", returncode=1)
    assert message in " ".join((done.stdout + done.stderr).split())
