"""Checks of arguments that several layers share; each says what was expected and what came."""

import keras


def positive_int(name, value):
    """Returns `value`, or raises if it is not an int above 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"Expected `{name}` to be a positive integer. Received: {name}={value!r}")
    return value


def max_relative_position(value):
    """Returns K, or raises if it is not an int of at least 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(
            "Expected `max_relative_position` (K, the distance from which on all positions "
            "are alike) to be an integer of at least 0. "
            f"Received: max_relative_position={value!r}. Values from 8 to 32 suit translation; "
            "0 makes all positions alike."
        )
    return value


def rate(name, value):
    """Returns `value`, or raises if it is not a probability below 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"Expected `{name}` to be at least 0 and below 1. Received: {name}={value!r}")
    return value


def token_ids(ids, vocab_size):
    """Raises if ids are not integers, or, where values are at hand, out of `[0, vocab_size)`.

    Inside a compiled graph values can't be looked at; there the lookup's own
    rule holds (TensorFlow on CPU raises, elsewhere such ids read as zeros or
    as the nearest row).
    """
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "int" not in dtype:
        raise ValueError(
            f"Expected token ids of an integer dtype. Received: dtype {dtype}. "
            "Cast them with keras.ops.cast(ids, 'int32')."
        )
    try:
        values = keras.ops.convert_to_numpy(ids)
    except (TypeError, ValueError, NotImplementedError):  # a symbol in a trace
        return
    if values.size and not 0 <= values.min() <= values.max() < vocab_size:
        raise ValueError(
            f"Expected token ids in [0, {vocab_size}), the vocabulary of the model. Received: "
            f"ids from {values.min()} to {values.max()}. Was another tokenizer used than the "
            "one that the model was built for?"
        )
