"""Checks arguments of layers, models and samplers."""

import numbers

import keras
import numpy as np

LARGEST_POSITION = 2**31 - 1


def positive_int(name, value):
    """Returns `value` as an int. Raises ValueError if it is not an integer above 0."""
    if not is_integer(value) or value <= 0:
        raise ValueError(
            f"Expected `{name}` to be a positive integer. Received: {name}={value!r}. Pass an int "
            f"of 1 or more as argument `{name}`."
        )
    return int(value)


def max_relative_position(value):
    """Returns K as an int. Raises ValueError if it is not an integer from 0 to 1,000,000."""
    if not is_integer(value) or not 0 <= value <= 1_000_000:
        raise ValueError(
            "Expected `max_relative_position` (K, the clipping distance) "
            "to be an integer from 0 to 1,000,000. "
            f"Received: max_relative_position={value!r}. Pass it by keyword. Values from 8 to 32 "
            "suit translation; 0 gives all positions the same embedding."
        )
    return int(value)


def rate(name, value):
    """Returns `value`. Raises ValueError if it is not a probability below 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(
            f"Expected `{name}` to be at least 0 and below 1. Received: {name}={value!r}"
        )
    return value


def id_sequences(name, ids, letters="[B, T]"):
    """Raises ValueError if ids are not one tensor of rank 2.

    Args:
        name: name of the argument.
        ids: the ids.
        letters: the expected shape, for the message.
    """
    if not hasattr(ids, "shape"):
        raise ValueError(
            f"Expected `{name}` to be a tensor of int ids {letters}. Received: "
            f"{type(ids).__name__}. Pass the tensor itself."
        )
    if len(ids.shape) != 2:
        raise ValueError(
            f"Expected `{name}` to be a tensor of int ids {letters}. Received: shape "
            f"{tuple(ids.shape)}. For a single sequence, pass a batch of one."
        )


def token_ids(ids, vocab_size):
    """Raises ValueError if ids are not integers, or are known and outside `[0, vocab_size)`.

    Values in a compiled graph are unknown. There, TensorFlow on CPUs raises an error for an id
    outside the range. On other backends, its embedding is zero or that of the nearest id.
    """
    integers("token ids", ids)
    low, high = known_range(ids)
    if low is not None and not 0 <= low <= high < vocab_size:
        raise ValueError(
            f"Expected token ids in [0, {vocab_size}), the vocabulary of the model. Received: "
            f"ids from {low} to {high}. Use the tokenizer of the model, or a larger vocab_size."
        )


def relation_labels(labels, num_labels, query_shape, key_shape):
    """Raises ValueError if labels have the wrong dtype or shape, or are known and out of range."""
    integers("relations", labels)
    expected = (query_shape[0], query_shape[1], key_shape[1])
    shape = tuple(labels.shape)
    if (
        len(shape) not in (2, 3)
        or not _fits(shape[-2:], expected[1:])
        or not _fits_batch(shape, expected)
    ):
        raise ValueError(
            "Expected `relations` of shape [B, T, S] or [T, S], a label for every pair of a query "
            f"and a key: {expected} or {expected[1:]}. Received: shape {shape}."
        )
    low, high = known_range(labels)
    if low is not None and not -1 <= low <= high < num_labels:
        raise ValueError(
            f"Expected labels in [0, {num_labels}), or -1 for no edge. "
            f"Received: labels from {low} to {high}."
        )


def edge_vectors(name, edges, depth, query_shape, key_shape):
    """Raises ValueError if vectors of edges are not `[B, T, S, depth]`."""
    expected = (query_shape[0], query_shape[1], key_shape[1], depth)
    shape = tuple(edges.shape)
    if len(shape) != 4 or not _fits(shape[1:], expected[1:]) or not _fits_batch(shape, expected):
        raise ValueError(
            f"Expected `{name}` of shape [B, T, S, {depth}], a vector for every pair of a query "
            f"and a key: {expected}. Received: shape {shape}."
        )


def _fits(shape, expected):
    """Returns whether all known lengths are equal."""
    return all(
        got == want or None in (got, want) for got, want in zip(shape, expected, strict=True)
    )


def _fits_batch(shape, expected):
    """Returns whether the batch axis is absent, has size 1 or has the expected size."""
    return len(shape) < len(expected) or shape[0] == 1 or _fits(shape[:1], expected[:1])


def as_array(values):
    """Returns an array of Python values. Tensors, arrays and variables are returned unchanged."""
    return values if hasattr(values, "dtype") else np.asarray(values)


def integers(name, values):
    """Raises ValueError if `values` are not of an integer dtype."""
    dtype = keras.backend.standardize_dtype(values.dtype)
    if "int" not in dtype:
        raise ValueError(
            f"Expected {name} of an integer dtype. Received: dtype {dtype}. "
            "Cast them with keras.ops.cast(..., 'int32')."
        )


def boolean(name, mask):
    """Raises ValueError if a mask is not None, and neither boolean nor an integer mask.

    Known negative values are those of an additive bias, which a cast to bool would invert.
    """
    if mask is None:
        return
    mask = as_array(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    received = f"dtype {dtype}"
    if dtype == "bool" or dtype.startswith("uint"):
        return
    if dtype.startswith("int"):
        low, high = known_range(mask)
        if low is None or low >= 0:
            return
        received += f" with values from {low} to {high}"
    raise ValueError(
        f"Expected `{name}` to be boolean, True = attend. Received: {received}. Convert an "
        "additive bias (0 and -1e9) with `bias == 0`, and a mask of 1.0 and 0.0 with "
        "`mask > 0`."
    )


def query_offset(value):
    """Raises ValueError if an offset is not an integer or an integer tensor of rank 0 or 1."""
    if isinstance(value, (bool, str, list, tuple)):
        raise ValueError(
            "Expected `query_offset` to be an int, a scalar tensor, or an int tensor [B]. "
            f"Received: {value!r}."
        )
    if isinstance(value, (numbers.Real, np.ndarray, np.generic)):
        value = np.asarray(value)
        integers("query_offset", value)
        fits_int32("query_offset", value)
    elif hasattr(value, "dtype"):
        integers("query_offset", value)
    if hasattr(value, "shape") and len(value.shape) > 1:
        raise ValueError(
            "Expected `query_offset` to be a scalar, or a tensor [B] with a position for each "
            f"batch entry. Received: shape {tuple(value.shape)}."
        )


def fits_int32(name, values):
    """Raises ValueError if positions are known and do not fit into int32."""
    low, high = known_range(values)
    if low is not None and not -LARGEST_POSITION <= low <= high <= LARGEST_POSITION:
        raise ValueError(
            f"Expected `{name}` between -{LARGEST_POSITION} and {LARGEST_POSITION}. Received: "
            f"values from {low} to {high}."
        )


def differ(size, other):
    """Returns whether two sizes are known and different."""
    return is_integer(size) and is_integer(other) and size != other


def is_integer(value):
    """Returns whether a value is an integer of Python or NumPy, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def known_range(values):
    """Returns (smallest, largest value), or (None, None) for unknown values or an empty tensor."""
    try:
        values = keras.ops.convert_to_numpy(values)
    except (TypeError, ValueError, NotImplementedError):  # a traced value
        return None, None
    # As Python numbers, whose sums do not overflow.
    return (values.min().item(), values.max().item()) if values.size else (None, None)
