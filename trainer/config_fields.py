"""Fields of a frozen dataclass of settings: each with its help, its range and the absl flag that
is made from it.
"""

import dataclasses
import types
import typing
from collections.abc import Collection

from absl import flags

# The flags belong to the program that defines them, so that its --help lists them.
flags.disclaim_key_flags()


def setting(default, help, at_least=None, below=None, choices=None, fixed=True):
    """A field of a dataclass of settings.

    Args:
        default: its value if none is given.
        help: of its flag.
        at_least: smallest value.
        below: what the value must be below.
        choices: all values that it may have.
        fixed: whether a run that continues must not change it.
    """
    metadata = {
        "help": help,
        "at_least": at_least,
        "below": below,
        "choices": choices,
        "fixed": fixed,
    }
    return dataclasses.field(default=default, metadata=metadata)


def define_flags(
    config: type, values: flags.FlagValues = flags.FLAGS, names: Collection[str] | None = None
):
    """Defines an absl flag for every field of a dataclass of settings, or for those of `names`,
    with its type, default and help.
    """
    definitions = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
        bool: flags.DEFINE_bool,
    }
    for field in dataclasses.fields(config):
        if names is not None and field.name not in names:
            continue
        help_text, choices = field.metadata["help"], field.metadata["choices"]
        if choices:
            flags.DEFINE_enum(field.name, field.default, choices, help_text, flag_values=values)
        else:
            definitions[_kind(field)](field.name, field.default, help_text, flag_values=values)


def check(settings):
    """Checks the type and the range of every field.

    Raises:
        ValueError: for a value of another type, or out of range.
    """
    for field in dataclasses.fields(settings):
        _check_type(field, getattr(settings, field.name))
        _check_range(field, getattr(settings, field.name))


def _kind(field):
    """The type of a field without `| None`."""
    if isinstance(field.type, types.UnionType):
        return next(kind for kind in typing.get_args(field.type) if kind is not type(None))
    return field.type


def _check_type(field, value):
    kind = _kind(field)
    allowed = (int, float) if kind is float else kind
    if value is None and isinstance(field.type, types.UnionType):
        return
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(
            f"Expected {field.name} to be of type {kind.__name__}. Received: {value!r}."
        )


def _check_range(field, value):
    least, below, choices = (field.metadata[name] for name in ("at_least", "below", "choices"))
    if value is None:
        return
    if choices and value not in choices:
        raise ValueError(
            f"Expected {field.name} to be one of {', '.join(choices)}. Received: {value!r}."
        )
    if least is not None and not value >= least:
        raise ValueError(f"Expected {field.name} to be at least {least}. Received: {value}.")
    if below is not None and not value < below:
        raise ValueError(f"Expected {field.name} to be below {below}. Received: {value}.")
