"""Triton kernels of attention with relative positions for NVIDIA GPUs: one forward, three backward.

`torch_fused` calls them.

    scores[i, j] = q_i · (k_j + a^K[row])    row = clip(j - i - offset, -left, right) + left
    outputs_i    = sum over j of softmax(scores)[i, j] (v_j + a^V[row])

Outside of the band (see `attention.band`) the row is constant. For a block of queries, the blocks
of keys form three runs:

    left tail     the first row: one number is added to the scores of the query, and to its output
                  one row times the sum of the tail's weights
    band          the rows between, each of which belongs to at most one key of a query
    right tail    as the left tail, with the last row. Causal attention has none

Blocks of keys within a tail cost what they cost in plain flash attention. Blocks that contain pairs
of the band read q · a^K from an array by row, float32 `[B, N, T, R]`, and write there what the rows
of a^V are multiplied by. A query has at most one key for each of these rows, so no additions are
atomic. After the runs, the product of that array with a^V is added. Memory is linear in length.

In the backward pass, `products` computes q · a^K and grad · a^V by row. `key_gradient` reads them
and goes through the queries of a block of keys. `query_gradient` reads them, goes through the keys
of a block of queries, and overwrites both arrays with the sums of the gradients of the scores, and
of the weights, by row. Their products with queries and with the gradient of the outputs are the
gradients of the tables.

Shapes: R rows, left + right + 1, or left + 1 if causal. Exponentials have base 2. Queries that
attend to no key get zeros.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG2E = tl.constexpr(math.log2(math.e))
LEFT_TAIL, BAND, RIGHT_TAIL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
ROWS = tl.constexpr(32)  # table rows that are multiplied at a time


class Case(NamedTuple):
    """What a kernel is compiled for. Lengths and offsets are arguments."""

    LEFT: int
    RIGHT: int  # 1 if causal: the rows 1 to LEFT are those of the band
    R: int
    CAUSAL: bool
    KEY: bool  # whether there is a^K
    VALUE: bool  # whether there is a^V
    MASK: bool  # whether there is a mask of keys
    N: int
    H: int
    WIDTH: int  # H, rounded up to a power of 2
    EVEN: bool = False  # whether KEYS divides the number of keys
    QUERIES: int = 0
    KEYS: int = 0
    STEP: int = 0


# Records of kernels.


class Vectors(NamedTuple):
    """Vectors of a head, `[length, H]` with `step` numbers from one to the next."""

    start: Any
    step: Any
    length: Any


class Queries(NamedTuple):
    """What a kernel reads of queries: of a block, or pointers to those of a head.

    Args:
        vectors: queries.
        grad: gradients of their outputs.
        log_sum: logarithms to base 2 of the sums of exponentials of their scores.
        delta: pointer to the products of their outputs and gradients.
        key_rows: pointer to their products with the rows of a^K.
        value_rows: pointer to the products of gradients with the rows of a^V, minus `delta`.
        length: T.
    """

    vectors: Any
    grad: Any
    log_sum: Any
    delta: Any
    key_rows: Any
    value_rows: Any
    length: Any


class Keys(NamedTuple):
    """What a kernel reads of keys. `mask` is a pointer, `offset` the position of query 0."""

    key: Any
    value: Any
    mask: Any
    offset: Any


@triton.jit
def _program(length, size, C: tl.constexpr):
    """Returns the block, the batch entry and the head of a program. The last block runs first.

    In causal attention, the last block of queries has the most keys.
    """
    blocks = tl.cdiv(length, size)
    head = tl.program_id(0) // blocks
    return blocks - 1 - tl.program_id(0) % blocks, head // C.N, head % C.N


@triton.jit
def _strided(pointer, stride, b, n, length):
    """Returns the `Vectors` of a head of a tensor with any strides."""
    start = pointer + b.to(tl.int64) * stride[0] + n.to(tl.int64) * stride[1]
    return Vectors(start, stride[2], length)


@triton.jit
def _dense(pointer, b, n, length, C: tl.constexpr):
    """Returns the `Vectors` of a head of a tensor in the layout `[B, T, N, H]`."""
    return Vectors(pointer + (b.to(tl.int64) * length * C.N + n) * C.H, C.N * C.H, length)


@triton.jit
def _of_head(pointer, b, n, length, size: tl.constexpr, C: tl.constexpr):
    """Returns the pointer to a head of an array `[B, N, length, size]`."""
    return pointer + (b * C.N + n).to(tl.int64) * length * size


@triton.jit
def _keys(key, value, mask, key_stride, value_stride, b, n, num_keys, offset, C: tl.constexpr):
    """Returns the `Keys` of a head."""
    if C.MASK:
        mask += b.to(tl.int64) * num_keys
    keys = _strided(key, key_stride, b, n, num_keys)
    return Keys(keys, _strided(value, value_stride, b, n, num_keys), mask, offset)


@triton.jit
def _load(vectors, index, C: tl.constexpr):
    """Returns `[len(index), WIDTH]`: vectors, and zeros beyond their number and size."""
    column = tl.arange(0, C.WIDTH)
    mask = index[:, None] < vectors.length
    if C.H != C.WIDTH:
        mask = mask & (column[None, :] < C.H)
    places = vectors.start + index[:, None] * vectors.step + column[None, :]
    return tl.load(places, mask=mask, other=0.0)


@triton.jit
def _store(vectors, index, x, C: tl.constexpr):
    column = tl.arange(0, C.WIDTH)
    mask = (index[:, None] < vectors.length) & (column[None, :] < C.H)
    places = vectors.start + index[:, None] * vectors.step + column[None, :]
    tl.store(places, x.to(vectors.start.dtype.element_ty), mask=mask)


@triton.jit
def _zeros(rows: tl.constexpr, columns: tl.constexpr):
    return tl.zeros([rows, columns], tl.float32)


@triton.jit
def _dot(x, y, total):
    return tl.dot(x, y, total, input_precision="ieee")


@triton.jit
def _load_rows(table, step, n, first, C: tl.constexpr):
    """Returns `ROWS` rows of the table of a head, `[ROWS, WIDTH]`."""
    return _load(Vectors(table + n * step, C.H, C.R), first + tl.arange(0, ROWS), C)


@triton.jit
def _store_products(x, minus, table, step, n, rows, i, length, C: tl.constexpr):
    """Stores the products of vectors `x` of queries `i` with table rows, minus a number each."""
    for first in tl.range(0, C.R, ROWS, num_stages=1):
        row = first + tl.arange(0, ROWS)
        y = _zeros(C.QUERIES, ROWS) - minus[:, None]
        y = _dot(x, tl.trans(_load_rows(table, step, n, first, C)), y)
        mask = (i[:, None] < length) & (row[None, :] < C.R)
        tl.store(rows + i[:, None] * C.R + row[None, :], y, mask=mask)


@triton.jit
def _of_tail(rows, i, length, TABLE: tl.constexpr, PART: tl.constexpr, C: tl.constexpr):
    """Returns what a tail adds to all scores of a query, from an array by row. Zero in the band."""
    x = i * 0.0
    if TABLE and PART != BAND:
        row: tl.constexpr = C.R - 1 if PART == RIGHT_TAIL else 0
        x = tl.load(rows + tl.minimum(i, length - 1) * C.R + row)
    return x


@triton.jit
def _row(i, j, length, offset, C: tl.constexpr):
    """Returns (rows of pairs before they are clipped, whether pairs are in the band)."""
    row = j + (C.LEFT - offset - i)
    return row, (row > 0) & (row < C.LEFT + C.RIGHT) & (i < length)


@triton.jit
def _of_pairs(rows, i, j, length, offset, TABLE: tl.constexpr, PART: tl.constexpr, C: tl.constexpr):
    """Returns the entries of pairs in an array by row, with clipped rows, in a run of the band.

    `i` and `j` broadcast to pairs. In the run of a tail, it is zero: see `_of_tail`.
    """
    x = (i * 0 + j * 0).to(tl.float32)
    if TABLE and PART == BAND:
        x += _of_tail(rows, i, length, TABLE, LEFT_TAIL, C)
        row, banded = _row(i, j, length, offset, C)
        if not C.CAUSAL:
            x = tl.where(row > 0, _of_tail(rows, i, length, TABLE, RIGHT_TAIL, C), x)
        # Addresses that are linear in `i` and `j` take fewer instructions than those of clipped
        # rows.
        x = tl.load(rows + (i * C.R + row), mask=banded, other=x)
    return x


@triton.jit
def _put(rows, i, j, x, length, offset, C: tl.constexpr):
    """Stores numbers of pairs of the band in an array by row."""
    row, banded = _row(i, j, length, offset, C)
    tl.store(rows + (i * C.R + row), x, mask=banded)


@triton.jit
def _load_band(rows, i, row, length, num_keys, offset, other, C: tl.constexpr):
    """Returns what `_put` stored of queries `i`, `[len(i), len(row)]`."""
    j = i[:, None] + row[None, :] + (offset - C.LEFT)
    _, banded = _row(i[:, None], j, length, offset, C)
    mask = banded & (j >= 0) & (j < num_keys)
    return tl.load(rows + i[:, None] * C.R + row[None, :], mask=mask, other=other)


@triton.jit
def _add_tails(x, row, left, right, C: tl.constexpr):
    """Adds the sums of the tails to the entries of the first and of the last row."""
    x += tl.where(row[None, :] == 0, left[:, None], 0.0)
    if not C.CAUSAL:
        x += tl.where(row[None, :] == C.R - 1, right[:, None], 0.0)
    return x


@triton.jit
def _masked(x, i, j, keys, fill, PART: tl.constexpr, C: tl.constexpr):
    """Returns `[queries, keys]` with `fill` for pairs that are masked."""
    exists = j < keys.key.length
    if C.MASK:
        allowed = tl.load(keys.mask + j, mask=exists, other=0) != 0
        x = tl.where(allowed[None, :], x, fill)
    elif not C.EVEN:
        x = tl.where(exists[None, :], x, fill)
    if C.CAUSAL and PART == BAND:
        x = tl.where(j[None, :] <= i[:, None] + keys.offset, x, fill)
    return x


@triton.jit
def _in_left_tail(x, i, j, offset, C: tl.constexpr):
    """Returns the entries of pairs in the left tail, `[queries, keys]`, and zeros."""
    return tl.where(j[None, :] <= (i + (offset - C.LEFT))[:, None], x, 0.0)


@triton.jit
def _in_right_tail(x, i, j, offset, C: tl.constexpr):
    """Returns the entries of pairs that are in the right tail, and not in the left one."""
    distance: tl.constexpr = C.RIGHT if C.LEFT + C.RIGHT > 0 else 1
    return tl.where(j[None, :] >= (i + (offset + distance))[:, None], x, 0.0)


@triton.jit
def _runs_of_keys(first, num_keys, offset, C: tl.constexpr):
    """Returns the ends of the left tail, the band and the right tail of a block of queries.

    They are ends of blocks of keys.
    """
    end = num_keys
    if C.CAUSAL:
        end = tl.minimum(end, tl.maximum(first + C.QUERIES + offset, 0))
    end = tl.cdiv(end, C.KEYS)
    left = tl.minimum(tl.maximum(first + offset - C.LEFT + 1, 0) // C.KEYS, end)
    band = end
    if not C.CAUSAL:
        band = tl.cdiv(tl.maximum(first + C.QUERIES - 1 + offset + C.RIGHT, 0), C.KEYS)
        band = tl.minimum(tl.maximum(band, left), end)
    return left * C.KEYS, band * C.KEYS, end * C.KEYS


@triton.jit
def _runs_of_queries(first, length, offset, C: tl.constexpr):
    """Returns the starts of the right tail, the band and the left tail of a block of keys.

    The fourth number is the end. They are ends of blocks of queries.
    """
    end = tl.cdiv(length, C.QUERIES)
    right = end * 0
    if C.CAUSAL:
        right = tl.minimum(tl.maximum(first - offset, 0) // C.QUERIES, end)
        band = right
    else:
        band = tl.minimum(tl.maximum(first - offset - C.RIGHT + 1, 0) // C.QUERIES, end)
    left = tl.cdiv(tl.maximum(first + C.KEYS - 1 - offset + C.LEFT, 0), C.QUERIES)
    left = tl.minimum(tl.maximum(left, band), end)
    return right * C.QUERIES, band * C.QUERIES, left * C.QUERIES, end * C.QUERIES


# Forward.


@triton.jit
def _forward_run(state, queries, keys, i, first, end, PART: tl.constexpr, C: tl.constexpr):
    """Takes a run of keys into the softmax of a block of queries.

    `state` has the maximum of the scores, the sum of the weights, the part of it that is in the
    left tail, and the weighted sum of values.
    """
    SIZE: tl.constexpr = C.STEP if PART == BAND else C.KEYS
    peak, total, left, outputs = state
    rows, length, offset = queries.key_rows, queries.length, keys.offset
    tail = _of_tail(rows, i, length, C.KEY, PART, C) * LOG2E
    for start in tl.range(
        first, end, SIZE, num_stages=1 if PART == BAND else None, disable_licm=PART == BAND
    ):
        j = start + tl.arange(0, SIZE)
        x = _of_pairs(rows, i[:, None], j[None, :], length, offset, C.KEY, PART, C)
        x = _dot(queries.vectors, tl.trans(_load(keys.key, j, C)), x)
        x = _masked(x, i, j, keys, float("-inf"), PART, C)
        if C.VALUE and PART == BAND:
            _put(rows, i[:, None], j[None, :], x, length, offset, C)
        # The number of a tail is added to the maximum, not to each score.
        new_peak = tl.maximum(peak, tl.max(x, 1) * LOG2E + tail)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        p = tl.exp2(x * LOG2E - (base - tail)[:, None])
        fade = tl.exp2(peak - base)
        peak = new_peak
        total = total * fade + tl.sum(p, 1)
        if C.VALUE:
            if PART == LEFT_TAIL:
                left = total
            elif PART == BAND:
                left = left * fade + tl.sum(_in_left_tail(p, i, j, offset, C), 1)
            else:
                left = left * fade
        values = _load(keys.value, j, C)
        outputs = _dot(p.to(values.dtype), values, outputs * fade[:, None])
    return peak, total, left, outputs


@triton.jit(do_not_specialize=["num_queries", "num_keys", "offset"])
def forward(
    query, key, value, key_table, value_table, key_mask, rows, outputs, log_sums,
    query_stride, key_stride, value_stride, key_table_step, value_table_step,
    num_queries, num_keys, offset, C: tl.constexpr,
):  # fmt: skip
    block, b, n = _program(num_queries, C.QUERIES, C)
    i = block * C.QUERIES + tl.arange(0, C.QUERIES)
    keys = _keys(key, value, key_mask, key_stride, value_stride, b, n, num_keys, offset, C)
    vectors = _load(_strided(query, query_stride, b, n, num_queries), i, C)
    rows = _of_head(rows, b, n, num_queries, C.R, C)
    zero = i * 0.0
    queries = Queries(vectors, None, None, None, rows, None, num_queries)
    if C.KEY:
        _store_products(vectors, zero, key_table, key_table_step, n, rows, i, num_queries, C)
        tl.debug_barrier()  # Other threads of the program read what this one stored.
    state = zero - float("inf"), zero, zero, _zeros(C.QUERIES, C.WIDTH)
    left_end, band_end, end = _runs_of_keys(block * C.QUERIES, num_keys, offset, C)
    state = _forward_run(state, queries, keys, i, 0, left_end, LEFT_TAIL, C)
    state = _forward_run(state, queries, keys, i, left_end, band_end, BAND, C)
    if not C.CAUSAL:
        state = _forward_run(state, queries, keys, i, band_end, end, RIGHT_TAIL, C)
    peak, total, left, x = state
    if C.VALUE:
        tl.debug_barrier()
        base = tl.where(peak == float("-inf"), 0.0, peak)
        right = total - left  # minus the band: the right tail
        for first in tl.range(0, C.R, ROWS, num_stages=1):
            row = first + tl.arange(0, ROWS)
            scores = _load_band(rows, i, row, num_queries, num_keys, offset, float("-inf"), C)
            p = tl.exp2(scores * LOG2E - base[:, None])
            right -= tl.sum(p, 1)
            p = _add_tails(p, row, left, right, C)
            table = _load_rows(value_table, value_table_step, n, first, C)
            x = _dot(p.to(table.dtype), table, x)
    positive = tl.where(total == 0.0, 1.0, total)
    _store(_dense(outputs, b, n, num_queries, C), i, x / positive[:, None], C)
    # With infinity, the weights are zero in the backward pass.
    log_sum = tl.where(total == 0.0, float("inf"), peak + tl.log2(positive))
    tl.store(_of_head(log_sums, b, n, num_queries, 1, C) + i, log_sum, mask=i < num_queries)


# Backward.


@triton.jit(do_not_specialize=["num_queries"])
def products(
    query, outputs, grad, key_table, value_table, key_rows, value_rows, delta,
    query_stride, key_table_step, value_table_step, num_queries, C: tl.constexpr,
):  # fmt: skip
    """Computes grad · outputs, and by row q · a^K and grad · a^V - grad · outputs."""
    block, b, n = _program(num_queries, C.QUERIES, C)
    i = block * C.QUERIES + tl.arange(0, C.QUERIES)
    g = _load(_dense(grad, b, n, num_queries, C), i, C)
    x = _load(_dense(outputs, b, n, num_queries, C), i, C)
    product = tl.sum(g.to(tl.float32) * x.to(tl.float32), 1)
    tl.store(_of_head(delta, b, n, num_queries, 1, C) + i, product, mask=i < num_queries)
    if C.KEY:
        q = _load(_strided(query, query_stride, b, n, num_queries), i, C)
        rows = _of_head(key_rows, b, n, num_queries, C.R, C)
        _store_products(q, product * 0.0, key_table, key_table_step, n, rows, i, num_queries, C)
    if C.VALUE:
        rows = _of_head(value_rows, b, n, num_queries, C.R, C)
        _store_products(g, product, value_table, value_table_step, n, rows, i, num_queries, C)


@triton.jit
def _minus_delta(queries, i, PART: tl.constexpr, C: tl.constexpr):
    """Returns what is added to the gradients of the weights of queries, besides `_of_pairs`.

    `value_rows` contains it, if there is a^V: in the band, `_of_pairs` adds it.
    """
    d = _of_tail(queries.value_rows, i, queries.length, C.VALUE, PART, C)
    if not C.VALUE:
        d = -tl.load(queries.delta + tl.minimum(i, queries.length - 1))
    return d


@triton.jit
def _key_run(state, keys, j, queries, offset, first, end, PART: tl.constexpr, C: tl.constexpr):
    """Adds a run of queries to the gradients of a block of keys and values.

    Matrices are transposed, `[keys, queries]`.
    """
    SIZE: tl.constexpr = C.STEP if PART == BAND else C.QUERIES
    length = queries.length
    d_key, d_value = state
    for start in tl.range(
        first, end, SIZE, num_stages=1 if PART == BAND else None, disable_licm=PART == BAND
    ):
        i = start + tl.arange(0, SIZE)
        q, g = _load(queries.vectors, i, C), _load(queries.grad, i, C)
        base = tl.load(queries.log_sum + i, mask=i < length, other=float("inf"))
        base -= _of_tail(queries.key_rows, i, length, C.KEY, PART, C) * LOG2E
        d = _minus_delta(queries, i, PART, C)
        x = _of_pairs(queries.key_rows, i[None, :], j[:, None], length, offset, C.KEY, PART, C)
        ds = _of_pairs(queries.value_rows, i[None, :], j[:, None], length, offset, C.VALUE, PART, C)
        x = _dot(keys.key, tl.trans(q), x)
        ds = _dot(keys.value, tl.trans(g), ds)
        p = tl.exp2(x * LOG2E - base[None, :])
        if C.CAUSAL and PART == BAND:
            p = tl.where(j[:, None] <= i[None, :] + offset, p, 0.0)
        d_value = _dot(p.to(g.dtype), g, d_value)
        ds = p * (ds + d[None, :])
        d_key = _dot(ds.to(q.dtype), q, d_key)
    return d_key, d_value


@triton.jit(do_not_specialize=["num_queries", "num_keys", "offset"])
def key_gradient(
    query, key, value, grad, log_sums, delta, key_mask, key_rows, value_rows, d_key, d_value,
    query_stride, key_stride, value_stride, num_queries, num_keys, offset, C: tl.constexpr,
):  # fmt: skip
    block, b, n = _program(num_keys, C.KEYS, C)
    j = block * C.KEYS + tl.arange(0, C.KEYS)
    queries = Queries(
        _strided(query, query_stride, b, n, num_queries),
        _dense(grad, b, n, num_queries, C),
        _of_head(log_sums, b, n, num_queries, 1, C),
        _of_head(delta, b, n, num_queries, 1, C),
        _of_head(key_rows, b, n, num_queries, C.R, C),
        _of_head(value_rows, b, n, num_queries, C.R, C),
        num_queries,
    )
    k = _load(_strided(key, key_stride, b, n, num_keys), j, C)
    v = _load(_strided(value, value_stride, b, n, num_keys), j, C)
    keys = Keys(k, v, None, None)
    zero = _zeros(C.KEYS, C.WIDTH)
    state = zero, zero
    right, band, left, end = _runs_of_queries(block * C.KEYS, num_queries, offset, C)
    if not C.CAUSAL:
        state = _key_run(state, keys, j, queries, offset, right, band, RIGHT_TAIL, C)
    state = _key_run(state, keys, j, queries, offset, band, left, BAND, C)
    state = _key_run(state, keys, j, queries, offset, left, end, LEFT_TAIL, C)
    x, y = state
    if C.MASK:  # A masked key changes no sum of another key here.
        mask = tl.load(key_mask + b.to(tl.int64) * num_keys + j, mask=j < num_keys, other=0) != 0
        x, y = tl.where(mask[:, None], x, 0.0), tl.where(mask[:, None], y, 0.0)
    _store(_dense(d_key, b, n, num_keys, C), j, x, C)
    _store(_dense(d_value, b, n, num_keys, C), j, y, C)


@triton.jit
def _query_run(state, queries, keys, i, first, end, PART: tl.constexpr, C: tl.constexpr):
    """Adds a run of keys to the gradient of a block of queries.

    `state` has the sum of the weights in the left tail, those of the gradients of the scores in the
    left and in the right tail, and the gradient of the queries.
    """
    SIZE: tl.constexpr = C.STEP if PART == BAND else C.KEYS
    left_p, left_ds, right_ds, d_query = state
    key_rows, value_rows, length, offset = (
        queries.key_rows,
        queries.value_rows,
        queries.length,
        keys.offset,
    )
    base = queries.log_sum - _of_tail(key_rows, i, length, C.KEY, PART, C) * LOG2E
    d = _minus_delta(queries, i, PART, C)
    for start in tl.range(
        first, end, SIZE, num_stages=1 if PART == BAND else None, disable_licm=PART == BAND
    ):
        j = start + tl.arange(0, SIZE)
        k, v = _load(keys.key, j, C), _load(keys.value, j, C)
        x = _of_pairs(key_rows, i[:, None], j[None, :], length, offset, C.KEY, PART, C)
        ds = _of_pairs(value_rows, i[:, None], j[None, :], length, offset, C.VALUE, PART, C)
        x = _dot(queries.vectors, tl.trans(k), x)
        ds = _dot(queries.grad, tl.trans(v), ds)
        p = _masked(tl.exp2(x * LOG2E - base[:, None]), i, j, keys, 0.0, PART, C)
        ds = p * (ds + d[:, None])
        if PART == LEFT_TAIL:
            left_p += tl.sum(p, 1)
            left_ds += tl.sum(ds, 1)
        elif PART == BAND:
            left_p += tl.sum(_in_left_tail(p, i, j, offset, C), 1)
            left_ds += tl.sum(_in_left_tail(ds, i, j, offset, C), 1)
            if not C.CAUSAL:
                right_ds += tl.sum(_in_right_tail(ds, i, j, offset, C), 1)
            if C.VALUE:
                _put(value_rows, i[:, None], j[None, :], p, length, offset, C)
            if C.KEY:
                _put(key_rows, i[:, None], j[None, :], ds, length, offset, C)
        else:
            right_ds += tl.sum(ds, 1)
        d_query = _dot(ds.to(k.dtype), k, d_query)
    return left_p, left_ds, right_ds, d_query


@triton.jit(do_not_specialize=["num_queries", "num_keys", "offset"])
def query_gradient(
    query, key, value, grad, log_sums, delta, key_table, key_mask, key_rows, value_rows, d_query,
    query_stride, key_stride, value_stride, key_table_step,
    num_queries, num_keys, offset, C: tl.constexpr,
):  # fmt: skip
    block, b, n = _program(num_queries, C.QUERIES, C)
    i = block * C.QUERIES + tl.arange(0, C.QUERIES)
    exists = i < num_queries
    keys = _keys(key, value, key_mask, key_stride, value_stride, b, n, num_keys, offset, C)
    log_sums = _of_head(log_sums, b, n, num_queries, 1, C)
    key_rows = _of_head(key_rows, b, n, num_queries, C.R, C)
    value_rows = _of_head(value_rows, b, n, num_queries, C.R, C)
    queries = Queries(
        _load(_strided(query, query_stride, b, n, num_queries), i, C),
        _load(_dense(grad, b, n, num_queries, C), i, C),
        tl.load(log_sums + i, mask=exists, other=float("inf")),
        _of_head(delta, b, n, num_queries, 1, C),
        key_rows,
        value_rows,
        num_queries,
    )
    zero = i * 0.0
    state = zero, zero, zero, _zeros(C.QUERIES, C.WIDTH)
    left_end, band_end, end = _runs_of_keys(block * C.QUERIES, num_keys, offset, C)
    state = _query_run(state, queries, keys, i, 0, left_end, LEFT_TAIL, C)
    state = _query_run(state, queries, keys, i, left_end, band_end, BAND, C)
    if not C.CAUSAL:
        state = _query_run(state, queries, keys, i, band_end, end, RIGHT_TAIL, C)
    left_p, left_ds, right_ds, x = state
    # Weights add up to 1, or to 0 without keys.
    log_sum = tl.load(log_sums + i, mask=exists, other=float("inf"))
    right_p = tl.where(log_sum == float("inf"), 0.0, 1.0) - left_p
    tl.debug_barrier()
    for first in tl.range(0, C.R, ROWS, num_stages=1):
        row = first + tl.arange(0, ROWS)
        places = i[:, None] * C.R + row[None, :]
        stored = exists[:, None] & (row[None, :] < C.R)
        if C.VALUE:
            p = _load_band(value_rows, i, row, num_queries, num_keys, offset, 0.0, C)
            right_p -= tl.sum(p, 1)
            tl.store(value_rows + places, _add_tails(p, row, left_p, right_p, C), mask=stored)
        if C.KEY:
            ds = _load_band(key_rows, i, row, num_queries, num_keys, offset, 0.0, C)
            ds = _add_tails(ds, row, left_ds, right_ds, C)
            tl.store(key_rows + places, ds, mask=stored)
            table = _load_rows(key_table, key_table_step, n, first, C)
            x = _dot(ds.to(table.dtype), table, x)
    _store(_dense(d_query, b, n, num_queries, C), i, x, C)
