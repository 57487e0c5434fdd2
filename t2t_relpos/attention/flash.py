"""Relative attention by the flash-attention kernel of the backend, with memory linear in length.

PyTorch and, on a GPU, JAX have such a kernel. Tests also run this module with a plain function.

Within a tail of the score matrix (see `band`), the relative score depends on the query only, so it
can be added to the log-sum-exp later. Without it, a tail is causal attention, which flash kernels
compute. K is the clipping distance of the side:

    left     queries K to T - 1, keys 0 to T - K - 1
    right    queries 0 to T - K - 1, keys K to T - 1, both in reverse order

The band between the tails is computed in blocks of queries.

Forward: the kernel returns the outputs u of a tail and the log-sum-exp of its scores. A tail then
counts as one key, with the log-sum-exp as score and u as value. Attention becomes a softmax over
R scores for each query: one for each relative id.

    score of id r    q·k + q·a^K[r] in the band, log-sum-exp + q·a^K[r] of a tail
    weights w        softmax of the R scores; L is their log-sum-exp
    outputs          o = sum of w[r] (v + a^V[r]), where v of a tail is u

Backward: from a log-sum-exp L' and outputs o', a flash kernel computes the weights of its pairs,
exp(q·k - L'), and the gradients of their scores, weights (d·v - d·o'), where d is the gradient of
the outputs. With L' = L - q·a^K[r] and o' = o - a^V[r], these are those of the whole attention, and
so are the gradients of queries, keys and values that the kernel returns. The gradients of the R
scores give the rest.

Masks of keys: for kernels without masks, queries and keys get MASK_FEATURES extra features: 1 for
queries, 0 for keys, and for masked keys a negative number so large that their weights become zero.

Shapes: C queries of a block; R ids: left + right + 1, or left + 1 if causal.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

from t2t_relpos.attention import blockwise
from t2t_relpos.attention.band import Distances, extend_table
from t2t_relpos.attention.blocks import matmul, transpose
from t2t_relpos.attention.blockwise import (
    d_rows,
    differentiate,
    matmul_rows,
    products_with_rows,
)
from t2t_relpos.attention.tables import Results
from t2t_relpos.backend import (
    MASKED_SCORE,
    accumulation_dtype,
    add_at,
    arange,
    fill_masked,
    flash_kernel,
    ops,
    weights_and_log_sums,
)

# Kernels for GPUs expect depths that are multiples of 8.
MASK_FEATURES = 8
# Representable in float16. MASK_FEATURES times this number is added to the scores of masked keys.
MASK_FEATURE = -60000.0


def attend(call, sizes, kernel=flash_kernel):
    """Returns the outputs of a call with T = S.

    `kernel` is a module with the functions `has_masks`, `forward` and `backward` of
    `backend.torch_flash`.
    """
    outputs = differentiate(
        _with_rows_of_ids(call),
        lambda call: forward(call, sizes, kernel),
        lambda call, *results: backward(call, sizes, kernel, *results),
        lambda call: _outputs_by_blocks(call, sizes),
    )
    return Results(outputs)


def _with_rows_of_ids(call):
    """Returns the call with one table row for each of the R ids, and distances of 1 to T."""
    extended = call.distances.extended(causal=call.causal)
    # The rows of distances of T or more belong to no pair.
    distances = Distances(*(min(x, call.length_q) for x in extended))
    first = extended.left - distances.left
    num_rows = distances.left + 1 if call.causal else distances.num_ids
    tables = {}
    for name in ("key_table", "value_table"):
        table = getattr(call, name)
        if table is not None:
            table = extend_table(table, call.distances, extended)
            tables[name] = table[first : first + num_rows]
    return dataclasses.replace(
        call, max_relative_position=distances, mask=None, key_mask=combined_key_mask(call), **tables
    )


def is_key_mask(mask):
    """Returns whether a mask of rank 2 or 4 is equal for all heads and queries."""
    batch_axes = 1 if len(mask.shape) == 4 else 0
    return all(size == 1 for size in mask.shape[batch_axes:-1])


def combined_key_mask(call):
    """Returns the conjunction of a call's masks, which mask keys only, bool `[B, S]`, or None."""
    masks = []
    if call.mask is not None:
        masks.append(call.mask if len(call.mask.shape) == 2 else call.mask[:, 0, 0])
    if call.key_mask is not None:
        masks.append(call.key_mask)
    if not masks:
        return None
    mask = functools.reduce(ops.logical_and, (ops.cast(x, "bool") for x in masks))
    return ops.broadcast_to(mask, (ops.shape(call.query)[0], call.length_k))


def _outputs_by_blocks(call, sizes):
    """Returns the outputs for second derivatives and batches of gradients: kernels have neither."""
    if call.causal:
        # Blocks expect a row of later keys, which are masked.
        tables = {name: getattr(call, name) for name in ("key_table", "value_table")}
        tables = {n: ops.concatenate([x, x[-1:]]) for n, x in tables.items() if x is not None}
        call = dataclasses.replace(call, **tables)
    return blockwise.attend(call, sizes, unrolled=False).outputs


def forward(call, sizes, kernel):
    """Returns (outputs, a list of the `Saved` of all groups of heads). Tables have R rows."""
    groups = _groups_of_heads(call, sizes)
    # There are several groups for long sequences, where saved outputs would take much memory and
    # save little time.
    save_outputs = len(groups) == 1
    results = [forward_group(x, sizes.block, kernel, save_outputs=save_outputs) for x in groups]
    # Also concatenate a single tensor: PyTorch's graph refers to the result, and callers may change
    # it in place.
    return _join_heads([outputs for outputs, _ in results]), [saved for _, saved in results]


def backward(call, sizes, kernel, saved, d_outputs):
    """Returns a dict that maps names of tensors to gradients."""
    groups, terms, head = _groups_of_heads(call, sizes), [], 0
    for group, saved_group in zip(groups, saved):
        heads = slice(head, head + group.query.shape[1])
        of_group = d_outputs if len(groups) == 1 else d_outputs[:, heads]
        terms.append(backward_group(group, sizes.block, kernel, saved_group, of_group))
        head = heads.stop
    gradients = {}
    for name in tuple(terms[0]):
        of_groups = [of_group.pop(name) for of_group in terms]
        if name.endswith("table"):
            total = functools.reduce(ops.add, of_groups)
        else:
            total = _join_heads(of_groups) if len(groups) > 1 else of_groups[0]
        gradients[name] = ops.cast(total, getattr(call, name).dtype)
    return gradients


def _groups_of_heads(call, sizes):
    """Returns a list of calls, each with some of the heads. They limit the size of tensors."""
    batch, heads, length, depth = ops.shape(call.query)
    size = heads
    if isinstance(batch, int):
        size = max(1, min(heads, sizes.group // max(1, batch * length * depth)))
    if size == heads:
        return [call]
    tensors = {name: getattr(call, name) for name in ("query", "key", "value")}
    return [
        dataclasses.replace(call, **{n: x[:, i : i + size] for n, x in tensors.items()})
        for i in range(0, heads, size)
    ]


def _join_heads(groups):
    return ops.concatenate(groups, axis=1)


class Saved(NamedTuple):
    """Results of the forward pass that the gradient reads.

    Args:
        outputs: `[B, N, T, H]` in the accumulation dtype. None: `backward_group` computes them
            again.
        weights: weights of the R ids, `[B, N, T, R]`.
        tails: a `SavedTail` for each tail.
    """

    outputs: Any
    weights: Any
    tails: Any


class SavedTail(NamedTuple):
    """Results of a tail for its queries, in the order of the sequence.

    Args:
        outputs: outputs of the kernel `[B, N, T - K, H]`.
        log_sums: log-sum-exp of all scores, minus the relative score of the tail
            `[B, N, T - K]`. Fully masked queries have a number so large that all their weights are
            zero.
        state: further results of the kernel, for its backward pass.
    """

    outputs: Any
    log_sums: Any
    state: Any


def forward_group(call, block, kernel, *, save_outputs):
    """Returns (outputs, `Saved`) of a group of heads.

    `block` is the number of queries of a block of the band, unless the band is wider.
    """
    dtype, band, tails = call.query.dtype, Band.of(call, block), make_tails(call)
    of_tails = [tail.forward(call, kernel) for tail in tails]
    scores = _by_id(
        call,
        band.products(call.query, call.key),
        {tail.side: tail.pad_queries(log_sums) for tail, (_, log_sums, _) in zip(tails, of_tails)},
    )
    relative = products_with_rows(call.query, call.key_table, dtype)
    scores = scores if relative is None else scores + relative
    scores = fill_masked(scores, _is_valid(call, band), MASKED_SCORE)
    weights, log_sums, _ = weights_and_log_sums(scores)
    saved_tails = []
    for tail, (tail_outputs, _, state) in zip(tails, of_tails):
        shifted = tail.queries(log_sums)
        shifted = shifted if relative is None else shifted - tail.of_id(relative)
        saved_tails.append(SavedTail(tail_outputs, shifted[..., 0], state))
    outputs = _sum_values(call, band, tails, weights, saved_tails)
    saved = Saved(outputs if save_outputs else None, weights, saved_tails)
    return ops.cast(outputs, dtype), saved


def _sum_values(call, band, tails, weights, saved_tails):
    """Returns the outputs of a group of heads in the accumulation dtype."""
    outputs = band.sum_keys(band.matrix(weights), call.value)
    if call.value_table is not None:
        outputs = outputs + matmul_rows(weights, call.value_table, call.query.dtype)
    for tail, of_tail in zip(tails, saved_tails):
        terms = tail.of_id(weights) * _accumulate(of_tail.outputs)
        outputs = add_at(outputs, terms, tail.first_query)
    return outputs


def backward_group(call, block, kernel, saved, d_outputs):
    """Returns a dict that maps names of tensors to gradients.

    Gradients of tables are in the accumulation dtype, the others in that of the queries.
    """
    dtype, band, tails = call.query.dtype, Band.of(call, block), make_tails(call)
    d_outputs = _accumulate(d_outputs)
    d_weights = _by_id(
        call,
        band.products(ops.cast(d_outputs, dtype), call.value),
        {
            tail.side: tail.pad_queries(
                ops.sum(
                    tail.queries(d_outputs) * _accumulate(of_tail.outputs), axis=-1, keepdims=True
                )
            )
            for tail, of_tail in zip(tails, saved.tails)
        },
    )
    relative = products_with_rows(d_outputs, call.value_table, dtype)
    d_weights = d_weights if relative is None else d_weights + relative
    weights = saved.weights
    row_sums = ops.sum(weights * d_weights, axis=-1, keepdims=True)
    d_scores = weights * (d_weights - row_sums)
    gradients = {}
    matrix = band.matrix(d_scores)
    d_query = band.sum_keys(matrix, call.key)
    if call.key_table is not None:
        d_query = d_query + matmul_rows(d_scores, call.key_table, dtype)
        gradients["key_table"] = d_rows(d_scores, call.query, call.key_table, dtype)
    if call.value_table is not None:
        gradients["value_table"] = d_rows(weights, d_outputs, call.value_table, dtype)
    gradients |= {
        "query": d_query,
        "key": band.sum_queries(matrix, call.query),
        "value": band.sum_queries(band.matrix(weights), ops.cast(d_outputs, dtype)),
    }
    outputs = saved.outputs
    if outputs is None:
        outputs = _sum_values(call, band, tails, weights, saved.tails)
    for tail, of_tail in zip(tails, saved.tails):
        terms = tail.backward(call, kernel, of_tail, outputs, d_outputs)
        starts = tail.first_query, tail.first_key, tail.first_key
        for name, term, start in zip(("query", "key", "value"), terms, starts):
            gradients[name] = add_at(gradients[name], term, start)
    return {
        # The gradients of tables of several groups are added in the accumulation dtype.
        name: x if name.endswith("table") else ops.cast(x, dtype)
        for name, x in gradients.items()
    }


def _by_id(call, of_band, of_tails):
    """Returns a tensor `[B, N, T, R]` by relative id, with zeros for tails that are missing.

    `of_band` has the diagonals of the band, from left to right, and `of_tails` entries
    `[B, N, T, 1]` by side.
    """
    sides = ("left",) if call.causal else ("left", "right")
    left, *right = (
        of_tails[side] if side in of_tails else ops.zeros_like(of_band[..., :1]) for side in sides
    )
    return ops.concatenate([left, of_band, *right], axis=-1)


def _is_valid(call, band):
    """Returns bool `[1 or B, 1, T, R]`: whether a query may attend to a key with an id."""
    length, (left, right) = call.length_q, call.distances
    mask = ops.ones((1, length), dtype="bool") if call.key_mask is None else call.key_mask
    padded = ops.pad(mask, [(0, 0), (left - 1, right - 1)])
    indices = arange(length)[:, None] + arange(band.diagonals)
    of_band = ops.take(padded, indices, axis=1)
    positions = arange(length)
    # Versions of JAX compile a cumulative sum to different operations, some of them slow.
    before = positions - left >= first_position(mask)
    columns = [before[..., None], of_band]
    if not call.causal:
        after = positions + right < length - first_position(ops.flip(mask, 1))
        columns.append(after[..., None])
    return ops.expand_dims(ops.concatenate(columns, axis=-1), 1)


def first_position(mask):
    """Returns the position of the first True of a mask `[B, T]`, T if there is none, `[B, 1]`."""
    length = mask.shape[1]
    return ops.min(ops.where(mask, arange(length), length), axis=1, keepdims=True)


class Tail(NamedTuple):
    """The pairs whose key is K or more positions before (left) or after (right) the query.

    Args:
        side: "left" or "right".
        length: number of queries and of keys, T - K.
        distance: K, the clipping distance of this side.
    """

    side: str
    length: int
    distance: int

    @property
    def first_query(self):
        return self.distance if self.side == "left" else 0

    @property
    def first_key(self):
        return 0 if self.side == "left" else self.distance

    def queries(self, x):
        """Returns the queries of the tail, `[B, N, T, X]` -> `[B, N, T - K, X]`."""
        return x[:, :, self.first_query : self.first_query + self.length]

    def pad_queries(self, x):
        """Returns `[B, N, T - K, X]` padded with zeros, `[B, N, T, X]`."""
        before, after = self.first_query, self.distance - self.first_query
        return ops.pad(x, [(0, 0), (0, 0), (before, after), (0, 0)])

    def of_id(self, x):
        """Returns the column of the tail for its queries, `[B, N, T, R]` -> `[B, N, T - K, 1]`."""
        return self.queries(x[..., :1] if self.side == "left" else x[..., -1:])

    def row(self, table):
        """Returns the row of the tail `[H]`."""
        return table[0 if self.side == "left" else -1]

    def order(self, x, axis=2):
        """Converts between the order of the sequence and that in which the tail is causal."""
        return x if self.side == "left" else ops.flip(x, axis)

    def forward(self, call, kernel):
        """Returns (outputs, log-sum-exp `[B, N, T - K, 1]`, state) of the kernel.

        Outputs and log-sum-exp are zeros for queries whose keys are all masked.
        """
        outputs, log_sums, state = kernel.forward(*self._inputs(call, kernel))
        outputs = outputs[..., : call.value.shape[-1]]
        outputs, log_sums = self.order(outputs), self.order(log_sums)[..., None]
        if call.key_mask is not None:
            has_key = arange(self.length) >= first_position(self._key_mask(call))
            has_key = self.order(has_key, axis=1)[:, None, :, None]
            outputs, log_sums = (ops.where(has_key, x, 0) for x in (outputs, log_sums))
        return outputs, _accumulate(log_sums), state

    def backward(self, call, kernel, saved, outputs, d_outputs):
        """Returns the gradients of the tail's queries, keys and values.

        `outputs` and `d_outputs` are those of the whole attention.
        """
        outputs = self.queries(outputs)
        if call.value_table is not None:
            outputs = outputs - _accumulate(self.row(call.value_table))
        outputs, d_outputs = (
            self.order(ops.cast(x, call.query.dtype)) for x in (outputs, self.queries(d_outputs))
        )
        query, key, value, key_mask = self._inputs(call, kernel)
        if value.shape[-1] > call.value.shape[-1]:
            outputs, d_outputs = _append_feature(outputs, 0.0), _append_feature(d_outputs, 0.0)
        results = outputs, self.order(saved.log_sums), saved.state
        gradients = kernel.backward(query, key, value, key_mask, results, d_outputs)
        depth = call.query.shape[-1]
        return [self.order(_accumulate(x[..., :depth])) for x in gradients]

    def _inputs(self, call, kernel):
        """Returns the kernel's queries, keys, values, and mask unless it is passed as features."""
        keys = slice(self.first_key, self.first_key + self.length)
        tensors = self.queries(call.query), call.key[:, :, keys], call.value[:, :, keys]
        query, key, value = map(self.order, tensors)
        key_mask = self._key_mask(call)
        if key_mask is None or kernel.has_masks(query, query.shape[-1] + MASK_FEATURES):
            return query, key, value, key_mask
        feature = ops.where(key_mask, 0.0, MASK_FEATURE)[:, None, :, None]
        query, value = _append_feature(query, 1.0), _append_feature(value, 0.0)
        return query, _append_feature(key, feature), value, None

    def _key_mask(self, call):
        """Returns the mask of the kernel's keys `[B, T - K]`, or None."""
        if call.key_mask is None:
            return None
        keys = call.key_mask[:, self.first_key : self.first_key + self.length]
        return self.order(keys, axis=1)


def make_tails(call):
    """Returns the tails of a call that have pairs: none if there are no batch entries."""
    if 0 in [size for size in ops.shape(call.query) if isinstance(size, int)]:
        return ()
    sides = zip(("left",) if call.causal else ("left", "right"), call.distances)
    tails = [Tail(side, call.length_q - distance, distance) for side, distance in sides]
    return tuple(tail for tail in tails if tail.length > 0)


class Band(NamedTuple):
    """The entries of the band, in blocks of queries.

    A block of C queries reads C + D - 1 consecutive keys, where D is the number of diagonals.

    Args:
        length: T.
        distances: the `Distances`.
        block: C, at least D - 1.
    """

    length: int
    distances: Distances
    block: int

    @property
    def diagonals(self):
        """D, the number of diagonals."""
        return self.distances.num_diagonals

    @property
    def before(self):
        """Number of keys of the first block that are before the first key of the sequence."""
        return -self.distances.band_keys(0, self.block)[0]

    @classmethod
    def of(cls, call, block):
        """Returns the band of a call, with blocks of at least `block` queries if T is larger."""
        block = max(min(block, call.length_q), call.distances.num_diagonals - 1)
        return cls(call.length_q, call.distances, block)

    @property
    def num_blocks(self):
        return math.ceil(self.length / self.block)

    def products(self, query, key):
        """Returns the products of each query with the keys of the band, `[B, N, T, D]`."""
        products = matmul(self._blocks(query), transpose(self._windows(key)), query.dtype)
        return self._join(self._take_diagonals(products))

    def matrix(self, by_id):
        """Returns the entries of the band of `[B, N, T, R]`, `[B, N, blocks, C, C + D - 1]`.

        Entries outside of the band are zero.
        """
        return self._as_matrix(self._blocks(by_id[..., 1 : 1 + self.diagonals]))

    def sum_keys(self, matrix, value):
        """Returns the sums of the values of the band, weighted by a `matrix`."""
        return self._join(matmul(matrix, self._windows(value), value.dtype))

    def sum_queries(self, matrix, query):
        """Returns the sums of the queries whose band contains a key, weighted, for each key.

        With `sum_keys`, it gives the gradients of `products` and `sum_keys`.
        """
        return self._add_windows(matmul(transpose(matrix), self._blocks(query), query.dtype))

    def _blocks(self, x):
        """Returns the blocks of a tensor by query, `[B, N, T, X]` -> `[B, N, blocks, C, X]`."""
        batch, heads, _, depth = ops.shape(x)
        padding = self.num_blocks * self.block - self.length
        if padding:
            x = ops.pad(x, [(0, 0), (0, 0), (0, padding), (0, 0)])
        return ops.reshape(x, (batch, heads, self.num_blocks, self.block, depth))

    def _join(self, blocks):
        """The transpose of `_blocks`."""
        batch, heads, _, _, depth = ops.shape(blocks)
        shape = batch, heads, self.num_blocks * self.block, depth
        return ops.reshape(blocks, shape)[:, :, : self.length]

    def _windows(self, x):
        """Returns the keys that each block reads, `[B, N, blocks, C + D - 1, H]`."""
        batch, heads, _, depth = ops.shape(x)
        count, after = self.num_blocks + 1, (self.num_blocks + 1) * self.block - self.length
        x = ops.pad(x, [(0, 0), (0, 0), (self.before, after - self.before), (0, 0)])
        x = ops.reshape(x, (batch, heads, count, self.block, depth))
        return ops.concatenate([x[:, :, :-1], x[:, :, 1:, : self.diagonals - 1]], axis=3)

    def _add_windows(self, x):
        """The transpose of `_windows`."""
        batch, heads, count, _, depth = ops.shape(x)
        padding = self.block - self.diagonals + 1
        first = ops.pad(x[:, :, :, : self.block], [(0, 0), (0, 0), (0, 1), (0, 0), (0, 0)])
        second = ops.pad(x[:, :, :, self.block :], [(0, 0), (0, 0), (1, 0), (0, padding), (0, 0)])
        shape = batch, heads, (count + 1) * self.block, depth
        total = ops.reshape(first + second, shape)
        return total[:, :, self.before : self.before + self.length]

    def _take_diagonals(self, matrix):
        """Returns the diagonals of `[.., C, C + D - 1]`, `[.., C, D]`.

        Read with rows that are longer by one entry, each row starts one entry later.
        """
        *lead, rows, width = ops.shape(matrix)
        flat = ops.reshape(matrix, (*lead, rows * width))[..., : (rows - 1) * (width + 1)]
        shifted = ops.reshape(flat, (*lead, rows - 1, width + 1))[..., : self.diagonals]
        return ops.concatenate([shifted, matrix[..., -1:, rows - 1 :]], axis=-2)

    def _as_matrix(self, diagonals):
        """The transpose of `_take_diagonals`. The other entries are zero."""
        *lead, rows, _ = ops.shape(diagonals)
        width = self.block + self.diagonals - 1
        x = ops.pad(diagonals, [(0, 0)] * (len(lead) + 1) + [(0, width + 1 - self.diagonals)])
        x = ops.reshape(x, (*lead, rows * (width + 1)))[..., : rows * width]
        return ops.reshape(x, (*lead, rows, width))


def _append_feature(x, feature):
    """Appends MASK_FEATURES times a number, or a feature `[B, 1, T, 1]`, to `[B, N, T, H]`."""
    feature = ops.cast(feature, x.dtype)
    feature = ops.broadcast_to(feature, (*ops.shape(x)[:3], MASK_FEATURES))
    return ops.concatenate([x, feature], axis=-1)


def _accumulate(x):
    """Casts to the accumulation dtype."""
    return ops.cast(x, accumulation_dtype(x.dtype))
