"""The rows of each experiment, and what the paper reports for them. Data alone.

Shaw, Uszkoreit and Vaswani 2018, Tables 1 to 3: WMT 2014, BLEU of tokenised text as tensor2tensor counted it then. `positions` and
`lengths` are not in the paper.
"""

import dataclasses

from t2t_relpos.models import PRESETS

# In which the paper has its two sizes of models; every other preset stands beside the smaller one.
_BIG = "shaw_big"
NO_GAIN = "no further gain"


@dataclasses.dataclass(frozen=True)
class Row:
    """A model to train.

    Args:
        label: what the table calls it.
        preset: its architecture and recipe.
        changes: settings of `RunConfig` that differ from the preset's.
        paper: what the paper has, by the name of its column: a BLEU, or words.
    """

    label: str
    preset: str
    changes: dict[str, str | int | bool]
    paper: dict[str, float | str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Tells the models apart, and is the same for the same model in two tables.

        Example:

        >>> Row("k = 2", "tiny", {"max_relative_position": 2}).name
        'tiny-max_relative_position=2'
        """
        return "-".join(
            [
                self.preset,
                *(f"{name}={value}".lower() for name, value in sorted(self.changes.items())),
            ]
        )


def rows(experiment: str, presets: list[str], longest: int) -> list[Row]:
    """The rows of an experiment.

    Args:
        experiment: table1, table2, table3, positions or lengths.
        presets: architectures; `table1` takes several, one after the other.
        longest: with `lengths`, tokens of the longest sentence to train on.

    Raises:
        ValueError: for a preset without relative positions.

    Example:

    >>> [row.label for row in rows("table3", ["tiny"], 0)]
    ['a^V and a^K', 'a^V alone', 'a^K alone', 'neither']
    """
    for preset in presets:
        if PRESETS[preset]["position"] != "relative":
            raise ValueError(
                f"Expected presets with relative positions, which the rows then change. Received: {preset}, with "
                f"{PRESETS[preset]['position']} ones. Correct --presets."
            )
    makers = {
        "table1": _table1,
        "table2": _table2,
        "table3": _table3,
        "positions": _positions,
        "lengths": lambda preset: _lengths(preset, longest),
    }
    return [row for preset in presets for row in makers[experiment](preset)]


def _table1(preset):
    """Absolute positions, relative ones, both: newstest2014."""
    columns = "newstest2014 en-de", "newstest2014 en-fr"
    absolute, relative = (
        ((27.9, 41.2), (29.2, 41.5)) if preset == _BIG else ((26.5, 38.2), (26.8, 38.7))
    )
    return [
        Row(
            f"{preset}, absolute", preset, {"position": "sinusoidal"}, dict(zip(columns, absolute))
        ),
        Row(f"{preset}, relative", preset, {}, dict(zip(columns, relative))),
        Row(
            f"{preset}, both",
            preset,
            {"position": "relative+sinusoidal"},
            dict.fromkeys(columns, NO_GAIN),
        ),
    ]


def _table2(preset):
    """The clipping distance: newstest2013, en-de, the base model."""
    paper = {0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 16: 25.8, 64: 25.9, 256: 25.8}
    return [
        Row(f"k = {k}", preset, _distance(preset, k), {"newstest2013 en-de": bleu})
        for k, bleu in paper.items()
    ]


def _table3(preset):
    """Which tables are used: newstest2013, en-de, the base model."""
    paper = {
        "a^V and a^K": ({}, 25.8),
        "a^V alone": ({"use_key_table": False}, 25.3),
        "a^K alone": ({"use_value_table": False}, 25.8),
        "neither": ({"position": "none"}, 12.5),
    }
    return [
        Row(label, preset, changes, {"newstest2013 en-de": bleu})
        for label, (changes, bleu) in paper.items()
    ]


def _positions(preset):
    """Every kind of positions."""
    kinds = ("relative", "relative+sinusoidal", "sinusoidal", "learned")
    return [Row(kind, preset, {} if kind == "relative" else {"position": kind}) for kind in kinds]


def _lengths(preset, longest):
    """Relative positions against both absolute ones, trained on short sentences."""
    rows = [row for row in _positions(preset) if row.label != "relative+sinusoidal"]
    return [dataclasses.replace(row, changes=row.changes | {"max_length": longest}) for row in rows]


def _distance(preset, k):
    """The preset's own distance is no change: the row is then that of the other tables."""
    return {} if PRESETS[preset]["max_relative_position"] == k else {"max_relative_position": k}
