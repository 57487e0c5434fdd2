"""Fields of a frozen dataclass of settings: help, range, and the absl flag of each."""

import dataclasses
import os
import types
import typing
from collections.abc import Collection, Sequence

from absl import flags

from trainer.entry_point import define_flag

# The flags belong to the program that defines them, so that its --help lists them.
flags.disclaim_key_flags()


def setting(help, default=None, at_least=None, below=None, choices=None, fixed=True):
    """Returns a field of a dataclass of settings.

    Args:
        help: help text of its flag.
        default: value if none is given.
        at_least: smallest value.
        below: upper bound, excluded.
        choices: all values that it may have.
        fixed: whether it must not change when a run is resumed.
    """
    limits = {"at_least": at_least, "below": below, "choices": choices}
    return dataclasses.field(default=default, metadata={"help": help, "fixed": fixed} | limits)


def define_flags(
    config: type, values: flags.FlagValues = flags.FLAGS, names: Collection[str] | None = None
):
    """Defines a flag for every field of a dataclass of settings, or for those of `names`."""
    for field in dataclasses.fields(config):
        if names is None or field.name in names:
            help_text, choices = field.metadata["help"], field.metadata["choices"]
            define_flag(values, field.name, _kind(field), help_text, field.default, choices=choices)


def absolute_paths(settings, names: Sequence[str]) -> dict:
    """Returns the settings of `names` that are given, comma-separated paths, as absolute paths."""
    given = {name: getattr(settings, name) for name in names if getattr(settings, name)}
    return {
        name: ",".join(os.path.abspath(path.strip()) for path in paths.split(","))
        for name, paths in given.items()
    }


def check(settings):
    """Checks the type and the range of every field.

    Raises:
        ValueError: for a value of another type, or out of range.
    """
    for field in dataclasses.fields(settings):
        _check_type(field, getattr(settings, field.name))
        _check_range(field, getattr(settings, field.name))


def _kind(field):
    """Returns the type of a field without `| None`."""
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
