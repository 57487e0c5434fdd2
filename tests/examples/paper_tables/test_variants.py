"""Tests of each experiment's variants and of the paper's scores."""

import pytest

from examples.paper_tables.variants import EXPERIMENTS, NO_GAIN, make_variants
from t2t_relpos.models import PRESETS, TransformerConfig
from trainer.config import RunConfig


def test_make_variants_of_table1():
    variants = make_variants("table1", ["shaw_base", "shaw_big"], 0)
    assert [(variant.label, *variant.paper.values()) for variant in variants] == [
        ("shaw_base, absolute", 26.5, 38.2),
        ("shaw_base, relative", 26.8, 38.7),
        ("shaw_base, both", NO_GAIN, NO_GAIN),
        ("shaw_big, absolute", 27.9, 41.2),
        ("shaw_big, relative", 29.2, 41.5),
        ("shaw_big, both", NO_GAIN, NO_GAIN),
    ]


def test_make_variants_of_table2():
    variants = {
        variant.label: (variant.overrides.get("max_relative_position"), *variant.paper.values())
        for variant in make_variants("table2", ["shaw_base"], 0)
    }
    assert variants == {
        "k = 0": (0, 12.5),
        "k = 1": (1, 25.5),
        "k = 2": (2, 25.8),
        "k = 4": (4, 25.9),
        # The preset's value.
        "k = 16": (None, 25.8),
        "k = 64": (64, 25.9),
        "k = 256": (256, 25.8),
    }


def test_make_variants_of_table3():
    variants = {
        variant.label: (variant.overrides, *variant.paper.values())
        for variant in make_variants("table3", ["shaw_base"], 0)
    }
    assert variants == {
        "a^V and a^K": ({}, 25.8),
        "a^V only": ({"use_key_table": False}, 25.3),
        "a^K only": ({"use_value_table": False}, 25.8),
        "neither": ({"position": "none"}, 12.5),
    }


def test_make_variants_of_positions_and_lengths():
    assert [variant.name for variant in make_variants("positions", ["tiny"], 0)] == [
        "tiny",
        "tiny-position=relative+sinusoidal",
        "tiny-position=sinusoidal",
        "tiny-position=learned",
    ]
    lengths = make_variants("lengths", ["tiny"], 11)
    assert [(variant.label, variant.overrides) for variant in lengths] == [
        ("relative", {"max_length": 11}),
        ("sinusoidal", {"position": "sinusoidal", "max_length": 11}),
        ("learned", {"position": "learned", "max_length": 11}),
    ]


def test_variant_names_identify_configurations():
    names = {
        experiment: {variant.name for variant in make_variants(experiment, ["tiny"], 11)}
        for experiment in EXPERIMENTS
    }
    assert names["table1"] & names["table2"] & names["table3"] == {"tiny"}
    assert names["table1"] < names["positions"]
    assert not names["lengths"] & names["positions"]
    assert len(set.union(*names.values())) == 16


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_variants_are_valid_trainer_configurations(experiment):
    for variant in make_variants(experiment, ["shaw_base", "shaw_big", "tiny"], 11):
        run = RunConfig(preset=variant.preset, model_dir="m", data="any", **variant.overrides)
        TransformerConfig.from_preset(variant.preset, vocab_size=11, **run.architecture_overrides())


def test_make_variants_rejects_a_preset_without_relative_positions():
    assert PRESETS["transformer_base"]["position"] == "sinusoidal"
    message = "must have relative positions, got transformer_base with position=sinusoidal"
    with pytest.raises(ValueError, match=message):
        make_variants("table2", ["tiny", "transformer_base"], 0)
