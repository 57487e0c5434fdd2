"""The model variants of each experiment and the BLEU that the paper reports for them.

The paper is Shaw, Uszkoreit and Vaswani 2018. Its Tables 1 to 3 report tokenized BLEU on WMT 2014.
The experiment `lengths` is not in the paper.
"""

import dataclasses

from t2t_relpos.models import PRESETS

NO_GAIN = "no further gain"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model configuration to train.

    Args:
        label: its name in the result table.
        preset: architecture and training recipe.
        overrides: settings of `RunConfig` that differ from the preset.
        paper: the paper's result by column name: a BLEU score or a remark.
    """

    label: str
    preset: str
    overrides: dict[str, str | int | bool]
    paper: dict[str, float | str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Folder name. Equal configurations in two tables have equal names.

        Example:

        >>> from examples.paper_tables.variants import Variant
        >>> Variant("k = 2", "tiny", {"max_relative_position": 2}).name
        'tiny-max_relative_position=2'
        """
        overrides = [f"{name}={value}".lower() for name, value in sorted(self.overrides.items())]
        return "-".join([self.preset, *overrides])


def make_variants(experiment: str, presets: list[str], max_train_length: int) -> list[Variant]:
    """Returns the variants of an experiment, preset by preset.

    Args:
        experiment: a name among `EXPERIMENTS`.
        presets: names of presets with relative positions.
        max_train_length: length of the longest training sentence in tokens; for "lengths" only.
    """
    relative = [name for name, settings in PRESETS.items() if settings["position"] == "relative"]
    if not presets or not set(presets) <= set(relative):
        raise ValueError(f"--presets must be among {', '.join(relative)}, got {','.join(presets)}.")
    return [
        Variant(label, preset, overrides, paper)
        for preset in presets
        for label, overrides, paper in _EXPERIMENTS[experiment](preset, max_train_length)
    ]


def _table1(preset, _):
    """Returns the variants of Table 1: absolute, relative and combined positions; newstest2014."""
    absolute, relative = (26.5, 38.2), (26.8, 38.7)
    if preset == "shaw_big":
        absolute, relative = (27.9, 41.2), (29.2, 41.5)
    rows = (
        ("absolute", {"position": "sinusoidal"}, absolute),
        ("relative", {}, relative),
        ("both", {"position": "relative+sinusoidal"}, (NO_GAIN, NO_GAIN)),
    )
    columns = "newstest2014 en-de", "newstest2014 en-fr"
    return [
        (f"{preset}, {label}", flags, dict(zip(columns, paper))) for label, flags, paper in rows
    ]


def _table2(preset, _):
    """Returns the variants of Table 2: clipping distances; newstest2013 en-de, base model."""
    bleu = {0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 16: 25.8, 64: 25.9, 256: 25.8}
    # Without an override the variant shares its folder with the other tables.
    default = PRESETS[preset]["max_relative_position"]
    return [
        (f"k = {k}", {} if k == default else {"max_relative_position": k}, {_NEWSTEST2013: score})
        for k, score in bleu.items()
    ]


def _table3(preset, _):
    """Returns the variants of Table 3: with and without a^V and a^K; newstest2013, base model."""
    return [
        ("a^V and a^K", {}, {_NEWSTEST2013: 25.8}),
        ("a^V only", {"use_key_table": False}, {_NEWSTEST2013: 25.3}),
        ("a^K only", {"use_value_table": False}, {_NEWSTEST2013: 25.8}),
        ("neither", {"position": "none"}, {_NEWSTEST2013: 12.5}),
    ]


def _lengths(_, max_train_length):
    """Returns variants with relative and absolute positions, trained on short sentences."""
    overrides = {"max_length": max_train_length}
    return [
        ("relative", overrides, {}),
        *((label, {"position": label} | overrides, {}) for label in ("sinusoidal", "learned")),
    ]


_NEWSTEST2013 = "newstest2013 en-de"
_EXPERIMENTS = {"table1": _table1, "table2": _table2, "table3": _table3, "lengths": _lengths}
EXPERIMENTS = tuple(_EXPERIMENTS)
