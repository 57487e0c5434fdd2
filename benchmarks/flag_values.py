"""Values of absl flags that the benchmarks share."""

from absl import app, flags


def positive_integers(name: str) -> list[int]:
    """Those of a flag that is a list.

    Raises:
        app.UsageError: for anything else, and for none.
    """
    values = flags.FLAGS[name].value
    if not values or not all(value.isdecimal() and int(value) > 0 for value in values):
        raise app.UsageError(
            f"Expected --{name} to be positive integers with commas between them. Received: {','.join(values)}."
        )
    return [int(value) for value in values]


def check_known(name: str, known):
    """Refuses values of a list flag that are not among the known ones."""
    unknown = sorted(set(flags.FLAGS[name].value).difference(known))
    if unknown:
        raise app.UsageError(
            f"Expected --{name} out of {', '.join(known)}. Received: {', '.join(unknown)}."
        )
