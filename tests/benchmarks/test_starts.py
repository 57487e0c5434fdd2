"""Tests that each benchmark starts: its imports, its flags, and errors of their values."""

import pytest
from absl import app, flags
from programs import loaded, start

NO_ARGUMENTS = ["argument"], "Expected flags only. Received: 'argument'."
PARTS = "--parts must be among core, layer, encoder. Received: decoder."
LENGTHS = "--lengths must be positive integers separated by commas. "
EITHER = "Pass either --model_dir or --preset. Received: "
MISSING = ["--train_source=/none/x", "--train_target=/none/x"]


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("attention.__main__", *NO_ARGUMENTS),
        ("attention.__main__", ["--parts=decoder,core"], PARTS),
        ("training.__main__", MISSING, "/none/x"),
        ("language_model", ["--positions=0"], "--positions must be positive integers"),
        *(
            ("attention.__main__", [f"--lengths={text}"], LENGTHS + f"Received: {text!r}.")
            for text in ("", "0", "a", "-1", "1,0.5")
        ),
        ("decoding.__main__", ["--text=x"], EITHER + "neither."),
        ("decoding.__main__", ["--text=x", "--model_dir=x", "--preset=tiny"], EITHER + "both"),
        ("decoding.__main__", ["--text=x", "--preset=tiny"], "--preset requires --vocab_text."),
    ],
)
def test_benchmarks_start_and_check_their_flags(name, arguments, message):
    with pytest.raises(app.UsageError) as error:
        start(f"benchmarks.{name}", *arguments)
    assert message in str(error.value)


def test_training_benchmark_rejects_a_preset_of_no_other_system():
    message = "flag --preset=transformer_base: value should be one of"
    with pytest.raises(flags.IllegalFlagValueError, match=message):
        start("benchmarks.training.__main__", *MISSING, "--preset=transformer_base")


def test_training_benchmark_always_includes_the_trainer():
    with loaded("benchmarks.training.__main__") as program:
        flags.FLAGS(["training", *MISSING, "--systems=trainer bfloat16"])
        assert program.chosen_systems() == ["trainer", "trainer bfloat16"]
