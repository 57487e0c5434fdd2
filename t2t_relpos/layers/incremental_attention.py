"""Attention one position at a time, as decoding needs it."""

from keras import ops

from t2t_relpos.attention.masks import key_padding_mask
from t2t_relpos.layers import call_checks


class IncrementalAttention:
    """Steps with a cache, for a `MultiHeadBase` that has `attend` and a `sliding_window`."""

    def start_cache(self, batch_size, max_length):
        """An empty cache of `max_length` positions for `step`."""

        def zeros(depth):
            shape = (batch_size, self.num_heads, max_length, depth)
            return ops.zeros(shape, dtype=self.compute_dtype)

        return {"key": zeros(self.key_dim), "value": zeros(self.value_dim)}

    def step(self, query, cache, position):
        """One position of causal self-attention, with the earlier ones from the cache.

        Args:
            query: `[rows, 1, D]`.
            cache: as `start_cache` and this method return it.
            position: int32 `[rows]`, every row's own.

        Returns:
            (outputs `[rows, 1, D]`, the cache with this position written).

        Raises:
            ValueError: if a position is past the end of the cache. In a compiled graph, the
                outputs are NaN instead.
        """
        call_checks.built(self)
        length = ops.shape(cache["key"])[2]
        call_checks.cache_position(position, length)
        position = ops.cast(position, "int32")
        slots = ops.arange(length, dtype="int32")[None, :]
        here = (slots == position[:, None])[:, None, :, None]
        keys = ops.where(here, self.project_key(query), cache["key"])
        values = ops.where(here, self.project_value(query), cache["value"])
        seen = slots <= position[:, None]
        if self.sliding_window is not None:
            seen = ops.logical_and(seen, position[:, None] - slots < self.sliding_window)
        outputs, _ = self.attend(
            self.project_query(query),
            keys,
            values,
            mask=key_padding_mask(seen),
            query_offset=position,
        )
        # A compiled graph can't raise: positions past the end of the cache give NaN.
        fits = (position < length)[:, None, None, None]
        outputs = ops.where(fits, outputs, ops.cast(float("nan"), outputs.dtype))
        return self.project_output(outputs, query), {"key": keys, "value": values}

    def attend_with_cache(
        self, query, value, cache, update_index=None, *, mask=None, query_offset=None, causal=False
    ):
        """Attends to a cache, after writing the keys and values of `value` into it.

        Args:
            query: `[B, T, D]`.
            value: `[B, L, D]`, sequence of the keys and values to write.
            cache: `[B, 2, S, N, H]`, keys and values, as in KerasHub.
            update_index: cache position of `value`, an int or a scalar tensor. None: nothing is
                written.
            mask: bool, broadcasts to `[B, N, T, S]`; True = attend.
            query_offset: key position of query 0. Default `S - T`.
            causal: whether keys after a query are masked.

        Returns:
            (outputs `[B, T, D]`, the cache).

        Raises:
            ValueError: if the written positions are known to be past the end of the cache.
        """
        call_checks.built(self)
        if update_index is not None:
            last = update_index + ops.shape(value)[1] - 1
            call_checks.cache_position(ops.convert_to_tensor(last), cache.shape[2])
            update = ops.stack([self.key_dense(value), self.value_dense(value)], axis=1)
            update = ops.cast(update, cache.dtype)
            cache = ops.slice_update(cache, (0, 0, update_index, 0, 0), update)
        keys, values = (ops.transpose(cache[:, i], (0, 2, 1, 3)) for i in range(2))
        outputs, _ = self.attend(
            self.project_query(query),
            keys,
            values,
            mask=mask,
            causal=causal,
            query_offset=query_offset,
        )
        return self.project_output(outputs, query), cache

    def attend_to(self, query, keys, values, mask=None, query_offset=None):
        """Attention to keys and values that are projected already.

        Args:
            query: `[B, T, D]`.
            keys: `[B, N, S, H]`, from `project_key`.
            values: `[B, N, S, Hv]`, from `project_value`.
            mask: bool, broadcasts to `[B, N, T, S]`; True = attend.
            query_offset: key position of query 0, a scalar or int `[B]`; default
                `S - T`.

        Returns:
            outputs `[B, T, D]`.
        """
        outputs, _ = self.attend(
            self.project_query(query), keys, values, mask=mask, query_offset=query_offset
        )
        return self.project_output(outputs, query)
