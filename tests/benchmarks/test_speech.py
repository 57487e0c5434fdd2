"""Tests of the benchmark of speech models."""

import importlib.util

import pytest
from benchmark_runs import run, run_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")),
        reason="requires the extra speech",
    ),
]


def test_table_has_all_implementations():
    sizes = "--lengths=16", "--vits_lengths=12", "--passes=both", "--runs=2"
    header, *rows = run_table("speech", *sizes, "--parts=encoder,vits", "--nomemory")
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
        assert float(milliseconds) > 0 and peak == "–"
        assert ratio == "–" or float(ratio.split()[0]) > 0


def test_process_measures_the_peak_of_an_implementation():
    assert float(run("speech", "--memory_of=attend,vits,12").stdout.splitlines()[-1]) >= 0
