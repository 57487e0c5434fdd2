"""Tests of the benchmark of speech models."""

import importlib.util

import pytest
from benchmark_runs import run_table


@pytest.mark.slow
@pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")),
    reason="requires the extra speech",
)
def test_table_has_all_implementations():
    flags = "--lengths=16", "--vits_lengths=12", "--passes=both", "--runs=2", "--parts=encoder,vits"
    header, *rows = run_table("speech", *flags)
    assert header == ["part", "passes", "n", "implementation", "ms", "attend / it", "peak MB"]
    assert [row[:4] for row in rows] == [
        [part, "both", length, name]
        for part, length, names in [
            ("encoder", "16", "eager sdpa attend"),
            ("vits", "12", "eager attend"),
        ]
        for name in names.split()
    ]
    for *_, milliseconds, ratio, peak in rows:
        assert float(milliseconds) > 0 and float(peak) >= 0
        assert ratio == "–" or float(ratio.split()[0]) > 0
