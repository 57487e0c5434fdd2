"""Test of the benchmark of language models with tiny sizes."""

import pytest
from benchmark_runs import run_table

pytestmark = pytest.mark.long


def test_language_model_benchmark_prints_a_row_for_each_position():
    sizes = ["--num_layers=1", "--hidden_dim=16", "--vocab_size=11", "--runs=2"]
    header, *rows = run_table("language_model", "--positions=3,8", *sizes)
    assert header[0] == "positions"
    assert [row[0] for row in rows] == ["3", "8"]
    for row in rows:
        assert all(float(cell.split()[0]) > 0 for cell in row[1:])
