"""Tests that examples start whose runs are slow tests: imports, flags, and an invalid command."""

import pytest
from absl import app, flags
from programs import start


@pytest.mark.parametrize(
    "name, arguments, error, message",
    [
        ("causal_lm", [], SystemExit, "examples.causal_lm: Expected the path of a text file."),
        ("jax_translation", [], SystemExit, "jax_translation: Expected two text files"),
        (
            "music.chorales",
            ["--positions=learned"],
            app.UsageError,
            "--positions must be among sinusoidal,relative,relative_v2, got learned.",
        ),
        (
            "music.sample",
            ["--checkpoint=x", "--output=y.mid", "--primer=/missing/x.mid"],
            SystemExit,
            "music.sample: ",
        ),
        (
            "python_trees.__main__",
            ["--epochs=0"],
            flags.IllegalFlagValueError,
            "flag --epochs=0: 0 is not a positive integer",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_examples_start(name, arguments, error, message):
    with pytest.raises(error, match=message):
        start(f"examples.{name}", *arguments)
