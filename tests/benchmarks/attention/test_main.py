"""Tests of the attention benchmark with tiny sizes."""

import csv

import pytest

from benchmarks.common.worker_processes import ROOT

SIZES = ["--lengths=8", "--directions=causal", "--passes=both", "--max_relative_positions=2"]
SIZES += ["--runs=2", "--nomemory"]


def table_of(result):
    """Returns the cells of the printed table's header and rows."""
    assert result.returncode == 0, result.stderr
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in result.stdout.splitlines()
        if line.startswith("|")
    )
    return header, rows


@pytest.mark.slow
def test_table_and_file_hold_all_implementations(run, tmp_path):
    header, (core, layer) = table_of(run("attention", *SIZES, f"--output_dir={tmp_path}"))
    assert header[5:9] == ["plain ms", "relative", "tensor2tensor", "matmul"]
    assert core[:5] == ["core", "causal", "both", "2", "8"]
    assert all(core[5:9])
    assert layer[:5] == ["layer", "causal", "both", "2", "8"]
    assert all(layer[5:8])
    assert not layer[8]
    with (tmp_path / "attention.csv").open() as file:
        rows = [
            (r["part"], r["implementation"], float(r["ratio"]) > 0) for r in csv.DictReader(file)
        ]
    assert rows == [
        *(("core", name) for name in ("plain", "relative", "tensor2tensor", "matmul")),
        *(("layer", name) for name in ("plain", "keras", "relative", "tensor2tensor")),
    ]
    assert (tmp_path / "attention.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_checkout_is_compared_with_itself(run, tmp_path):
    flags = [*SIZES, "--steps=1", f"--baseline={ROOT}", f"--output_dir={tmp_path}"]
    header, rows = table_of(run("attention", *flags))
    assert header[5:8] == ["baseline ms", "this ms", "this / baseline (95 % interval)"]
    assert [row[0] for row in rows] == ["core", "layer"]
    with (tmp_path / "baseline.csv").open() as file:
        for row in csv.DictReader(file):
            assert 0 < float(row["low"]) <= float(row["ratio"]) <= float(row["high"])


@pytest.mark.slow
def test_a_folder_without_the_library_is_rejected(run, tmp_path):
    result = run("attention", *SIZES, f"--baseline={tmp_path}")
    assert result.returncode != 0
    assert (
        f"--baseline must be a checkout of this project. Received: {tmp_path}"
        in result.stdout + result.stderr
    )
