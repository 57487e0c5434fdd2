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
    sizes = "--lengths=16", "--vits_lengths=12", "--passes=both", "--runs=2", "--batch_size=2"
    choices = "--parts=encoder,model,vits", "--padding=none,masked", "--nomemory"
    header, *rows = run_table("speech", *sizes, *choices)
    columns = "part,passes,padding,n,implementation,ms,attend / it,peak MB"
    assert header == columns.split(",")
    assert [row[:5] for row in rows] == [
        [part, "both", padding, length, name]
        for part, padding, length, names in [
            ("encoder", "none", "16", "eager sdpa attend"),
            ("model", "none", "16", "eager sdpa attend"),
            ("model", "masked", "16", "eager sdpa attend"),
            ("vits", "none", "12", "eager attend"),
        ]
        for name in names.split()
    ]
    for *_, milliseconds, ratio, peak in rows:
        assert float(milliseconds) > 0 and peak == "–"
        assert ratio == "–" or float(ratio.split()[0]) > 0


def test_process_measures_the_peak_of_an_implementation():
    case = "attend,model,forward,12,masked"
    assert float(run("speech", f"--memory_of={case}").stdout.splitlines()[-1]) >= 0
