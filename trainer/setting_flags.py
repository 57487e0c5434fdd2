"""Settings as fields of dataclasses: their flags, and the checks of their types and ranges."""

import dataclasses
import functools
import operator
import types
import typing

from absl import flags

from .entry_point import define_flag

# The flags belong to the program that defines them, so that its --help lists them.
flags.disclaim_key_flags()
_LIMITS = ("at_least", "above", "below", "choices")
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


def setting(help, default=None, at_least=None, above=None, below=None, choices=None, *, fixed=True):
    """Returns a field of a dataclass of settings.

    Args:
        help: help text of the field's flag.
        default: default value.
        at_least: inclusive lower bound; None for no bound.
        above: exclusive lower bound; None for no bound.
        below: exclusive upper bound; None for no bound.
        choices: the allowed values; None for all.
        fixed: whether the value must not change when a run is resumed.
    """
    limits = dict(zip(_LIMITS, (at_least, above, below, choices), strict=True))
    return dataclasses.field(default=default, metadata={"help": help, "fixed": fixed} | limits)


def define_flags(config: type, values: flags.FlagValues = flags.FLAGS, names=None):
    """Defines a flag for every field of a dataclass of settings, or only for those in `names`."""
    for field in dataclasses.fields(config):
        if names is None or field.name in names:
            help_text, choices = field.metadata["help"], field.metadata["choices"]
            flag_type = _required_type(field)
            define_flag(values, field.name, flag_type, help_text, field.default, choices=choices)


def read_flags(config: type, values: flags.FlagValues = flags.FLAGS) -> dict:
    """Returns the values of the flags of all fields by name."""
    return {field.name: values[field.name].value for field in dataclasses.fields(config)}


def check(settings):
    """Checks the type and the range of every field.

    Raises:
        ValueError: if a value has the wrong type, is out of range, or is infinite or NaN.
    """
    for field in dataclasses.fields(settings):
        _check_type(field, getattr(settings, field.name))
        _check_range(field, getattr(settings, field.name))


def _required_type(field):
    """Returns the type of a field without `| None`."""
    options = [option for option in typing.get_args(field.type) if option is not type(None)]
    return functools.reduce(operator.or_, options) if options else field.type


def _check_type(field, value):
    expected = _required_type(field)
    if value is None and isinstance(field.type, types.UnionType):
        return
    if not _has_type(value, expected):
        name = getattr(expected, "__name__", "int or (int, int)")
        raise ValueError(f"Expected {field.name} to be of type {name}. Received: {value!r}.")


def _has_type(value, expected):
    """Returns whether a value has the type of a setting. A tuple must be a pair of integers."""
    if isinstance(value, tuple):
        return expected == int | tuple and len(value) == 2 and all(_has_type(x, int) for x in value)
    allowed = (int, float) if expected is float else expected
    return isinstance(value, allowed) and (expected is bool or not isinstance(value, bool))


def _check_range(field, value):
    least, above, below, choices = map(field.metadata.get, _LIMITS)
    if value is None:
        return
    if choices and value not in choices:
        raise ValueError(
            f"Expected {field.name} to be one of {', '.join(choices)}. Received: {value!r}."
        )
    if least is not None and not (min(value) if isinstance(value, tuple) else value) >= least:
        raise ValueError(f"Expected {field.name} to be at least {least}. Received: {value}.")
    if above is not None and not value > above:
        raise ValueError(f"Expected {field.name} to be above {above}. Received: {value}.")
    if below is not None and not value < below:
        raise ValueError(f"Expected {field.name} to be below {below}. Received: {value}.")
    if _required_type(field) is float and not abs(value) <= _LARGEST_FLOAT32:
        raise ValueError(
            f"Expected {field.name} to be a number that is finite in float32. Received: {value}."
        )
