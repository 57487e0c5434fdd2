"""Tests of the order of worker processes and the check for their interpreters."""

import collections
import sys

from benchmarks.common.worker_processes import available, in_turns


def test_in_turns_rotates_the_order_of_names():
    turns = list(in_turns({"x": 1, "y": 2, "z": 3}, 5))
    assert turns[:6] == [(0, "x"), (0, "y"), (0, "z"), (1, "y"), (1, "z"), (1, "x")]
    assert set(collections.Counter(turns).values()) == {1}
    assert len(turns) == 15
    assert {name for _, name in turns[::3]} == {"x", "y", "z"}


def test_available_skips_names_without_an_interpreter(tmp_path, capsys):
    (tmp_path / "python").write_text("not executable")
    pythons = {"x": None, "y": sys.executable, "z": f"{tmp_path}/python", "other": None}
    assert available(["this", "x", "y", "z"], pythons) == ["this", "y"]
    assert capsys.readouterr().err == (
        "Skipping x: no Python at --x_python=None.\n"
        f"Skipping z: no Python at --z_python={tmp_path}/python.\n"
    )
