"""Numbers that choose among the attention implementations of `dispatch`, and sizes of their blocks.

Limits print themselves, so that the rule, docs/how_it_works/dispatch.md and `explain` have the same
numbers. They were measured on CPUs and, for JAX and PyTorch, on one GPU. Block sizes for GPUs and
TPUs are estimates.

A `call` is an `AttentionCall` of `t2t_relpos.attention.call`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras import ops


class _UnknownLength:
    """A length in `explain(None)`, or a result that depends on it."""

    def _unknown(self, other):
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __le__ = __lt__ = __ge__ = __gt__ = __eq__ = __and__ = __rand__ = _unknown
    __hash__ = object.__hash__

    def __repr__(self):
        return "unknown"


UNKNOWN = _UnknownLength()


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition on a call.

    Args:
        text: description of the condition.
        function: function of a call that returns a bool, or a scalar tensor if the result depends
            on unknown lengths.
    """

    text: str
    function: Callable[[Any], Any]

    def holds(self, call):
        """Returns True, False, or a scalar tensor whose value is known when the graph runs.

        In `explain(None)`, `UNKNOWN` stands for the tensor.
        """
        result = self.function(call)
        return result if ops.is_tensor(result) or result is UNKNOWN else bool(result)


# Limits: numbers of positions by platform, where n positions stand for a matrix of n² entries.


class Limit(NamedTuple):
    """A number of positions for bidirectional attention, and one for causal attention."""

    bidirectional: int
    causal: int

    def of(self, call):
        """Returns the number of a call."""
        return self.causal if call.causal else self.bidirectional

    @property
    def numbers(self):
        """The numbers as text."""
        same = self.causal == self.bidirectional
        return f"{self.bidirectional:,}" + ("" if same else f", causal {self.causal:,}")

    def __str__(self):
        return f"{self.numbers} positions"


# Names of platforms, as `AttentionCall.platform` returns them.
TENSORFLOW_CPU = "TensorFlow without XLA on a CPU"
TORCH_CPU, TORCH_GPU = "PyTorch on a CPU", "PyTorch on a GPU"
JAX_CPU, JAX_GPU = "JAX on a CPU", "JAX on a GPU"


class Limits(NamedTuple):
    """Limits by platform, and the limit of all other platforms."""

    platforms: Mapping[str, Limit]
    others: Limit

    def of(self, call):
        """Returns the limit of a call, an int."""
        return self.platforms.get(call.platform, self.others).of(call)

    def __str__(self):
        texts = [f"{platform}: {limit.numbers}" for platform, limit in self.platforms.items()]
        exceptions = f" ({'; '.join(texts)})" if texts else ""
        return f"{self.others}{exceptions}"


# `by_id`, and `rows`, on PyTorch on a CPU.
BY_ID = Limits({}, Limit(224, 128))
# `rows` gathers a table row for each pair. Also the limit of `full_matrix` in inference on a CPU.
ROWS = Limits(
    {
        TENSORFLOW_CPU: Limit(256, 128),
        TORCH_CPU: BY_ID.others,
        JAX_CPU: Limit(16, 16),
        TORCH_GPU: Limit(128, 128),
        JAX_GPU: Limit(128, 128),
    },
    others=Limit(64, 64),
)
# `rows`, for calls that blocks do not support, for example with returned weights.
ROWS_WITHOUT_BLOCKS = Limits({}, Limit(512, 512))
# On PyTorch on a CPU, `rows` reads `[T, S, H]` vectors: it is faster than `by_id` only if this many
# queries (of all heads and batch entries) share them, and if the tables have more rows than keys.
FEWEST_QUERIES_OF_ROWS = 64
# `full_matrix` is faster than `rows` from this many positions on a CPU.
SHORTEST_FULL_MATRIX = Limit(96, 40)
# Within `lengths_up_to`, a graph has one of the two where the other saves little: `rows` if no
# length exceeds this; in causal attention, `full_matrix` if one may exceed `SHORTEST_FULL_MATRIX`.
LONGEST_ROWS_ALONE = 128
# In training on a CPU, it is faster than blocks up to this many positions. On an accelerator, it
# would need too much memory for more.
FULL_MATRIX = Limits({TENSORFLOW_CPU: Limit(1024, 256)}, Limit(1024, 1024))
# Weights of longer sequences would need too much memory.
SAVED_BLOCKS = Limits({}, Limit(4096, 4096))
# `blocks` saves no weights of longer sequences. A loop is faster, although it computes the weights
# twice: unrolled blocks would exceed the CPU caches, or be too many to compile quickly.
UNROLLED_BLOCKS = Limits({}, Limit(1024, 1024))
# `flash` is the fastest for longer sequences. On a GPU, the time of PyTorch depends on the number
# of kernels, and `flash` has the most.
LONGEST_WITHOUT_FLASH = Limits(
    {
        TORCH_CPU: BY_ID.others,
        JAX_GPU: ROWS.platforms[JAX_GPU],
        TORCH_GPU: Limit(1024, 1024),
    },
    ROWS.others,
)
# The same for heads of queries that share keys, which `flash` repeats.
LONGEST_SHARED_KEYS_WITHOUT_FLASH = Limits({}, Limit(1024, 1024))
# `flash` reads scores by id of all queries. Its windows take long if they have more than this share
# of the positions.
WIDEST_FLASH_WINDOW = 0.25
# It needs much memory for tables with more rows than this number of depths.
LONGEST_FLASH_TABLE = 6
# With a sliding window, `flash` is faster than blocks for longer sequences, and up to this window.
LONGEST_WINDOWED_WITHOUT_FLASH, WIDEST_SHORT_FLASH = Limit(1536, 1024), Limit(32, 48)
# With a sliding window, the full matrix with a mask is used up to this many windows, which have at
# least this many positions.
MASKED_WINDOWS, SHORTEST_WINDOW = 4, 16


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the blocks of an implementation.

    Args:
        block: number of queries of a block, unless `max_blocks` makes it longer.
        causal_block: the same for causal attention. Default: `block`.
        loop_block: the same for the loops of `blocks`. Default: `block`.
        smallest: a sliding window does not reduce blocks below this size. Smaller ones would not
            save much time. In `flash`, these are the blocks of tails.
        max_blocks: largest number of blocks without a loop. If the sequence needs more blocks of
            this size, the blocks are made longer.
        causal_segments: in causal attention, there are this many loops, each over a segment of the
            queries. The blocks of a segment read the keys up to its last query.
        group: heads are processed in groups. A group has at most this many entries: of the queries
            in `flash`; heads times S in `saved_blocks` and `rematerialized_blocks`.
        chunk: number of keys of a chunk of the left tail on TensorFlow.
        long_chunk: the same for more than `short_keys` keys. Default: `chunk`.
        short_keys: see `long_chunk`.
    """

    block: int
    causal_block: int | None = None
    loop_block: int | None = None
    smallest: int = 128
    max_blocks: int = 2**30
    causal_segments: int = 1
    group: int = 2**62
    chunk: int = 0
    long_chunk: int | None = None
    short_keys: int = 2**62

    def block_of(self, call, *, in_loop=False):
        """Returns the size of a block. It reads the keys in the windows of all of its queries."""
        size = self.causal_block if call.causal and self.causal_block else self.block
        size = self.loop_block if in_loop and self.loop_block else size
        window = call.sliding_window
        return size if window is None else min(size, max(window - 1, self.smallest))

    def chunk_of(self, length_k):
        """Returns the keys per chunk: an int, or a tensor for an unknown length."""
        if length_k is UNKNOWN:
            return length_k
        if self.long_chunk is None or isinstance(length_k, int):
            is_long = self.long_chunk is not None and length_k > self.short_keys
            return self.long_chunk if is_long else self.chunk
        # Two ints would get a dtype that depends on `keras.config.floatx()`.
        chunks = (ops.cast(chunk, "int32") for chunk in (self.chunk, self.long_chunk))
        return ops.where(length_k <= self.short_keys, *chunks)


FULL_MATRIX_SIZES = Sizes(2**30, chunk=16, long_chunk=32, short_keys=256)


class FlashKernel(NamedTuple):
    """Dtypes and depths that a flash-attention kernel supports.

    Args:
        dtypes: names of dtypes.
        multiple: depths are multiples of this.
        largest_depth: largest depth, with the features for masks.
    """

    dtypes: tuple
    multiple: int = 1
    largest_depth: int = 2**30


FLASH_KERNELS = {
    TORCH_CPU: FlashKernel(("float16", "bfloat16", "float32", "float64")),
    TORCH_GPU: FlashKernel(("float16", "bfloat16", "float32"), multiple=8),
    JAX_GPU: FlashKernel(("float16", "bfloat16"), multiple=8, largest_depth=256),
}


# The fused kernel: smallest and largest depth, and a limit of max(T, S) * max(N * H, R).
FUSED_DEPTHS, LARGEST_FUSED = (16, 128), 2**31
