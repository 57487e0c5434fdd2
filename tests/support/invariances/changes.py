"""Changes of arguments that must not change results, for `tests/test_invariances.py`.

A new change joins by a line of CHANGES or of MEANINGS.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from invariances.entries import BACKEND
from keras import ops


@dataclasses.dataclass(frozen=True)
class Change:
    """Another form of the values of an argument.

    Args:
        name: id of the change.
        convert: returns the values of an array, or a number, in another form.
        prepare: returns other values, which `convert` then keeps. Default: the same values.
        kinds: kinds of arguments that are changed.
        rank: smallest number of axes of these arguments.
        cotangent: whether only the gradients of outputs are changed.
        keep_first: whether the first argument of these kinds is not changed.
    """

    name: str
    convert: Callable
    prepare: Callable = lambda x: x
    kinds: tuple[str, ...] = ("float", "ids", "mask")
    rank: int = 0
    cotangent: bool = False
    keep_first: bool = False

    def applies(self, entry):
        """Returns whether an entry has such arguments."""
        return bool(self.names(entry))

    def names(self, entry):
        """Returns the names of the arguments of an entry that are changed."""
        names = [x for x in (*entry.inputs, *entry.numbers) if entry.kind(x) in self.kinds]
        if self.cotangent:
            names = ["cotangent"] if entry.differentiable else []
        return [x for x in names[self.keep_first :] if len(entry.axes(x)) >= self.rank]


# Memory. Entries of a buffer that are not part of the values have other values.


def _unused(dtype):
    return {"f": np.nan, "i": -9, "u": 99, "b": True}[np.dtype(dtype).kind]


def _buffer(x, shape, index):
    """Returns a view into a larger array with the values of `x`."""
    buffer = np.full(shape, _unused(x.dtype), x.dtype)
    buffer[index] = x
    return buffer[index]


def _every_second(x):
    return _buffer(x, (*x.shape[:-1], 2 * x.shape[-1]), (..., slice(None, None, 2)))


def _in_buffer(x):
    index = tuple(slice(1, 1 + size) for size in x.shape)
    return _buffer(x, tuple(size + 3 for size in x.shape), index)


def _swapped(first, second):
    """Returns a function that exchanges the order of two axes in memory."""
    return lambda x: np.ascontiguousarray(x.swapaxes(first, second)).swapaxes(first, second)


def _expanded(axis):
    """Returns (a function that returns a view of stride 0; one that makes values equal)."""

    def convert(x):
        strides = list(x.strides)
        strides[axis] = 0
        return np.lib.stride_tricks.as_strided(x, x.shape, strides)

    def prepare(x):
        return np.repeat(x.take([0], axis), x.shape[axis], axis)

    return convert, prepare


def _reversed(x):
    return x[..., ::-1].copy()[..., ::-1]


def _read_only(x):
    x = x.copy()
    x.setflags(write=False)
    return x


_STRIDES = [
    Change("transposed", _swapped(-1, -2), rank=2),
    Change("batch and next axis swapped", _swapped(0, 1), rank=2),
    Change("inner axes swapped", _swapped(1, 2), rank=3),
    Change("every second", _every_second),
    Change("view into NaN", _in_buffer),
    Change("expanded batch", *_expanded(0)),
    Change("expanded last axis", *_expanded(-1)),
]


def _memory_changes():
    for change in (*_STRIDES, Change("reversed", _reversed), Change("read-only", _read_only)):
        yield dataclasses.replace(change, name=f"array, {change.name}")
    if BACKEND == "torch":
        import torch

        for change in _STRIDES:
            convert = lambda x, view=change.convert: torch.from_numpy(view(x))
            tensor = dataclasses.replace(change, name=f"tensor, {change.name}", convert=convert)
            yield tensor
            yield dataclasses.replace(tensor, name=f"gradient, {change.name}", cotangent=True)


# Types


def _tensor(dtype):
    return lambda x: ops.convert_to_tensor(x.astype(dtype))


def _array(dtype):
    return lambda x: x.astype(dtype)


_TYPES = [
    *(
        Change(f"{form}{dtype} {name}", convert(dtype), kinds=(kind,))
        for kind, name, dtypes in (
            ("ids", "ids", ("int64", "uint8", "int16")),
            ("mask", "masks", ("uint8", "int32", "int64")),
        )
        for dtype in dtypes
        for form, convert in (("", _tensor), ("array, ", _array))
    ),
    Change("list of ids", np.ndarray.tolist, kinds=("ids",)),
    Change("list of masks", np.ndarray.tolist, kinds=("mask",)),
    Change("list of floats", np.ndarray.tolist, kinds=("float",)),
    Change("NumPy numbers", lambda x: np.asarray(x)[()], kinds=("number",)),
    Change(
        "int32 numbers",
        lambda x: np.bool_(x) if isinstance(x, bool) else np.int32(x),
        kinds=("number",),
    ),
    Change("float64 inputs", _tensor("float64"), kinds=("float",)),
    Change("float64 beside float32", _tensor("float64"), kinds=("float",), keep_first=True),
]
CHANGES = {each.name: each for each in (*_memory_changes(), *_TYPES)}


# Meaning


@dataclasses.dataclass(frozen=True)
class Meaning:
    """Other arguments with a known relation between the results.

    Args:
        name: id of the change.
        split: `split(entry, arguments)` returns a list of arguments.
        merge: `merge(entry, results)` returns the results of the plain call from those of the
            other arguments.
        applies: `applies(entry)` returns whether an entry has what is changed. Default: True.
        flip_heads: whether the heads of the weights are in reversed order.
    """

    name: str
    split: Callable
    merge: Callable
    applies: Callable = lambda entry: True
    flip_heads: bool = False


def _axes(entry, key):
    """Returns the axes of an array of results."""
    return [] if key.startswith("d weight ") else entry.axes(key.removeprefix("d "))


def split_batch(entry, arguments, count):
    """Returns the arguments of `count` parts of a batch."""
    parts = np.array_split(np.arange(entry.shape("outputs")[0]), count)
    return [
        {name: x[part] if "B" in entry.axes(name) else x for name, x in arguments.items()}
        for part in parts
    ]


def joined(entry, results):
    """Returns the results of a batch from those of its parts. Gradients of weights are added."""
    return {
        key: (np.concatenate if "B" in _axes(entry, key) else sum)([each[key] for each in results])
        for key in results[0]
    }


_PADDED, _PADDING = {"T", "S", "L", "W"}, 3


def _padding(before):
    """Returns the functions of a `Meaning` that adds masked positions on one side.

    They have large values, and the gradients of their outputs are 0.
    """
    widths = (_PADDING, 0) if before else (0, _PADDING)

    def split(entry, arguments):
        def pad(name, value):
            widths_of_axes = [widths if x in _PADDED else (0, 0) for x in entry.axes(name)]
            fill = 30.0 if entry.kind(name) == "float" and name != "cotangent" else 0
            return np.pad(value, widths_of_axes, constant_values=fill)

        return [{k: x if entry.kind(k) == "number" else pad(k, x) for k, x in arguments.items()}]

    def merge(entry, results):
        real = slice(widths[0], -widths[1] or None)

        def crop(key, value):
            axes = _axes(entry, key) or [""] * value.ndim
            return value[tuple(real if x in _PADDED else slice(None) for x in axes)]

        return {key: crop(key, value) for key, value in results[0].items()}

    return split, merge


def _permuted(axis, entry, arrays):
    """Returns arrays by name with an axis in reversed order, wherever they have it."""

    def flip(key, value):
        if axis == "N" and key.startswith("d weight "):
            return entry.flip_heads(key.removeprefix("d weight "), value)
        axes = _axes(entry, key)
        return np.flip(value, axes.index(axis)) if axis in axes else value

    return {k: flip(k, x) if isinstance(x, np.ndarray) else x for k, x in arrays.items()}


def _permutation(axis):
    """Returns the functions of a `Meaning` that reverses the order of an axis."""
    return (
        lambda entry, arguments: [_permuted(axis, entry, arguments)],
        lambda entry, results: _permuted(axis, entry, results[0]),
    )


def _has_positions(axis):
    """Returns a function of an entry: whether the order of an axis is one of its arguments."""
    return lambda entry: (
        entry.has_positions and any(axis in entry.axes(name) for name in entry.inputs)
    )


_MEANINGS = [
    Meaning(
        "single batch entries",
        lambda entry, arguments: split_batch(entry, arguments, entry.shape("outputs")[0]),
        joined,
    ),
    Meaning("padding", *_padding(before=False)),
    Meaning("padding on the left", *_padding(before=True)),
    *(
        Meaning(f"permuted {name}", *_permutation(axis), _has_positions(axis))
        for name, axis in (("queries", "T"), ("keys", "S"))
    ),
    Meaning("permuted heads", *_permutation("N"), flip_heads=True),
]
MEANINGS = {each.name: each for each in _MEANINGS}
