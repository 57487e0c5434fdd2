"""Attention by the flash-attention kernel of the backend, with memory linear in length.

PyTorch and, on a GPU, JAX have such a kernel. Tests replace it with a module in keras.ops.

Within a part of a tail (see `band`), the score by id of a query is the same for all keys, so it can
be added to the log-sum-exp later. Without it, a part is plain attention, causal or not, which flash
kernels compute. With a sliding window, a part has blocks of queries and keys, which one call
computes. The band between the tails is computed in blocks of queries.

Forward: the kernel returns the outputs u of a part and the log-sum-exp of its scores. A part then
counts as one key, with the score log-sum-exp + z[r] and the value u. Attention becomes a softmax
over few scores for each query: one for each part, and one for each distance of the band.

    scores       q·k + z[r] in the window, log-sum-exp + z[r] of a part with the id r
    weights p    softmax of the scores; L is their log-sum-exp
    outputs      sum of p·v, where v of a part is u

Backward: with the gradients d of the outputs, d_w of the weights by id and d_L, the gradient of a
score is

    p (d·v + d_w[r] - delta)    where delta = sum of p (d·v + d_w[r]) - d_L

From a log-sum-exp L' and outputs o', a flash kernel computes the weights of its pairs,
exp(q·k - L'), and the gradients of their scores, weights (d·v - d·o'). With L' = L - z[r] and any
o' for which d·o' = delta - d_w[r], weights and gradients equal those of the whole attention. So do
the gradients of queries, keys and values that the kernel returns.

Grouped queries: keys and values are repeated for the heads that share them.

Masks of keys: for kernels without masks, queries and keys get MASK_FEATURES extra features: 1 for
queries, 0 for keys, and for masked keys a negative number so large that their weights become zero.

Shapes: C queries of a block; D distances of the window of a query; P columns: tail parts to the
left, distances of the window, tail parts to the right.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

from t2t_relpos.attention import skew
from t2t_relpos.attention.band import Distances, slice_padded, tail_parts
from t2t_relpos.attention.heads import multiply, repeat_keys, transpose
from t2t_relpos.attention.tables import Results, differentiate
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
# Added to sums of absolute values, against a division by 0. It changes no other sum.
SMALLEST = 1e-37


def attend(call, sizes, kernel=flash_kernel):
    """Returns the `Results` of a call with known lengths and offset.

    `kernel` is a module with the functions `has_masks`, `forward` and `backward` of
    `backend.torch_flash`. It supports neither second derivatives nor batches of gradients. For
    these, the full matrix is differentiated.
    """
    key, value = (repeat_keys(x, call.query.shape[1]) for x in (call.key, call.value))
    key_mask, offset = combined_key_mask(call), call.query_offset
    if key_mask is None and call.sliding_window is not None:
        if offset < 0 or offset + call.length_q > call.length_k:  # required by `tail_parts`
            key_mask = ops.ones((ops.shape(key)[0], call.length_k), dtype="bool")
    call = dataclasses.replace(call, key=key, value=value, mask=None, key_mask=key_mask)
    return differentiate(
        call,
        lambda call: forward(call, sizes, kernel),
        lambda call, *results: backward(call, sizes, kernel, *results),
        skew.attend_by_id,
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


def forward(call, sizes, kernel):
    """Returns (`Results`, a list of the `Saved` of all groups of heads)."""
    groups = [_Group(each, sizes, kernel).forward() for _, each in _groups_of_heads(call, sizes)]
    return Results(*map(_join_heads, zip(*(results for results, _ in groups)))), [
        saved for _, saved in groups
    ]


def backward(call, sizes, kernel, saved, d_results):
    """Returns a dict that maps names of tensors to gradients."""
    terms = []
    for (heads, group), of_group in zip(_groups_of_heads(call, sizes), saved):
        of_heads = Results(*(x if x is None else x[:, heads] for x in d_results))
        terms.append(_Group(group, sizes, kernel).backward(of_group, of_heads))
    gradients = {name: _join_heads([x.pop(name) for x in terms]) for name in tuple(terms[0])}
    return {name: ops.cast(x, getattr(call, name).dtype) for name, x in gradients.items()}


def _groups_of_heads(call, sizes):
    """Returns a list of (slice of heads, call of these heads). They limit the size of tensors."""
    batch, heads, length, depth = ops.shape(call.query)
    size = heads
    if isinstance(batch, int):
        size = max(1, min(heads, sizes.group // max(1, batch * length * depth)))
    if size == heads:
        return [(slice(None), call)]
    groups = [slice(i, i + size) for i in range(0, heads, size)]
    names = "query", "key", "value", "scores_by_id"
    tensors = {name: getattr(call, name) for name in names}
    tensors = {name: x for name, x in tensors.items() if x is not None}
    return [
        (group, dataclasses.replace(call, **{n: x[:, group] for n, x in tensors.items()}))
        for group in groups
    ]


def _join_heads(groups):
    if len(groups) == 1 or groups[0] is None:
        return groups[0]
    return ops.concatenate(groups, axis=1)


class Saved(NamedTuple):
    """Results of the forward pass that the gradient reads.

    Args:
        weights: of tail parts and of the distances of the window, `[B, N, T, P]`.
        parts: a `SavedPart` for each tail part.
    """

    weights: Any
    parts: Any


class SavedPart(NamedTuple):
    """Results of a tail part for its queries, in the order of the sequence.

    Args:
        outputs: outputs of the kernel `[B, N, queries, H]`.
        shifted_log_sums: L', log-sum-exp of all scores minus the score by id of the tail part,
            `[B, N, queries, 1]`. Fully masked queries have a number so large that all their
            weights are zero.
        state: further results of the kernel, for its backward pass.
    """

    outputs: Any
    shifted_log_sums: Any
    state: Any


class _Group:
    """Forward and backward pass of a group of heads.

    Args:
        call: an `AttentionCall`.
        sizes: `Sizes` with the number of queries of a block, unless the window is wider.
        kernel: as in `attend`.
    """

    def __init__(self, call, sizes, kernel):
        self._call, self._flash = call, kernel
        own, distances = _distances(call, sizes.smallest)
        self._dtype, self._windows = call.query.dtype, Windows.of(call, distances, sizes.block)
        # Kernels refuse empty tensors.
        is_empty = 0 in [size for size in ops.shape(call.query) if isinstance(size, int)]
        self._parts = [] if is_empty else tail_parts(call, distances)
        sides = [part.side for part in self._parts]
        self._num_left = sides.count("left")
        # Numbers of columns with the first id, and with the last one.
        self._first = self._num_left + distances.left - own.left
        self._last = sides.count("right") + distances.right - own.right

    def forward(self):
        """Returns (`Results`, `Saved`)."""
        call, parts, windows = self._call, self._parts, self._windows
        found = [_attend_to_part(call, self._flash, part) for part in parts]
        part_log_sums = [
            part.pad_queries(x, call.length_q) for part, (_, x, _) in zip(parts, found)
        ]
        scores = self._columns(part_log_sums, windows.products(call.query, call.key))
        relative = None
        if call.scores_by_id is not None:
            relative = self._expand(call.scores_by_id)
            scores = scores + relative
        scores = fill_masked(scores, self._is_valid(), MASKED_SCORE)
        weights, log_sums, _ = weights_and_log_sums(scores)
        outputs = windows.sum_keys(windows.matrix(self._window(weights)), call.value)
        saved = []
        for index, (part, (part_outputs, _, state)) in enumerate(zip(parts, found)):
            shifted = log_sums  # L' of the module's docstring
            if relative is not None:
                shifted = shifted - self._column(relative, index)
            saved.append(SavedPart(part_outputs, part.queries(shifted), state))
            terms = part.queries(self._column(weights, index)) * _accumulate(part_outputs)
            outputs = _add_without_padding(outputs, terms, part.first_query)
        by_id = self._sum(weights) if call.needs_weights_by_id else None
        if call.needs_log_sums:
            # `weights_and_log_sums` returns -MASKED_SCORE for fully masked queries.
            log_sums = ops.where(log_sums < -MASKED_SCORE, log_sums, MASKED_SCORE)
        return Results(outputs, by_id, log_sums if call.needs_log_sums else None), Saved(
            weights, saved
        )

    def backward(self, saved, d_results):
        """Returns a dict that maps names of tensors to gradients, in the accumulation dtype."""
        call, parts, windows, weights = self._call, self._parts, self._windows, saved.weights
        d_outputs = _accumulate(d_results.outputs)
        d_weights_of_parts = [
            ops.sum(part.queries(d_outputs) * _accumulate(x.outputs), axis=-1, keepdims=True)
            for part, x in zip(parts, saved.parts)
        ]
        d_weights_of_parts = [
            part.pad_queries(x, call.length_q) for part, x in zip(parts, d_weights_of_parts)
        ]
        narrow, d_by_id = ops.cast(d_outputs, self._dtype), None
        d_weights = self._columns(d_weights_of_parts, windows.products(narrow, call.value))
        if d_results.weights_by_id is not None:
            d_by_id = self._expand(d_results.weights_by_id)
            d_weights = d_weights + d_by_id
        delta = ops.sum(weights * d_weights, axis=-1, keepdims=True)
        if d_results.log_sums is not None:
            delta = delta - d_results.log_sums
        d_scores = weights * (d_weights - delta)
        matrix = windows.matrix(self._window(d_scores))
        gradients = {
            "query": windows.sum_keys(matrix, call.key),
            "key": windows.sum_queries(matrix, call.query),
            "value": windows.sum_queries(windows.matrix(self._window(weights)), narrow),
        }
        if call.scores_by_id is not None:
            gradients["scores_by_id"] = self._sum(d_scores)
        unit = _unit(d_outputs) if parts else None
        for index, (part, saved_part) in enumerate(zip(parts, saved.parts)):
            d_part_by_id = 0 if d_by_id is None else self._column(d_by_id, index)
            # o' of the module's docstring.
            part_outputs = part.queries(unit) * part.queries(delta - d_part_by_id)
            gradients_of_part = part_outputs, part.queries(d_outputs)
            terms = _gradients_of_part(call, self._flash, part, saved_part, *gradients_of_part)
            starts = part.first_query, part.first_key, part.first_key
            for name, term, start in zip(("query", "key", "value"), terms, starts):
                gradients[name] = _add_without_padding(gradients[name], term, start)
        return gradients

    # Columns `[B, N, T, P]`: parts of the left tail, the window, parts of the right tail.

    def _columns(self, of_parts, of_window):
        """Returns the columns of a list of `[B, N, T, 1]` and of `[B, N, T, D]`."""
        left = self._num_left
        return ops.concatenate([*of_parts[:left], of_window, *of_parts[left:]], axis=-1)

    def _column(self, columns, index):
        """Returns the column of a tail part, `[B, N, T, 1]`."""
        position = index if index < self._num_left else index + self._windows.width
        return columns[..., position : position + 1]

    def _window(self, columns):
        """Returns the columns of the window, `[B, N, T, D]`."""
        return columns[..., self._num_left : self._num_left + self._windows.width]

    def _expand(self, by_id):
        """Returns the columns of a tensor by relative id `[B, N, T, R]`."""
        if self._has_columns_by_id():
            return by_id
        others = by_id[..., 1:] if self._call.causal else by_id[..., 1:-1]
        first, last = by_id[..., :1], by_id[..., -1:]
        return ops.concatenate([*self._first * [first], others, *self._last * [last]], axis=-1)

    def _sum(self, columns):
        """The transpose of `_expand`: sums of columns by relative id, `[B, N, T, R]`."""
        if self._has_columns_by_id():
            return columns
        end = columns.shape[-1] - self._last
        tails = [columns[..., : self._first], columns[..., end:]][: 1 if self._call.causal else 2]
        first, *last = (ops.sum(x, axis=-1, keepdims=True) for x in tails)
        return ops.concatenate([first, columns[..., self._first : end], *last], axis=-1)

    def _has_columns_by_id(self):
        return (self._first, self._last) == (1, 0 if self._call.causal else 1)

    def _is_valid(self):
        """Returns bool `[1 or B, 1, T, P]`: whether a query may attend to a key of a column."""
        call = self._call
        of_parts = [part.pad_queries(part.has_key(call), call.length_q) for part in self._parts]
        of_window = self._windows.has_key(call.key_mask)[:, None]
        # Tail parts may have one mask for the batch, and the window one for each entry.
        shape = *ops.shape(of_window)[:-1], 1
        return self._columns([ops.broadcast_to(x, shape) for x in of_parts], of_window)


def _distances(call, narrowest):
    """Returns the `Distances` of a call, and those of its windows.

    The latter include all distances of a sliding window, if fewer than `narrowest` keys remain for
    the tail parts of a query.
    """
    own = call.distances.extended()
    if call.sliding_window is None:
        return own, own
    window = call.sliding_window
    left, right = (window if window - x < narrowest else x for x in own)
    return own, Distances(left, own.right if call.causal else right)


def _unit(d):
    """Returns vectors o with `d·o = 1`, or zeros where d is zero.

    The latter assumes that the gradients of weights by id and log-sums are zero where d is zero.
    """
    return ops.sign(d) / (ops.sum(ops.abs(d), axis=-1, keepdims=True) + SMALLEST)


def _attend_to_part(call, kernel, part):
    """Returns (outputs, log-sum-exp `[B, N, queries, 1]`, state) of the kernel.

    Outputs and log-sum-exp are zeros for queries whose keys are all masked.
    """
    *tensors, key_mask = _inputs(call, kernel, part)
    outputs, log_sums, state = kernel.forward(*tensors, key_mask, part.is_causal)
    outputs, log_sums = outputs[..., : call.value.shape[-1]], log_sums[..., None]
    outputs, log_sums = (part.join(x, call.query.shape[1]) for x in (outputs, log_sums))
    if call.key_mask is not None:
        has_key = part.has_key(call)
        outputs, log_sums = (ops.where(has_key, x, 0) for x in (outputs, log_sums))
    return outputs, _accumulate(log_sums), state


def _gradients_of_part(call, kernel, part, saved, outputs, d_outputs):
    """Returns the gradients of the queries, keys and values of a tail part.

    `outputs` are o', and `d_outputs` the gradients of the outputs, `[B, N, queries, H]`.
    """
    outputs, d_outputs = (part.split(ops.cast(x, call.query.dtype)) for x in (outputs, d_outputs))
    query, key, value, key_mask = _inputs(call, kernel, part)
    if value.shape[-1] > call.value.shape[-1]:
        outputs, d_outputs = _append_feature(outputs, 0.0), _append_feature(d_outputs, 0.0)
    results = outputs, part.split(saved.shifted_log_sums)[..., 0], saved.state
    gradients = kernel.backward(query, key, value, key_mask, results, d_outputs, part.is_causal)
    depth, heads = call.query.shape[-1], call.query.shape[1]
    return [part.join(_accumulate(x[..., :depth]), heads) for x in gradients]


def _inputs(call, kernel, part):
    """Returns the kernel's queries, keys, values, and mask unless it is passed as features."""
    tensors = part.queries(call.query), part.keys(call.key), part.keys(call.value)
    query, key, value = map(part.split, tensors)
    if call.key_mask is None:
        return query, key, value, None
    mask = part.keys(call.key_mask, 1)[:, None, :, None]
    if part.num_blocks > 1:
        batch, heads = ops.shape(call.query)[:2]
        mask = ops.broadcast_to(mask, (batch, heads, part.num_keys, 1))
    mask = part.split(mask)
    if kernel.has_masks(query, query.shape[-1] + MASK_FEATURES):
        return query, key, value, mask[..., 0]
    feature = ops.where(mask, 0.0, MASK_FEATURE)
    query, value = _append_feature(query, 1.0), _append_feature(value, 0.0)
    return query, _append_feature(key, feature), value, None


def _add_without_padding(total, terms, start):
    """Returns `[B, N, T, X]` plus terms from a position on, except for those of padding."""
    first, end = max(start, 0), min(start + terms.shape[2], total.shape[2])
    if end - first < terms.shape[2]:
        terms = terms[:, :, first - start : end - start]
    return add_at(total, terms, first)


class Windows(NamedTuple):
    """The window of each query: its D keys in the band, and near the ends fewer.

    They are computed in blocks of C queries, which read C + D - 1 consecutive keys.

    Args:
        length_q: T.
        length_k: S.
        first: position of the first key of the window of query 0. It may be negative.
        width: D, the number of distances of the window.
        block: C, at least D - 1.
    """

    length_q: int
    length_k: int
    first: int
    width: int
    block: int

    @classmethod
    def of(cls, call, distances, block):
        """Returns the windows of a call, in blocks of `block` or T queries, but at least D - 1."""
        first, end = distances.keys_between(call.query_offset, 1)
        block = max(min(block, call.length_q), end - first - 1)
        return cls(call.length_q, call.length_k, first, end - first, block)

    @property
    def num_blocks(self):
        return math.ceil(self.length_q / self.block)

    def products(self, query, key):
        """Returns the products of each query with the keys of its window, `[B, N, T, D]`."""
        products = multiply(self._blocks(query), transpose(self._keys(key)), query.dtype)
        return self._join(self._take_diagonals(products))

    def matrix(self, columns):
        """Returns `[B, N, T, D]` as a matrix of queries and keys, `[B, N, blocks, C, C + D - 1]`.

        Entries outside of the windows are zero.
        """
        return self._as_matrix(self._blocks(columns))

    def sum_keys(self, matrix, value):
        """Returns the sums of the values of the windows, weighted by a `matrix`."""
        return self._join(multiply(matrix, self._keys(value), value.dtype))

    def sum_queries(self, matrix, query):
        """Returns the sums of the queries whose window contains a key, weighted, for each key.

        With `sum_keys`, it gives the gradients of `products` and `sum_keys`.
        """
        return self._add_keys(multiply(transpose(matrix), self._blocks(query), query.dtype))

    def has_key(self, mask):
        """Returns whether the keys of a window exist and are unmasked, bool `[1 or B, T, D]`.

        `mask` is bool `[B, S]`, or None.
        """
        index = arange(self.length_q)[:, None] + arange(self.width)
        if mask is None:
            keys = index + self.first
            return ops.logical_and(keys >= 0, keys < self.length_k)[None]
        keys = slice_padded(mask, self.first, self.length_q + self.width - 1, axis=1)
        return ops.take(keys, index, axis=1)

    def _blocks(self, x):
        """Returns the blocks of a tensor by query, `[B, N, T, X]` -> `[B, N, blocks, C, X]`."""
        batch, heads, _, depth = ops.shape(x)
        x = slice_padded(x, 0, self.num_blocks * self.block, axis=2)
        return ops.reshape(x, (batch, heads, self.num_blocks, self.block, depth))

    def _join(self, blocks):
        """The transpose of `_blocks`."""
        batch, heads, _, _, depth = ops.shape(blocks)
        shape = batch, heads, self.num_blocks * self.block, depth
        return ops.reshape(blocks, shape)[:, :, : self.length_q]

    def _keys(self, x):
        """Returns the keys that each block reads, `[B, N, blocks, C + D - 1, H]`."""
        batch, heads, _, depth = ops.shape(x)
        count = self.num_blocks + 1
        x = slice_padded(x, self.first, count * self.block, axis=2)
        x = ops.reshape(x, (batch, heads, count, self.block, depth))
        return ops.concatenate([x[:, :, :-1], x[:, :, 1:, : self.width - 1]], axis=3)

    def _add_keys(self, x):
        """The transpose of `_keys`."""
        batch, heads, count, _, depth = ops.shape(x)
        padding = self.block - self.width + 1
        first = ops.pad(x[:, :, :, : self.block], [(0, 0), (0, 0), (0, 1), (0, 0), (0, 0)])
        second = ops.pad(x[:, :, :, self.block :], [(0, 0), (0, 0), (1, 0), (0, padding), (0, 0)])
        size = (count + 1) * self.block
        total = ops.reshape(first + second, (batch, heads, size, depth))
        return slice_padded(total, -self.first, self.length_k, axis=2)

    def _take_diagonals(self, matrix):
        """Returns the diagonals of `[.., C, C + D - 1]`, `[.., C, D]`.

        Read with rows that are longer by one entry, each row starts one entry later.
        """
        *lead, rows, width = ops.shape(matrix)
        flat = ops.reshape(matrix, (*lead, rows * width))[..., : (rows - 1) * (width + 1)]
        shifted = ops.reshape(flat, (*lead, rows - 1, width + 1))[..., : self.width]
        return ops.concatenate([shifted, matrix[..., -1:, rows - 1 :]], axis=-2)

    def _as_matrix(self, diagonals):
        """The transpose of `_take_diagonals`. The other entries are zero."""
        *lead, rows, _ = ops.shape(diagonals)
        width = self.block + self.width - 1
        x = ops.pad(diagonals, [(0, 0)] * (len(lead) + 1) + [(0, width + 1 - self.width)])
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
