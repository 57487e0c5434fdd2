"""Tests that each example starts: its imports, its flags, and the error of an invalid command."""

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
            "paper_tables.__main__",
            [],
            SystemExit,
            "paper_tables: Expected one of table1, table2, table3, lengths. Received: none.",
        ),
        (
            "python_trees.__main__",
            ["--epochs=0"],
            flags.IllegalFlagValueError,
            "flag --epochs=0: 0 is not a positive integer",
        ),
        (
            "synthetic_corpus.__main__",
            [],
            SystemExit,
            "Expected one argument, a folder for the files. Received: 0.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_examples_start(name, arguments, error, message):
    with pytest.raises(error, match=message):
        start(f"examples.{name}", *arguments)
