"""Tests that each benchmark starts: its imports, its flags, and errors of their values."""

import pytest
from absl import app, flags
from programs import start

TEXTS = ["--train_source=/none/x", "--train_target=/none/x"]


@pytest.mark.parametrize("arguments", [[], ["--model_dir=x", "--preset=tiny"]])
def test_decoding_benchmark_needs_one_model(arguments):
    with pytest.raises(app.UsageError, match="Pass either --model_dir or --preset."):
        start("benchmarks.decoding.__main__", "--text=x", *arguments)


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("attention.__main__", ["--runs=0"], "flag --runs=0: 0 is not a positive integer"),
        ("language_model", ["--runs=0"], "flag --runs=0: 0 is not a positive integer"),
        (
            "training.__main__",
            [*TEXTS, "--preset=transformer_base"],
            "flag --preset=transformer_base: value should be one of",
        ),
    ],
)
def test_benchmarks_start_and_check_their_flags(name, arguments, message):
    with pytest.raises(flags.IllegalFlagValueError, match=message):
        start(f"benchmarks.{name}", *arguments)
