"""Tests of the decoding benchmark with a tiny random model."""

import pytest
from benchmark_runs import read_csv, run

from examples.synthetic_corpus import generate

ROUNDED = ["early bfloat16", "compiled early bfloat16", "ctranslate2 int8"]
SYSTEMS = ["exact", "early", "compiled", "compiled early", *ROUNDED[:2], "ctranslate2", ROUNDED[2]]


@pytest.mark.long
def test_decoding_benchmark_measures_all_systems(tmp_path):
    text = tmp_path / "lines"
    text.write_text("".join(f"{source}\n" for source, _ in generate("train", size=97)))
    sizes = ["--vocab_size=151", "--length=5", "--sentences=3", "--runs=2"]
    sizes += ["--batches=1,2", "--beams=2"]
    files = [f"--vocab_text={text}", f"--text={text}", f"--csv={tmp_path}/table.csv"]
    done = run("decoding", "--preset=tiny", *files, *sizes)
    assert "Skipping opennmt: no Python at --opennmt_python=None." in done.stderr
    rows = read_csv(tmp_path / "table.csv")
    cases = [(batch, system) for batch in "12" for system in SYSTEMS]
    assert [(row["batch"], row["system"]) for row in rows] == cases
    for row in rows:
        low, rate, high = (float(row[f"sentences/s{end}"]) for end in (" low", "", " high"))
        assert low <= rate <= high
        assert (row["time / exact"] == "1.0") == (row["system"] == "exact")
        assert (row["99th ms"] != "") == (row["batch"] == "1")
        assert float(row["MB"]) > 10
        assert float(row["same"]) == 1 or row["system"] in ROUNDED
    assert done.stdout.count("\n") == 2 + len(rows)
