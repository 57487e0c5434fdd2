"""Describes calls of `attend` to `dispatch`."""

import dataclasses
from typing import Any

import keras
from keras import ops

from t2t_relpos import _backend
from t2t_relpos._portable import is_portable


@dataclasses.dataclass(frozen=True)
class Request:
    """Describes a call of `attend`.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        max_relative_position: K. None: no tables.
        causal: whether keys after a query are masked, without an explicit mask.
        query_offset: key position of query 0, an int or a scalar tensor. Default `S - T`.
        offset_per_entry: whether there is a query offset for each batch entry.
        ids_rank: rank of the argument `relative_ids`, 2 or 3. None: ids follow from the offset.
        return_weights: whether all attention weights are returned.
        rematerialize: as in `attend`.
        seeded_dropout: False for a dropout that is an arbitrary function.
        backend: name of the Keras backend. Default: the current one.
        xla: whether XLA compiles the call. Default: as in the current graph.
        device: "cpu", "gpu" or "tpu". Default: the backend's.
        portable: whether the implementation must use standard operations only. Default: whether the
            context `portable` is entered or Keras exports to a format that needs it.

    Raises:
        ValueError: if the backend or the device is unknown.
    """

    length_q: Any
    length_k: Any
    max_relative_position: int | None
    causal: bool = False
    query_offset: Any = None
    offset_per_entry: bool = False
    ids_rank: int | None = None
    return_weights: bool = False
    rematerialize: bool | None = None
    seeded_dropout: bool = True
    backend: str = dataclasses.field(default_factory=keras.backend.backend)
    xla: bool = dataclasses.field(default_factory=_backend.is_compiled_by_xla)
    device: str = dataclasses.field(default_factory=_backend.device)
    portable: bool = dataclasses.field(default_factory=is_portable)

    def __post_init__(self):
        known = {"backend": ("tensorflow", "jax", "torch"), "device": ("cpu", "gpu", "tpu")}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"Expected `{name}` to be one of {', '.join(values)}. "
                    f"Received: {getattr(self, name)!r}."
                )

    def has_at_most(self, positions):
        """Returns whether the score matrix has at most `positions ** 2` entries.

        The result is a scalar tensor if a length is one.
        """
        return self.num_pairs <= positions**2

    @property
    def num_pairs(self):
        """T·S, an int or a scalar tensor. In int32, it would overflow from 46,341 positions."""
        length_q, length_k = (
            x if isinstance(x, int) or self.backend != "tensorflow" else ops.cast(x, "int64")
            for x in (self.length_q, self.length_k)
        )
        return length_q * length_k

    @property
    def is_empty(self):
        """Whether T or S is known to be 0."""
        return 0 in [length for length in (self.length_q, self.length_k) if isinstance(length, int)]

    @property
    def knows_lengths(self):
        """Whether both lengths are Python ints."""
        return isinstance(self.length_q, int) and isinstance(self.length_k, int)
