"""Checks of arguments: numbers, shapes as specifications such as "B T D", dtypes, known values."""

import numbers

import keras
import numpy as np

from t2t_relpos import backend

LARGEST_POSITION = 2**31 - 1
EMBED_IDS = "Embed token ids first, for example with `TokenEmbedding`."


def positive_int(value, name):
    """Returns `value` as an int. Raises ValueError if it is not an integer above 0."""
    if not is_integer(value) or value <= 0:
        raise ValueError(
            f"Expected `{name}` to be a positive integer. Received: {name}={value!r}. Pass an int "
            f"of 1 or more as argument `{name}`."
        )
    return int(value)


def max_relative_position(value):
    """Returns the clipping distances: an int for both sides, or a tuple (left, right).

    Raises:
        ValueError: if the value is neither an integer from 0 to 1,000,000 nor a pair of them.
    """
    distances = _left_and_right(value)
    if distances is None:
        raise ValueError(
            "Expected `max_relative_position`, the clipping distance, to be an integer from 0 to "
            "1,000,000, or a pair of them, (left, right). "
            f"Received: max_relative_position={value!r}. Pass it by keyword. Values from 8 to 32 "
            "suit translation; 0 gives all positions the same embedding."
        )
    left, right = distances
    return left if left == right else distances


def one_distance(value, owner):
    """Returns K, the clipping distance of a part of tensor2tensor, which has no pairs.

    Args:
        value: an int from 1 to 1,000,000, or a pair (K, K).
        owner: what has the distance, for the error.

    Raises:
        ValueError: if the value is another one.
    """
    left, right = _left_and_right(value) or (0, 0)
    if left != right or left < 1:
        raise ValueError(
            f"Expected `max_relative_position` of {owner} to be an integer from 1 to 1,000,000, "
            f"the distance on both sides. Received: max_relative_position={value!r}."
        )
    return left


def _left_and_right(value):
    """Returns the distances (left, right) of an int or a pair, or None for any other value."""
    distances = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(distances) == 2 and all(is_integer(x) and 0 <= x <= 1_000_000 for x in distances):
        return tuple(map(int, distances))
    return None


def rate(value, name):
    """Returns `value` as a Python number. Raises ValueError if it is not a probability below 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(
            f"Expected `{name}` to be at least 0 and below 1. Received: {name}={value!r}"
        )
    return plain(value)


def is_integer(value):
    """Returns whether a value is an integer of Python or NumPy, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_count(value):
    """Returns whether a value is an integer of at least 0."""
    return is_integer(value) and value >= 0


def layer_index(value, name, count):
    """Returns an index of one of `count` layers as an int from 0.

    Raises:
        ValueError: if the value is not an integer from -count to count - 1.
    """
    if not is_integer(value) or not -count <= value < count:
        raise ValueError(
            f"Expected `{name}` to be an int from {-count} to {count - 1}, the index of one of "
            f"{count} layers. Received: {name}={value!r}."
        )
    return int(value) % count


def plain(value):
    """Returns a NumPy scalar as a Python number, a JSON type, and other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def differ(size, other):
    """Returns whether two sizes are known and different."""
    return is_integer(size) and is_integer(other) and size != other


def check(values, name, spec, dtype=None, sizes=None, *, broadcast="", advice="", required=False):
    """Raises ValueError unless a tensor has an allowed shape and dtype.

    Args:
        values: a tensor or an array, or None.
        name: name of the argument, for the error.
        spec: the allowed shapes, as in `check_shape`.
        dtype: "mask" for `boolean`, "int", "float", or None for any dtype. Default: None.
        sizes: as in `check_shape`.
        broadcast: as in `check_shape`.
        advice: a sentence that says what to do. Default: "".
        required: whether None is an error. Default: False.

    Returns:
        As `check_shape`; `sizes` for None.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos._checks import check
    >>> mask = np.ones((3, 7), bool)
    >>> check(mask, "query_mask", "B T", "mask", {"B": 3, "T": 9})
    Traceback (most recent call last):
        ...
    ValueError: Expected `query_mask` of shape [B, T] = [3, 9]. Received: shape (3, 7).
    """
    if values is None and not required:
        return dict(sizes or {})
    if not hasattr(values, "shape"):
        raise ValueError(
            f"Expected `{name}` to be a tensor or an array of shape {_text(spec, sizes)}. "
            f"Received: {type(values).__name__}. {advice or 'Convert it with numpy.asarray.'}"
        )
    backend.check_dense(values, f"`{name}`")
    sizes = check_shape(values.shape, name, spec, sizes, broadcast=broadcast, advice=advice)
    if dtype == "mask":
        boolean(values, name)
    elif dtype == "int":
        integers(values, f"`{name}`")
    elif dtype == "float":
        floats(values, name)
    return sizes


def check_shape(shape, name, spec, sizes=None, *, broadcast="", advice=""):
    """Raises ValueError unless a shape is one of those that a specification allows.

    Args:
        shape: a shape. Sizes that are not ints are unknown.
        name: name of the argument, for the error.
        spec: the axes of a shape, separated by spaces, each a name or a number; several allowed
            shapes are separated by "|". "B T S | T S" allows `[B, T, S]` and `[T, S]`.
        sizes: dict of known sizes by the name of an axis. Default: None.
        broadcast: names of the axes that may have size 1 instead, separated by spaces. Default: "".
        advice: a sentence that says what to do. Default: "".

    Returns:
        `sizes` with the sizes of `shape` that were unknown.

    Example:
    >>> from t2t_relpos._checks import check_shape
    >>> sizes = check_shape((3, 7, 6), "query", "B T D")
    >>> check_shape((2, 11, 6), "value", "B S D", sizes)
    Traceback (most recent call last):
        ...
    ValueError: Expected `value` of shape [B, S, D] = [3, *, 6]. Received: shape (2, 11, 6).
    """
    sizes, shape = sizes or {}, tuple(shape)
    for axes in _alternatives(spec):
        if len(axes) == len(shape) and all(
            _fits(size, axis, sizes, broadcast) for size, axis in zip(shape, axes)
        ):
            new = {axis: size for axis, size in zip(axes, shape) if isinstance(size, int)}
            return new | {axis: size for axis, size in sizes.items() if isinstance(size, int)}
    received = f"Received: shape {shape}. {advice}".rstrip()
    raise ValueError(f"Expected `{name}` of shape {_text(spec, sizes)}. {received}")


def _alternatives(spec):
    """Returns the axes of every allowed shape."""
    return [axes.split() for axes in spec.split("|")]


def _size(axis, sizes):
    """Returns the size of an axis, None if it is unknown."""
    return int(axis) if axis.isdigit() else sizes.get(axis)


def _fits(size, axis, sizes, broadcast):
    wanted = _size(axis, sizes)
    is_known = isinstance(size, int) and isinstance(wanted, int)
    return not is_known or size == wanted or (size == 1 and axis in broadcast.split())


def _text(spec, sizes):
    """Returns the allowed shapes as text, such as "[B, T] = [3, *]"."""
    texts, sizes = [], sizes or {}
    for axes in _alternatives(spec):
        wanted = [_size(axis, sizes) for axis in axes]
        values = ", ".join(str(size) if isinstance(size, int) else "*" for size in wanted)
        has_values = any(isinstance(sizes.get(axis), int) for axis in axes)
        names = f"[{', '.join(axes)}]" if axes else "[] (a scalar)"
        texts.append(names + (f" = [{values}]" if has_values else ""))
    return " or ".join(texts)


def as_array(values):
    """Returns an array of Python values. Tensors, arrays and variables are returned unchanged."""
    return values if hasattr(values, "dtype") else np.asarray(values)


def floats(values, name, advice=""):
    """Raises ValueError if `values` are not of a floating-point dtype."""
    dtype = keras.backend.standardize_dtype(values.dtype)
    if "float" not in dtype:
        received = f"dtype {dtype}. {advice}".rstrip()
        raise ValueError(f"Expected `{name}` of a floating-point dtype. Received: {received}")


def integers(values, name):
    """Raises ValueError if `values` are not of an integer dtype.

    Floats are accepted while Keras builds a model with averaged batches. Cast them afterwards.
    """
    dtype = keras.backend.standardize_dtype(values.dtype)
    if "int" not in dtype and not backend.is_building_from_averages():
        raise ValueError(
            f"Expected {name} of an integer dtype. Received: dtype {dtype}. "
            "Cast them with keras.ops.cast(..., 'int32')."
        )


def boolean(mask, name):
    """Raises ValueError if a mask is not None, and neither boolean nor integers of 0 and 1.

    A cast to bool would invert an additive bias, of 0 and a large negative number. Integers in a
    graph are unknown. Floats are accepted while Keras builds a model with averaged batches. Cast
    masks afterwards.
    """
    if mask is None:
        return
    backend.check_dense(mask, f"`{name}`")
    mask = as_array(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    received = f"dtype {dtype}"
    if dtype == "bool":
        return
    if "int" in dtype:
        low, high = known_range(mask)
        if low is None or 0 <= low <= high <= 1:
            return
        received += f" with values from {low} to {high}"
    elif backend.is_building_from_averages():
        return
    raise ValueError(
        f"Expected `{name}` to be boolean, True = attend. Received: {received}. Convert an "
        "additive bias (0 and -1e9) with `bias == 0`, and a mask of 1.0 and 0.0 with "
        "`mask > 0`."
    )


def known_range(values):
    """Returns (smallest, largest value), or (None, None) for unknown values or an empty tensor.

    All checks of values use this function.
    """
    if type(values) is int:
        return values, values
    if not backend.can_be_read(getattr(values, "value", values)):
        return None, None
    try:
        values = keras.ops.convert_to_numpy(values)
    except (TypeError, ValueError, NotImplementedError):  # a traced value
        return None, None
    # As Python numbers, whose sums do not overflow.
    return (values.min().item(), values.max().item()) if values.size else (None, None)


def in_range(values, name, low, high, advice=""):
    """Raises ValueError if values are known and outside of `[low, high)`.

    Args:
        values: integers.
        name: name of the values, for the error.
        low: smallest allowed value.
        high: smallest value that is too large.
        advice: a sentence that says what to do. Default: "".
    """
    smallest, largest = known_range(values)
    if smallest is not None and not low <= smallest <= largest < high:
        received = f"values from {smallest} to {largest}. {advice}".rstrip()
        raise ValueError(f"Expected {name} in [{low}, {high}). Received: {received}")


def fits_int32(values, name):
    """Raises ValueError if positions are known and do not fit into int32."""
    in_range(values, f"`{name}`", -LARGEST_POSITION, LARGEST_POSITION + 1)


def positions(values, name, spec, sizes=None, advice=""):
    """Raises ValueError unless positions are None, or integers of int32 and of an allowed shape.

    Args:
        values: the positions: a tensor, an array, an int or None.
        name: name of the argument.
        spec: the allowed shapes, as in `check_shape`.
        sizes: as in `check_shape`.
        advice: as in `check_shape`.
    """
    if values is None:
        return
    # torch.compile can't trace an array that is made of an int.
    if type(values) is not int or [] not in _alternatives(spec):
        check(as_array(values), name, spec, "int", sizes, advice=advice)
    fits_int32(values, name)


def query_offset(value):
    """Raises ValueError if an offset is not an integer or an integer tensor of rank 0 or 1."""
    if type(value) is int:
        fits_int32(value, "query_offset")
        return
    if isinstance(value, (bool, str, list, tuple)):
        raise ValueError(
            "Expected `query_offset` to be an int, a scalar tensor, or an int tensor [B]. "
            f"Received: {value!r}."
        )
    is_known = isinstance(value, (numbers.Real, np.ndarray, np.generic))
    value = np.asarray(value) if is_known else value
    if hasattr(value, "dtype"):  # neither None nor a symbolic length
        check(value, "query_offset", " | B", "int")
    if is_known:
        fits_int32(value, "query_offset")


def token_ids(ids, vocab_size):
    """Raises ValueError if ids are not integers, or are known and outside `[0, vocab_size)`.

    Values in a compiled graph, and on a GPU of PyTorch, are unknown. In a graph, TensorFlow on CPUs
    raises an error for an id outside the range. On other backends, its embedding is zero or that of
    the nearest id.
    """
    integers(ids, "token ids")
    advice = "Use the tokenizer of the model, or a larger vocab_size."
    in_range(ids, "token ids", 0, vocab_size, advice)


def built(layer):
    """Raises ValueError if a layer has no weights yet."""
    if not layer.built:
        raise ValueError(
            f"Expected a built layer. Received: {layer.name}, which has no weights yet. Call "
            "the layer or its `build` first."
        )
