"""Compares this project's attention with recordings of tensor2tensor's functions.

The recordings are in attention/ and variants/.
"""

import dataclasses
import pathlib
from collections.abc import Callable

import keras
import numpy as np
from gradients import output_and_gradients
from measurement import Measurement, relative_error

from t2t_relpos.attention import reference
from t2t_relpos.attention.attend import attend
from t2t_relpos.attention.t2t_variants import (
    attend_2d,
    attend_two_blocks,
    left_sided_table,
    two_sided_table,
)

FOLDER = pathlib.Path(__file__).parent
LIMITS = {"float32": 1e-6, "float64": 1e-12}
# Gradients through a nearly saturated softmax are differences of larger numbers.
GRADIENT_LIMITS = {"float32": 1e-5, "float64": 1e-12}
# On other backends Keras multiplies float64 matrices in float32.
DTYPES = tuple(LIMITS) if keras.backend.backend() == "tensorflow" else ("float32",)


@dataclasses.dataclass(frozen=True)
class Family:
    """Recordings of one function of tensor2tensor, and this project's equivalent.

    Attributes:
        theirs: name of tensor2tensor's function.
        ours: name of this project's function or layer.
        prefix: folder and file name prefix of the recordings.
        compute: `compute(record, tensors)` returns this project's output.
        leaves_out: part of the file names of cases in which this project deliberately differs.
    """

    theirs: str
    ours: str
    prefix: str
    compute: Callable
    leaves_out: str | None = None

    def paths(self, *dtypes):
        """Returns the recordings of the given dtypes. Default: all dtypes in DTYPES."""
        dtypes = dtypes or DTYPES
        paths = sorted(path for d in dtypes for path in FOLDER.glob(f"{self.prefix}_*_{d}.npz"))
        return [p for p in paths if not self.leaves_out or self.leaves_out not in p.stem]


def load(path):
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def compare(family, path):
    """Yields measurements of the output and of the gradient with respect to every input.

    Raises:
        ValueError: a result does not have the dtype of the recorded one.
    """
    record = load(path)
    dtype = str(record["output"].dtype)
    prefix = "gradient_"
    names = [name.removeprefix(prefix) for name in record if name.startswith(prefix)]
    output, gradients = output_and_gradients(
        lambda tensors: family.compute(record, tensors),
        {name: record[name] for name in names},
        record["cotangent"],
    )
    for found in (output, *gradients.values()):
        if found.dtype != dtype:
            raise ValueError(f"Expected dtype {dtype}. Received: {found.dtype}.")
    error = relative_error(output, record["output"])
    yield Measurement(path.stem, "output", error, LIMITS[dtype], record["output"].size)
    for name, gradient in gradients.items():
        expected = record[prefix + name]
        limit = GRADIENT_LIMITS[dtype]
        # A term that is equal for all keys has gradient zero except for rounding errors.
        error = relative_error(gradient, expected, rounding=limit)
        yield Measurement(path.stem, f"gradient of {name}", error, limit, expected.size)


def _port(record, tensors):
    return reference.dot_product_attention_relative(
        **tensors,
        bias=record.get("bias"),
        max_relative_position=int(record["max_relative_position"]),
        cache=bool(record["cache"]),
        allow_memory=bool(record["allow_memory"]),
    )


def _attend(record, tensors):
    return attend(*(tensors[n] for n in ATTENTION_INPUTS), mask=mask_of(record))[0]


def _inner(record, tensors):
    return reference.relative_attention_inner(**tensors, transpose=bool(record["transpose"]))


def _embeddings(record, tensors):
    *lengths, max_relative_position, cache = record["arguments"].tolist()
    return reference.relative_position_embeddings(
        tensors["table"], *lengths, max_relative_position, cache=bool(cache)
    )


def mask_of(record):
    return record["bias"] == 0 if "bias" in record else None


def _v2(widen):
    def compute(record, tensors):
        tables = (tensors.get(f"{name}_relative_embeddings") for name in ("key", "value"))
        tables = (None if table is None else widen(table) for table in tables)
        return attend(*(tensors[n] for n in "qkv"), *tables, mask=mask_of(record))[0]

    return compute


def _2d(record, tensors):
    tables = (tensors[f"{name}_key_relative_embeddings"] for name in ("height", "width"))
    tables = (two_sided_table(table) for table in tables)
    return attend_2d(*(tensors[n] for n in "qkv"), *tables, mask=mask_of(record))[0]


def _local(record, tensors):
    return attend_two_blocks(
        *(tensors[n] for n in "qkv"),
        tensors["relative_embeddings"],
        tensors.get("value_relative_embeddings"),
        block_length=int(record["limit"]),
    )


ATTENTION_INPUTS = ("q", "k", "v", "key_embeddings", "value_embeddings")

FAMILIES = (
    Family(
        "_generate_relative_positions_embeddings",
        "reference.relative_position_embeddings",
        "attention/embeddings",
        _embeddings,
    ),
    Family(
        "_relative_attention_inner",
        "reference.relative_attention_inner",
        "attention/inner",
        _inner,
    ),
    Family(
        "dot_product_attention_relative",
        "reference.dot_product_attention_relative",
        "attention/attention",
        _port,
    ),
    Family(
        "dot_product_attention_relative",
        "attend",
        "attention/attention",
        _attend,
        # A fully masked query gets zeros here and the mean of all values in tensor2tensor.
        leaves_out="all_keys_padded",
    ),
    Family(
        "dot_product_self_attention_relative_v2",
        "attend with left_sided_table",
        "variants/v2_masked",
        _v2(left_sided_table),
    ),
    Family(
        "dot_product_unmasked_self_attention_relative_v2",
        "attend with two_sided_table",
        "variants/v2_unmasked",
        _v2(two_sided_table),
    ),
    Family("dot_product_unmasked_self_attention_relative_2d", "attend_2d", "variants/2d", _2d),
    Family("masked_relative_local_attention_1d", "attend_two_blocks", "variants/local", _local),
)
