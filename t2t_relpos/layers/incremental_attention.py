"""Attention with cached keys and values, for decoding."""

from keras import ops

from t2t_relpos import _checks
from t2t_relpos._backend import one_or_nan, start_indices
from t2t_relpos.attention.masks import key_padding_mask, make_attention_mask
from t2t_relpos.attention.relative_ids import as_positions, range_around
from t2t_relpos.layers import call_checks


class IncrementalAttention:
    """Mixin with decoding steps for `RelativeMultiHeadAttention`."""

    def start_cache(self, batch_size, max_length):
        """Returns an empty cache for `step`.

        Args:
            batch_size: number of sequences or hypotheses, an int or a scalar tensor.
            max_length: number of positions, an int above 0 or a scalar tensor.

        Returns:
            A dict of `"key"` `[batch_size, N, max_length, H]` and `"value"`
            `[batch_size, N, max_length, Hv]`.

        Example:
        >>> import numpy as np
        >>> from t2t_relpos.layers import RelativeMultiHeadAttention
        >>> layer = RelativeMultiHeadAttention(num_heads=2, key_dim=4, max_relative_position=16)
        >>> x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
        >>> expected = layer(x, x, use_causal_mask=True)
        >>> cache = layer.start_cache(batch_size=3, max_length=5)
        >>> for i in range(5):
        ...     output, cache = layer.step(x[:, i : i + 1], cache, np.full(3, i))
        >>> bool(np.allclose(output[:, 0], expected[:, 4], atol=1e-5))
        True
        """
        if not hasattr(max_length, "dtype"):
            _checks.positive_int("max_length", max_length)

        def zeros(depth):
            shape = (batch_size, self.num_heads, max_length, depth)
            return ops.zeros(shape, dtype=self.compute_dtype)

        return {"key": zeros(self.key_dim), "value": zeros(self.value_dim)}

    def step(self, query, cache, position):
        """Returns (outputs, cache) of causal self-attention for one position.

        The key and the value of the position are written into the returned cache.

        Args:
            query: `[B, 1, D]`.
            cache: the dict that `start_cache` or this method returned.
            position: position of `query` in the cache, from 0: an int, a scalar tensor, or int
                `[B]` for each batch entry.

        Returns:
            (outputs `[B, 1, D]`, the cache with this position written).

        Raises:
            ValueError: if the layer is not built, an argument has the wrong shape or dtype, or a
                position is outside the cache. In a compiled graph, which can't raise an error, the
                outputs of such a position are NaN.
        """
        call_checks.built(self)
        call_checks.step(self, query, cache, position)
        query, keys, values = self._cast(query, cache["key"], cache["value"])
        length = ops.shape(keys)[2]
        position = ops.broadcast_to(as_positions("position", position), (ops.shape(query)[0],))
        slots = ops.arange(length, dtype="int32")[None, :]
        is_current_slot = (slots == position[:, None])[:, None, :, None]
        keys = ops.where(is_current_slot, self.project_key(query), keys)
        values = ops.where(is_current_slot, self.project_value(query), values)
        is_visible = slots <= position[:, None]
        if self.sliding_window is not None:
            lowest, _ = range_around(position[:, None], self.sliding_window - 1)
            is_visible = ops.logical_and(is_visible, slots >= lowest)
        outputs, _ = self.attend(
            self.project_query(query),
            keys,
            values,
            mask=key_padding_mask(is_visible),
            query_offset=position,
        )
        fits = (position >= 0) & (position < length)
        outputs = _nan_unless(fits[:, None, None, None], outputs)
        return self.project_output(outputs, query), {"key": keys, "value": values}

    def attend_with_cache(
        self, query, value, cache, update_index=None, *, mask=None, query_offset=None, causal=False
    ):
        """Returns attention to a cache, after writing the keys and values of `value` into it.

        Args:
            query: `[B, T, D]`.
            value: `[B, L, D]`, sequence of the keys and values to write.
            cache: `[B, 2, S, N, H]`, keys and values, as in KerasHub.
            update_index: cache position of `value`, an int or a scalar tensor. With
                None, `value` is ignored. Default: None.
            mask: bool `[T, S]`, `[B, T, S]` or `[B, N, T, S]`, axes may have size 1; True = attend.
                Default: None.
            query_offset: key position of query 0, an int, a scalar tensor or int `[B]`. In
                self-attention, pass `update_index`. Default: `S - T`, the end of the cache.
            causal: whether keys after a query are masked. Default: False.

        Returns:
            (outputs `[B, T, D]`, the cache).

        Raises:
            ValueError: if the layer is not built, `value_dim` differs from `key_dim`, the cache has
                the wrong shape or dtype, the written positions are known to be outside it,
                `query_offset` is missing although `causal` or `sliding_window` depend on it, or it
                is `[B]` with `flash_attention=True` and T is not known to be 1. In a compiled
                graph, which can't raise an error, all outputs are NaN if a written position is
                outside the cache.
        """
        call_checks.built(self)
        call_checks.cache("cache", cache, self, query.shape[0])
        causal = self._is_causal(causal)
        needs_offset = causal or self.sliding_window is not None
        if needs_offset and update_index is not None and query_offset is None:
            raise ValueError(
                "Expected `query_offset` with `update_index` and a causal mask or a sliding "
                "window. Received: query_offset=None, which places the queries at the end of the "
                "cache. In self-attention, pass query_offset=update_index."
            )
        query, value = self._cast(query, value)
        fits = True
        if update_index is not None:
            count = ops.shape(value)[1]
            call_checks.cache_update_index(update_index, cache.shape[2], count)
            if not _checks.is_integer(update_index):
                update_index = as_positions("update_index", update_index)
            fits = (update_index >= 0) & (update_index <= ops.shape(cache)[2] - count)
            update = ops.stack([self.key_dense(value), self.value_dense(value)], axis=1)
            update = ops.cast(update, cache.dtype)
            start = start_indices(0, 0, update_index, 0, 0)
            cache = ops.slice_update(cache, start, update)
        keys, values = self._cast(*(ops.transpose(cache[:, i], (0, 2, 1, 3)) for i in range(2)))
        outputs, _ = self.attend(
            self.project_query(query),
            keys,
            values,
            mask=self._with_window(mask, query, keys, query_offset),
            causal=causal,
            query_offset=query_offset,
            **self._memory_options(query, query_offset),
        )
        return self.project_output(_nan_unless(fits, outputs), query), cache

    def attend_to(self, query, keys, values, mask=None, query_offset=None):
        """Returns attention to projected keys and values.

        Args:
            query: `[B, T, D]`.
            keys: `[B, N, S, H]`, from `project_key`.
            values: `[B, N, S, Hv]`, from `project_value`.
            mask: bool `[T, S]`, `[B, T, S]` or `[B, N, T, S]`, axes may have size 1; True = attend.
                Default: None.
            query_offset: key position of query 0, an int, a scalar tensor or int `[B]`. Default:
                `S - T`.

        Returns:
            outputs `[B, T, D]`.

        Raises:
            ValueError: if the layer is not built, or `query_offset` is `[B]` with
                `flash_attention=True` and T is not known to be 1.
        """
        call_checks.built(self)
        query, keys, values = self._cast(query, keys, values)
        outputs, _ = self.attend(
            self.project_query(query),
            keys,
            values,
            mask=self._with_window(mask, query, keys, query_offset),
            causal=self._is_causal(False),
            query_offset=query_offset,
            **self._memory_options(query, query_offset),
        )
        return self.project_output(outputs, query)

    def _cast(self, *tensors):
        """Returns tensors in the compute dtype. Keras casts only the arguments of `call`."""
        return [ops.cast(x, self.compute_dtype) for x in tensors]

    def _with_window(self, mask, query, keys, query_offset):
        """Returns the conjunction of a mask and `sliding_window`, or None if there is neither."""
        lengths = ops.shape(query)[1], ops.shape(keys)[2]
        window = self.sliding_window
        return make_attention_mask(lengths, mask, window=window, query_offset=query_offset)

    def _memory_options(self, query, query_offset):
        """Returns the arguments of `attend` that apply `flash_attention`.

        They are empty for one query, where every implementation uses memory linear in length.
        """
        if query.shape[1] == 1:
            return {}
        has_offset_per_entry = len(getattr(query_offset, "shape", ())) == 1
        if has_offset_per_entry and self.flash_attention:
            raise ValueError(
                "Expected one query for `query_offset` of shape [B] and `flash_attention=True`. "
                f"Received: query shape {tuple(query.shape)}, query_offset shape "
                f"{tuple(query_offset.shape)}. Pass one query or one offset for the batch, or set "
                "`flash_attention=None`."
            )
        return {"return_weights": False, "rematerialize": self._rematerialize(training=False)}


def _nan_unless(fits, outputs):
    """Returns `outputs`, or NaN where `fits` is False: a compiled graph can't raise an error."""
    return outputs if fits is True else outputs * one_or_nan(fits, outputs.dtype)
