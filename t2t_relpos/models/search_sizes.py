"""Sizes of searches. Few sizes of compiled searches keep the number of compilations small."""

import dataclasses
from typing import Any

import numpy as np
from keras import ops

# Ids that an output may have in addition to its source, if no maximum length is given.
DEFAULT_EXTRA_LENGTH = 50
_LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128)
_LENGTH_STEP = 64
_BATCHES = (1, 2, 4, 8)
_BATCH_STEP = 8


def length_bucket(length):
    """Returns the length to which a source of `length` ids is padded."""
    return _bucket(length, _LENGTHS, _LENGTH_STEP)


def batch_bucket(batch):
    """Returns the size to which a batch of `batch` sentences is padded."""
    return _bucket(batch, _BATCHES, _BATCH_STEP)


def capped(size, largest):
    """Returns a size, but at most `largest`. None means no limit."""
    return size if largest is None else min(size, largest)


def _bucket(size, sizes, step):
    return next((each for each in sizes if each >= size), -(-size // step) * step)


@dataclasses.dataclass(frozen=True)
class SearchInputs:
    """Inputs of a search.

    Args:
        source: int ids `[B, S]`, an array.
        max_length: L, maximum number of ids of an output.
        uniform: random numbers `[B, n, L]`, or None.
    """

    source: np.ndarray
    max_length: int
    uniform: Any = None

    @property
    def sizes(self):
        """B, S, n and L, where n is None without random numbers."""
        num_results = None if self.uniform is None else self.uniform.shape[1]
        return *self.source.shape, num_results, self.max_length

    def padded(self, extra_length=None, largest=None):
        """Returns the inputs, padded to bucket sizes.

        Args:
            extra_length: if given, `max_length` becomes the padded length plus this number.
            largest: limit of both lengths. Default: None, no limit.
        """
        rows = batch_bucket(len(self.source))
        length = capped(length_bucket(self.source.shape[1]), largest)
        max_length = self.max_length
        if extra_length is not None:
            max_length = capped(length + extra_length, largest)
        uniform = self.uniform
        if uniform is not None:
            uniform = np.asarray(ops.convert_to_numpy(uniform))
            uniform = _pad(uniform, (rows, uniform.shape[1], max_length))
        return SearchInputs(_pad(self.source, (rows, length)), max_length, uniform)

    def tensors(self, batch, limit):
        """Returns the arguments of a search function: source, limits `[B]` and random numbers.

        Args:
            batch: number of sentences. The other rows are padding and have the limit 0.
            limit: maximum number of ids of the outputs of these sentences.
        """
        limits = np.where(np.arange(len(self.source)) < batch, limit, 0).astype("int32")
        tensors = ops.cast(self.source, "int32"), ops.convert_to_tensor(limits)
        return tensors if self.uniform is None else (*tensors, self.uniform)


def _pad(array, shape):
    return np.pad(array, [(0, size - old) for size, old in zip(shape, array.shape)])
