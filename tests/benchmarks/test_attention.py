"""The benchmark of attention, at its smallest: it runs, and its table and file have what they say."""

import csv

import pytest


@pytest.mark.slow
def test_sides_of_core_and_layer_are_in_the_table_and_the_file(run, tmp_path):
    flags = [
        "--lengths=8",
        "--directions=causal",
        "--passes=both",
        "--reaches=2",
        "--runs=2",
        "--nomemory",
        f"--output_dir={tmp_path}",
    ]
    result = run("attention", *flags)
    assert result.returncode == 0, result.stderr
    header, _, core, layer = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in result.stdout.splitlines()
        if "|" in line
    )
    assert header[5:9] == ["plain ms", "this library", "t2t", "products"]
    assert core[:5] == ["core", "causal", "both", "2", "8"] and all(core[5:9])
    assert layer[:5] == ["layer", "causal", "both", "2", "8"] and all(layer[5:8]) and not layer[8]
    with (tmp_path / "attention.csv").open() as file:
        sides = [
            (row["part"], row["side"], float(row["ratio"]) > 0) for row in csv.DictReader(file)
        ]
    assert sides == [
        *(("core", side, True) for side in ("plain", "this library", "t2t", "products")),
        *(("layer", side, True) for side in ("plain", "keras", "this library", "t2t")),
    ]
