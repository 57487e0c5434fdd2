"""Classes for the rows of `dispatch.TABLE`: implementations, their conditions and block sizes."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from t2t_relpos.attention.request import Request


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition on a request: its text, and a function that returns a bool or a scalar tensor."""

    text: str
    holds: Callable[[Request], Any]


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """Sizes of the blocks of `blockwise.attend`.

    Args:
        block: number of queries of a block.
        max_blocks: largest number of blocks. If the sequence needs more blocks of this size, the
            blocks are made longer.
        causal_segments: used by the scanned form only. If causal, queries are split into this many
            segments. The blocks of a segment read the keys up to its last query.
    """

    block: int
    max_blocks: int = 2**30
    causal_segments: int = 1


@dataclasses.dataclass(frozen=True)
class GroupedBlockSizes:
    """Sizes of the blocks of `tensorflow.blockwise.attend`.

    Args:
        largest_block: largest number of queries of a block.
        keys_per_group: heads are processed in groups. The number of heads of a group times S is at
            most this.
        chunk: number of keys of a chunk of the left tail.
    """

    largest_block: int
    keys_per_group: int
    chunk: int


@dataclasses.dataclass(frozen=True)
class Implementation:
    """An attention implementation: a row of `dispatch.TABLE`.

    Args:
        name: name of the row.
        function: dotted name of the function in `t2t_relpos.attention`.
        run: function that computes the attention: `run(inputs)`, or `run(inputs, sizes)` if there
            are `sizes`. It returns (outputs, weights or None).
        saved_matrices: number of `[T, S]` matrices per head that are saved for the gradient. It
            is used by the documentation only.
        requirements: conditions for correct results.
        preferences: further conditions for `select`. A request that names the row skips them.
        sizes: `GroupedBlockSizes` by direction, "bidirectional" or "causal"; or `BlockSizes` by
            device; or None.
    """

    name: str
    function: str
    run: Callable[..., tuple]
    saved_matrices: int
    requirements: tuple[Condition, ...]
    preferences: tuple[Condition, ...] = ()
    sizes: Mapping[str, Any] | None = None

    def attend(self, inputs):
        """Returns (outputs, weights or None) of an `AttentionInputs`."""
        return self.run(inputs) if self.sizes is None else self.run(inputs, self.sizes)

    def unmet_condition(self, request, *, ignore_preferences=False):
        """Returns the first condition that is known to be False, or None."""
        conditions = self._conditions(ignore_preferences)
        return next((c for c in conditions if c.holds(request) is False), None)

    def condition(self, request, *, ignore_preferences=False):
        """Returns the conjunction of the conditions that depend on unknown lengths, or True.

        Call it only if `unmet_condition` returns None.
        """
        conditions = self._conditions(ignore_preferences)
        unknown = [x for x in (c.holds(request) for c in conditions) if not isinstance(x, bool)]
        return functools.reduce(ops.logical_and, unknown) if unknown else True

    def _conditions(self, ignore_preferences):
        return self.requirements if ignore_preferences else self.requirements + self.preferences


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An implementation, and the condition under which it runs: True or a scalar tensor."""

    implementation: Implementation
    condition: Any = True
