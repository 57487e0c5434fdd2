"""Tests of the attention benchmark with tiny sizes."""

import re

import pytest
from benchmark_runs import run, run_table

pytestmark = pytest.mark.long
SIZES = ["--lengths=8", "--passes=both", "--runs=2"]


def test_attention_benchmark_measures_all_implementations():
    header, *rows = run_table("attention", *SIZES, "--compare_flash")
    assert header == ["part", "direction", "passes", "n", "implementation", "ms", "ratio"]
    assert [row[:5] for row in rows] == [
        [part, direction, "both", "8", name]
        for part, reference in (("core", "plain"), ("encoder", "keras"))
        for direction in ("bidirectional", "causal")
        for name in (reference, "relative", "relative_linear")
    ]
    for *_, name, milliseconds, ratio in rows:
        median, low, high = map(float, re.findall(r"\d+\.\d+", ratio))
        assert float(milliseconds) > 0 and 0 < low <= median <= high
        assert (ratio == "1.00 (1.00 – 1.00)") == (name in ("plain", "keras"))


@pytest.mark.parametrize("implementation", ["keras", "relative"])
def test_attention_benchmark_measures_memory(implementation):
    output = run("attention", f"--memory_of={implementation},layer,causal,512").stdout
    assert float(output.splitlines()[-1]) > 0


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_attention_benchmark_runs_on_other_backends_and_with_xla(backend, monkeypatch):
    pytest.importorskip(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    _, *rows = run_table("attention", *SIZES, "--xla", "--parts=core,layer")
    assert [row[0] for row in rows] == [*(["core"] * 4), *(["layer"] * 4)]
