"""Which peers are measured, and in which order."""

import collections
import sys


def test_each_name_has_its_turn_in_every_run_and_every_place(load):
    turns = list(load("peers").in_turns({"x": 1, "y": 2, "z": 3}, 5))
    assert turns[:6] == [(0, "x"), (0, "y"), (0, "z"), (1, "y"), (1, "z"), (1, "x")]
    assert set(collections.Counter(turns).values()) == {1} and len(turns) == 15
    assert {name for _, name in turns[::3]} == {"x", "y", "z"}


def test_peers_without_their_python_are_left_out(load, tmp_path, capsys):
    (tmp_path / "python").write_text("not to be run")
    pythons = {"x": None, "y": sys.executable, "z": f"{tmp_path}/python", "other": None}
    assert load("peers").with_python(["ours", "x", "y", "z"], pythons) == ["ours", "y"]
    expected = f"x is left out: no Python at --x_python=None.\nz is left out: no Python at --z_python={tmp_path}/python.\n"
    assert capsys.readouterr().err == expected
