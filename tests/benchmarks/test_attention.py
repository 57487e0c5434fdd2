"""Tests of the attention benchmark with tiny sizes."""

import pytest
from benchmark_runs import read_csv, run, run_table

from benchmarks.common.worker_processes import ROOT

pytestmark = pytest.mark.long
SIZES = ["--lengths=8", "--directions=causal", "--passes=both", "--max_relative_positions=2"]
SIZES += ["--runs=2", "--nomemory"]
CASES = [[part, "causal", "both", "2", "8"] for part in ("core", "layer")]


def test_attention_benchmark_writes_all_implementations(tmp_path):
    flags = ["--compare_flash", f"--output_dir={tmp_path}"]
    header, core, layer = run_table("attention", *SIZES, *flags)
    assert header[5:10] == ["plain ms", "relative", "flash", "tensor2tensor", "matmul"]
    assert [core[:5], layer[:5]] == CASES
    assert all(core[5:10])
    assert all(layer[5:9])
    assert not layer[9]
    rows = [
        (row["part"], row["implementation"])
        for row in read_csv(tmp_path / "attention.csv")
        if float(row["ratio"]) > 0
    ]
    assert rows == [
        *(("core", name) for name in ("plain", "relative", "flash", "tensor2tensor", "matmul")),
        *(("layer", name) for name in ("plain", "keras", "relative", "flash", "tensor2tensor")),
    ]
    assert (tmp_path / "attention.png").stat().st_size > 1000


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_attention_benchmark_runs_on_other_backends_and_with_xla(backend, tmp_path, monkeypatch):
    pytest.importorskip(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    flags = ["--xla", "--parts=core,attention", f"--output_dir={tmp_path}"]
    _, *rows = run_table("attention", *SIZES, *flags)
    assert [row[0] for row in rows] == ["core", "attention"]


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
