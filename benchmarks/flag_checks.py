"""Checks of absl flags."""

from absl import app, flags


def check_no_arguments(argv: list[str]):
    """Raises `app.UsageError` for arguments that are not flags."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")


def positive_integers(name: str) -> list[int]:
    """Returns the values of a list flag as integers.

    Raises:
        app.UsageError: if the list is empty, or a value is not a positive integer.
    """
    values = flags.FLAGS[name].value
    if not values or not all(value.isdecimal() and int(value) > 0 for value in values):
        raise app.UsageError(
            f"--{name} must be positive integers separated by commas. "
            f"Received: {','.join(values)!r}."
        )
    return [int(value) for value in values]


def check_values(name: str, allowed):
    """Raises `app.UsageError` unless all values of a list flag are allowed."""
    unknown = sorted(set(flags.FLAGS[name].value).difference(allowed))
    if unknown:
        raise app.UsageError(
            f"--{name} must be among {', '.join(allowed)}. Received: {', '.join(unknown)}."
        )
