"""Tests of the checks of flags."""

import pytest
from absl import app, flags

from benchmarks.common import flag_checks


@pytest.fixture
def set_flag(monkeypatch):
    """`set_flag(text)` parses a list flag `--sizes`."""

    def set_sizes(text):
        values = flags.FlagValues()
        flags.DEFINE_list("sizes", None, "", flag_values=values)
        values(["program", f"--sizes={text}"])
        monkeypatch.setattr(flags, "FLAGS", values)

    return set_sizes


def test_positive_integers(set_flag):
    set_flag("1,32")
    assert flag_checks.positive_integers("sizes") == [1, 32]


@pytest.mark.parametrize("text", ["", "0", "a", "-1", "1,0.5"])
def test_other_values_are_rejected(set_flag, text):
    set_flag(text)
    with pytest.raises(app.UsageError) as error:
        flag_checks.positive_integers("sizes")
    message = f"--sizes must be positive integers separated by commas. Received: {text!r}."
    assert str(error.value) == message


def test_values_outside_a_list_are_rejected(set_flag):
    set_flag("a,c,d")
    flag_checks.check_values("sizes", ["a", "c", "d", "e"])
    with pytest.raises(app.UsageError, match="--sizes must be out of a, b. Received: c, d."):
        flag_checks.check_values("sizes", ["a", "b"])


def test_arguments_are_rejected():
    flag_checks.check_no_arguments(["program"])
    with pytest.raises(app.UsageError, match="Expected flags only. Received: 'x'."):
        flag_checks.check_no_arguments(["program", "x"])
