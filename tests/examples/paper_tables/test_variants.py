"""The rows of the experiments against the paper, whose numbers are written down here once more."""

import pytest

from examples.paper_tables.__main__ import EXPERIMENTS
from examples.paper_tables.variants import NO_GAIN, rows
from t2t_relpos.models import PRESETS, TransformerConfig
from trainer.config import RunConfig


def test_table1():
    labels = [
        (row.label, *row.paper.values()) for row in rows("table1", ["shaw_base", "shaw_big"], 0)
    ]
    assert labels == [
        ("shaw_base, absolute", 26.5, 38.2),
        ("shaw_base, relative", 26.8, 38.7),
        ("shaw_base, both", NO_GAIN, NO_GAIN),
        ("shaw_big, absolute", 27.9, 41.2),
        ("shaw_big, relative", 29.2, 41.5),
        ("shaw_big, both", NO_GAIN, NO_GAIN),
    ]


def test_table2():
    made = {
        row.label: (row.changes.get("max_relative_position"), *row.paper.values())
        for row in rows("table2", ["shaw_base"], 0)
    }
    assert made == {
        "k = 0": (0, 12.5),
        "k = 1": (1, 25.5),
        "k = 2": (2, 25.8),
        "k = 4": (4, 25.9),
        # The preset's own.
        "k = 16": (None, 25.8),
        "k = 64": (64, 25.9),
        "k = 256": (256, 25.8),
    }


def test_table3():
    made = {
        row.label: (row.changes, *row.paper.values()) for row in rows("table3", ["shaw_base"], 0)
    }
    assert made == {
        "a^V and a^K": ({}, 25.8),
        "a^V alone": ({"use_key_table": False}, 25.3),
        "a^K alone": ({"use_value_table": False}, 25.8),
        "neither": ({"position": "none"}, 12.5),
    }


def test_kinds_of_positions():
    assert [row.name for row in rows("positions", ["tiny"], 0)] == [
        *(
            "tiny",
            "tiny-position=relative+sinusoidal",
            "tiny-position=sinusoidal",
            "tiny-position=learned",
        )
    ]
    assert [(row.label, row.changes) for row in rows("lengths", ["tiny"], 11)] == [
        ("relative", {"max_length": 11}),
        ("sinusoidal", {"position": "sinusoidal", "max_length": 11}),
        ("learned", {"position": "learned", "max_length": 11}),
    ]


def test_what_two_tables_share_has_one_name():
    names = {
        experiment: {row.name for row in rows(experiment, ["tiny"], 11)}
        for experiment in EXPERIMENTS
    }
    assert names["table1"] & names["table2"] & names["table3"] == {"tiny"}
    assert names["table1"] < names["positions"]
    assert not names["lengths"] & names["positions"]
    assert len(set.union(*names.values())) == 16


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_row_can_be_trained(experiment):
    for row in rows(experiment, ["shaw_base", "shaw_big", "tiny"], 11):
        run = RunConfig(preset=row.preset, model_dir="m", data="synthetic", **row.changes)
        TransformerConfig.from_preset(row.preset, vocab_size=11, **run.architecture())


def test_preset_without_relative_positions():
    assert PRESETS["transformer_base"]["position"] == "sinusoidal"
    with pytest.raises(
        ValueError,
        match="Expected presets with relative positions.*Received: transformer_base, with sinusoidal ones",
    ):
        rows("table2", ["tiny", "transformer_base"], 0)
