"""Tests of the benchmark of families of models of transformers."""

import importlib.util

import pytest
from benchmark_runs import run_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")),
        reason="requires the extra transformers",
    ),
]


@pytest.mark.parametrize("part", [pytest.param("attention", marks=pytest.mark.long), "encoder"])
def test_table_has_a_row_for_each_family(part):
    families = "VITS,Granite Speech 5" if part == "attention" else "VITS"
    sizes = "--lengths=16", "--runs=2", "--batch_size=2"
    header, *rows = run_table("families", f"--families={families}", f"--part={part}", *sizes)
    assert header == ["family", "length", "transformers", "attend", "time", "memory"]
    assert [row[:2] for row in rows] == [[name, "16"] for name in families.split(",")]
    for family, _, transformers, attend, time, memory in rows:
        names = [cell.split()[0] for cell in transformers.split("; ")]
        assert names == (["eager"] if family == "VITS" else ["eager", "sdpa"])
        assert attend.split()[1] == "s," and attend.endswith(" MB")
        assert float(time.split()[0]) > 0 and time.split()[-1] in names
        assert memory.split()[-1] in names
