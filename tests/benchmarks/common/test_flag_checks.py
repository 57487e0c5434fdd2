"""Tests of flag checks."""

import pytest
from absl import app, flags

from benchmarks.common import flag_checks


@pytest.fixture
def set_flag(monkeypatch):
    """Returns `set_flag(text)`, which sets the list flag `--sizes`."""

    def set_sizes(text):
        values = flags.FlagValues()
        flags.DEFINE_list("sizes", None, "", flag_values=values)
        values(["program", f"--sizes={text}"])
        monkeypatch.setattr(flags, "FLAGS", values)

    return set_sizes


def test_positive_integers_parses_a_list(set_flag):
    set_flag("1,32")
    assert flag_checks.positive_integers("sizes") == [1, 32]


@pytest.mark.parametrize("text", ["", "0", "a", "-1", "1,0.5"])
def test_positive_integers_rejects_other_values(set_flag, text):
    set_flag(text)
    with pytest.raises(app.UsageError) as error:
        flag_checks.positive_integers("sizes")
    message = f"--sizes must be positive integers separated by commas. Received: {text!r}."
    assert str(error.value) == message


def test_check_values_rejects_values_outside_a_list(set_flag):
    set_flag("a,c,d")
    flag_checks.check_values("sizes", ["a", "c", "d", "e"])
    with pytest.raises(app.UsageError, match="--sizes must be among a, b. Received: c, d."):
        flag_checks.check_values("sizes", ["a", "b"])


def test_check_no_arguments_rejects_arguments():
    flag_checks.check_no_arguments(["program"])
    with pytest.raises(app.UsageError, match="Expected flags only. Received: 'x'."):
        flag_checks.check_no_arguments(["program", "x"])
