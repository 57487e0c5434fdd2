"""Tests of the decoding benchmark with a tiny random model."""

import re

import pytest
from benchmark_runs import run_table

from examples.synthetic_corpus import generate

ROUNDED = ["early bfloat16", "ctranslate2 int8"]
SYSTEMS = ["exact", "early", "early bfloat16", "ctranslate2", "ctranslate2 int8"]


@pytest.mark.long
def test_decoding_benchmark_measures_all_systems(tmp_path):
    text = tmp_path / "lines"
    text.write_text("".join(f"{source}\n" for source, _ in generate("train", size=97)))
    sizes = ["--vocab_size=151", "--sentences=3", "--runs=2", "--batches=1,2", "--beam_size=2"]
    files = ["--preset=tiny", f"--vocab_text={text}", f"--text={text}"]
    header, *rows = run_table("decoding", *files, *sizes)
    assert header[:3] == ["batch", "system", "sentences/s"]
    assert [row[:2] for row in rows] == [[batch, system] for batch in "12" for system in SYSTEMS]
    for _, system, rate, over_exact, over_early, megabytes, same in rows:
        median, low, high = map(float, re.findall(r"\d+\.\d+", rate))
        assert low <= median <= high
        assert (over_exact == "1.00 (1.00 – 1.00)") == (system == "exact")
        assert (over_early == "1.00 (1.00 – 1.00)") == (system == "early")
        assert float(megabytes) > 10
        assert same == "100%" or system in ROUNDED
