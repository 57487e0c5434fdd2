"""Tests of each experiment's variants and of the paper's scores."""

import pytest

from examples.paper_tables.variants import EXPERIMENTS, make_variants
from t2t_relpos.models import PRESETS, TransformerConfig
from trainer.config import RunConfig

pytestmark = pytest.mark.slow
# Label, folder name and the paper's results. Equal configurations have equal names.
VARIANTS = {
    "table1": """
        shaw_base, absolute | shaw_base-position=sinusoidal | 26.5 | 38.2
        shaw_base, relative | shaw_base | 26.8 | 38.7
        shaw_base, both | shaw_base-position=relative+sinusoidal | no further gain | no further gain
        shaw_big, absolute | shaw_big-position=sinusoidal | 27.9 | 41.2
        shaw_big, relative | shaw_big | 29.2 | 41.5
        shaw_big, both | shaw_big-position=relative+sinusoidal | no further gain | no further gain
        """,
    "table2": """
        k = 0 | shaw_base-max_relative_position=0 | 12.5
        k = 1 | shaw_base-max_relative_position=1 | 25.5
        k = 2 | shaw_base-max_relative_position=2 | 25.8
        k = 4 | shaw_base-max_relative_position=4 | 25.9
        k = 16 | shaw_base | 25.8
        k = 64 | shaw_base-max_relative_position=64 | 25.9
        k = 256 | shaw_base-max_relative_position=256 | 25.8
        """,
    "table3": """
        a^V and a^K | shaw_base | 25.8
        a^V only | shaw_base-use_key_table=false | 25.3
        a^K only | shaw_base-use_value_table=false | 25.8
        neither | shaw_base-position=none | 12.5
        """,
    "lengths": """
        relative | shaw_base-max_length=11
        sinusoidal | shaw_base-max_length=11-position=sinusoidal
        learned | shaw_base-max_length=11-position=learned
        """,
}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_make_variants(experiment):
    presets = ["shaw_base", "shaw_big"] if experiment == "table1" else ["shaw_base"]
    found = [
        " | ".join(map(str, (variant.label, variant.name, *variant.paper.values())))
        for variant in make_variants(experiment, presets, 11)
    ]
    assert found == [line.strip() for line in VARIANTS[experiment].strip().splitlines()]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_variants_are_valid_trainer_configurations(experiment):
    for variant in make_variants(experiment, ["shaw_base", "shaw_big", "tiny"], 11):
        run = RunConfig(preset=variant.preset, model_dir="m", data="any", **variant.overrides)
        TransformerConfig.from_preset(variant.preset, vocab_size=11, **run.architecture_overrides())


def test_make_variants_rejects_a_preset_without_relative_positions():
    assert PRESETS["transformer_base"]["position"] == "sinusoidal"
    message = "--presets must be among shaw_base, .*, got tiny,transformer_base."
    with pytest.raises(ValueError, match=message):
        make_variants("table2", ["tiny", "transformer_base"], 0)
