"""PyTorch operators of relative attention, computed by the kernels of `torch_fused_kernels`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from t2t_relpos.backend import torch_fused_kernels as kernels
from t2t_relpos.backend.torch_fused_kernels import Case


class Sizes(NamedTuple):
    """Sizes of the blocks of a kernel, chosen from compiled code: no GPU has measured them.

    Args:
        queries: number of queries of a block.
        keys: number of keys of a block.
        warps: number of warps of a program.
        stages: stages of the pipeline of a tail: one less is the number of blocks loaded ahead.
        step: number of keys, or in `key_gradient` of queries, of a step within the band.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    step: int


# For heads of up to 64 features, and of more.
SIZES = {
    "products": (Sizes(64, 64, 4, 1, 64), Sizes(64, 64, 4, 1, 64)),
    "forward": (Sizes(128, 64, 8, 3, 32), Sizes(128, 64, 8, 3, 32)),
    "key_gradient": (Sizes(64, 128, 8, 2, 32), Sizes(32, 64, 4, 2, 32)),
    "query_gradient": (Sizes(128, 64, 8, 2, 32), Sizes(128, 64, 8, 2, 32)),
}


def _prepare(query, key, value, key_table, value_table, key_mask, settings):
    """Returns what kernels read of the arguments of `forward`: a mask, `Case`, offset, and lists.

    They are [query, key, value], [their strides], and [key table, its step, value table, its step].
    Features of vectors are next to each other, and indices within a head fit into int32. Tables
    have a step from head to head. If causal, they lack the rows of later keys.
    """
    left, right, offset, causal = settings
    heads, depth = query.shape[1], query.shape[3]
    case = Case(
        LEFT=left,
        RIGHT=1 if causal else right,
        R=left + 1 if causal else left + right + 1,
        CAUSAL=bool(causal),
        KEY=key_table is not None,
        VALUE=value_table is not None,
        MASK=key_mask is not None,
        N=heads,
        H=depth,
        WIDTH=max(16, triton.next_power_of_2(depth)),
    )
    vectors = [
        x if x.stride(3) == 1 and x.stride(2) * x.shape[2] < 2**31 else x.contiguous()
        for x in (query, key, value)
    ]
    tables = []
    for table in (key_table, value_table):
        if table is not None:
            table = table[..., : case.R, :].to(query.dtype).contiguous()
            table = table.expand(heads, case.R, depth)
        tables += [table, 0 if table is None else table.stride(0)]
    mask = None if key_mask is None else key_mask.contiguous().view(torch.uint8)
    return vectors, [x.stride() for x in vectors], tables, mask, case, offset


def _sized(name, case, query, key):
    """Returns (number of programs of a kernel, arguments of its launch)."""
    queries, keys, warps, stages, step = SIZES[name][case.WIDTH > 64]
    if query.dtype == torch.float32:
        queries, keys, stages = max(16, queries // 2), max(16, keys // 2), max(1, stages - 1)
    step = min(step, queries if name == "key_gradient" else keys)
    even = key.shape[2] % keys == 0
    case = case._replace(QUERIES=queries, KEYS=keys, STEP=step, EVEN=even)
    length, size = (key.shape[2], keys) if name == "key_gradient" else (query.shape[2], queries)
    programs = triton.cdiv(length, size) * query.shape[0] * case.N
    return (programs,), {"C": case, "num_warps": warps, "num_stages": stages}


def _dense_like(x):
    """Returns an empty tensor `[B, N, T, H]` whose heads are next to each other in memory."""
    batch, heads, length, depth = x.shape
    return x.new_empty(batch, length, heads, depth).transpose(1, 2)


def _new_rows(query, case):
    return query.new_empty(*query.shape[:3], case.R, dtype=torch.float32)


@torch.library.custom_op("t2t_relpos::fused_attention", mutates_args=())
def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor | None,
    value_table: Tensor | None,
    key_mask: Tensor | None,
    settings: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Returns (outputs `[B, N, T, H]`, logarithms to base 2 of sums of exponentials `[B, N, T]`).

    Args:
        query: `[B, N, T, H]` with any strides, T at least 1, H at most 128. Scores are not scaled.
        key: `[B, N, S, H]`, S at least 1, of the same dtype.
        value: `[B, N, S, H]`, of the same dtype.
        key_table: a^K, `[left + right + 1, H]` or `[N, left + right + 1, H]`, or None.
        value_table: a^V, as `key_table`.
        key_mask: bool `[B, S]`, True = attend, or None.
        settings: left, right, key position of query 0, and 1 if keys after a query are masked.
    """
    vectors, strides, tables, mask, case, offset = _prepare(
        query, key, value, key_table, value_table, key_mask, settings
    )
    outputs, log_sums = _results(query)
    rows = _new_rows(query, case) if case.KEY or case.VALUE else log_sums
    programs, launch = _sized("forward", case, query, key)
    key_table, key_step, value_table, value_step = tables
    with torch.cuda.device_of(query):
        kernels.forward[programs](
            *vectors, key_table, value_table, mask, rows, outputs, log_sums,
            *strides, key_step, value_step, query.shape[2], key.shape[2], offset, **launch,
        )  # fmt: skip
    return outputs, log_sums


def _results(query):
    return _dense_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)


@forward.register_fake
def _(query, *_):
    return _results(query)


@torch.library.custom_op("t2t_relpos::fused_attention_backward", mutates_args=())
def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor | None,
    value_table: Tensor | None,
    key_mask: Tensor | None,
    settings: Sequence[int],
    outputs: Tensor,
    log_sums: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of the queries, keys, values and both tables.

    The first arguments and results are those of `forward`. `grad` is the gradient of the outputs.
    The gradient of a table that is None is empty.
    """
    vectors, strides, tables, mask, case, offset = _prepare(
        query, key, value, key_table, value_table, key_mask, settings
    )
    outputs, grad = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (outputs, grad))
    length, num_keys, delta = query.shape[2], key.shape[2], torch.empty_like(log_sums)
    key_rows = _new_rows(query, case) if case.KEY else delta
    value_rows = _new_rows(query, case) if case.VALUE else delta
    d_query, d_key, d_value = map(_dense_like, (query, key, value))
    with torch.cuda.device_of(query):
        programs, launch = _sized("products", case, query, key)
        key_step, value_step = tables[1::2]
        kernels.products[programs](
            vectors[0], outputs, grad, *tables[::2], key_rows, value_rows, delta,
            strides[0], key_step, value_step, length, **launch,
        )  # fmt: skip
        programs, launch = _sized("key_gradient", case, query, key)
        kernels.key_gradient[programs](
            *vectors, grad, log_sums, delta, mask, key_rows, value_rows, d_key, d_value,
            *strides, length, num_keys, offset, **launch,
        )  # fmt: skip
        programs, launch = _sized("query_gradient", case, query, key)
        kernels.query_gradient[programs](
            *vectors, grad, log_sums, delta, tables[0], mask, key_rows, value_rows, d_query,
            *strides, key_step, length, num_keys, offset, **launch,
        )  # fmt: skip
    d_key_table = _table_gradient(key_table, key_rows, query)
    return d_query, d_key, d_value, d_key_table, _table_gradient(value_table, value_rows, grad)


def _table_gradient(table, rows, x):
    """Returns the sums over queries of rows[..., r] x[..., h], zeros for rows without pairs."""
    if table is None:
        return x.new_empty(0)
    # In the layout `[B, T, N, R]`, the sum is one product of matrices for all heads.
    rows = rows.transpose(1, 2).to(x.dtype, memory_format=torch.contiguous_format)
    total = torch.einsum("btnr,bnth->rh" if table.ndim == 2 else "btnr,bnth->nrh", rows, x)
    gradient = torch.zeros_like(table)
    gradient[..., : total.shape[-2], :] = total
    return gradient


@backward.register_fake
def _(query, key, value, key_table, value_table, *_):
    tables = (
        query.new_empty(0) if x is None else torch.empty_like(x) for x in (key_table, value_table)
    )
    return *map(_dense_like, (query, key, value)), *tables
