"""The order in which peers are measured."""

import collections


def test_each_name_has_its_turn_in_every_run_and_every_place(load):
    turns = list(load("peers").in_turns({"x": 1, "y": 2, "z": 3}, 5))
    assert turns[:6] == [(0, "x"), (0, "y"), (0, "z"), (1, "y"), (1, "z"), (1, "x")]
    assert set(collections.Counter(turns).values()) == {1} and len(turns) == 15
    assert {name for _, name in turns[::3]} == {"x", "y", "z"}
