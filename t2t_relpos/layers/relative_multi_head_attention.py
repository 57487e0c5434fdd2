"""Multi-head attention with relative position representations."""

import dataclasses
from typing import Any

import keras

from t2t_relpos import _checks, backend
from t2t_relpos.attention.attend import attend, attend_unchecked
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.explain import explain
from t2t_relpos.attention.masks import conjunction, make_attention_mask
from t2t_relpos.attention.relative_ids import (
    as_positions,
    key_positions,
    relative_ids_from_positions,
)
from t2t_relpos.backend import ops
from t2t_relpos.backend.keras_private import attention_projections
from t2t_relpos.layers.attention_base import AttentionBase, pair_mask, swap_heads
from t2t_relpos.layers.attention_cache import attend_with_cache
from t2t_relpos.layers.layer_mixin import clone_initializer, config_of
from t2t_relpos.layers.packing import unpack_heads
from t2t_relpos.layers.relative_position_embedding import RelativePositionEmbedding


@keras.saving.register_keras_serializable(package="t2t_relpos")
class RelativeMultiHeadAttention(AttentionBase):
    """`keras.layers.MultiHeadAttention` with relative positions.

    Every pair of a query at position `i` and a key at position `j` has two learned vectors, chosen
    by `clip(j - i, -left, right)`. One is added to the key in the score, the other to the value in
    the output. No other position encoding is needed.

    A subclass may override `_compute_attention`, as one of `keras.layers.MultiHeadAttention`. Calls
    and all methods for decoding use it.

    Args:
        num_heads: N, number of attention heads.
        key_dim: H, size of a head for queries and keys.
        value_dim: size of a head for values. Default: `key_dim`.
        dropout: rate of the dropout of attention weights. Default: 0.0.
        use_bias: whether the projections have biases. Default: True.
        output_shape: size of the output's last axis, or a tuple of the sizes of several axes that
            replace it. Default: the size of the last axis of `query`.
        attention_axes: None, 1 or (1,), the sequence axis. Others raise an error, because relative
            positions have one axis. Default: None.
        sliding_window: a query attends to keys at distances less than this. Without explicit
            positions or returned scores, attention then costs O(T·window) instead of O(T·S).
            Default: None, no limit.
        flash_attention: True: memory is linear in length at any length, because the gradient
            computes the weights again. Explicit positions and returned scores are then not
            supported. The flash-attention kernels of PyTorch, and on a GPU of JAX, compute
            self-attention without dropout and with masks of keys only. None or False: with a
            relative table, memory is linear in length above 1,024 positions; on TensorFlow on a CPU
            without XLA above 4,096 positions in training, 256 in inference, and 128 in causal
            inference. Without tables, and with explicit positions or returned scores, memory is
            quadratic. Default: None.
        kernel_initializer: initializer of the projection kernels. Default: `"glorot_uniform"`.
        bias_initializer: initializer of the projection biases. Default: `"zeros"`.
        kernel_regularizer: regularizer of the projection kernels. Default: None.
        bias_regularizer: regularizer of the projection biases. Default: None.
        activity_regularizer: regularizer of the outputs of the projections. Default: None.
        kernel_constraint: constraint of the projection kernels. Default: None.
        bias_constraint: constraint of the projection biases. Default: None.
        use_gate: whether the outputs of the heads are multiplied by a sigmoid of a projection of
            the query. Default: False.
        seed: seed of the dropout. Default: None, a random seed.
        max_relative_position: clipping distance K, an int from 0 to 1,000,000, or a pair (left,
            right) of them. Larger distances use the table row of the clipping distance. Required
            unless both tables are off. Default: None.
        use_key_table: whether relative positions are added to keys (a^K). Default: True.
        use_value_table: whether relative positions are added to values (a^V). Default: True.
        share_heads: True: all heads share a table (t2t, the paper's big model). False: each head
            has a table (the paper's base model). Default: True.
        table_initializer: initializer of the tables. Default: `"glorot_uniform"`, as in t2t.
        num_key_value_heads: G, number of heads of keys and values, which divides N (grouped
            queries). Head `n` of the queries has the keys of head `n // (N / G)`. Default: N.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`; `lora_rank` and `lora_alpha`
            of `keras.layers.EinsumDense`, for all projections (see `enable_lora`).

    Call arguments:
        query: `[B, T, D]`.
        value: `[B, S, D]`.
        key: `[B, S, D]`. Default: `value`.
        query_mask: bool `[B, T]`, True = a token. A masked query gets zeros before the output
            projection. Default: the mask of a mask_zero embedding.
        value_mask: bool `[B, S]`, True = attend. Default: the mask of a mask_zero embedding.
        key_mask: bool `[B, S]`, True = attend. A key is masked if it is False in `key_mask` or in
            `value_mask`. Default: the mask of a mask_zero embedding.
        attention_mask: bool, `[B, T, S]`, `[T, S]` or `[B, N, T, S]`; True = attend. Default: None.
        return_attention_scores: whether to return (outputs, scores). Default: False.
        training: whether dropout is applied. Default: Keras's training mode.
        use_causal_mask: whether keys after a query are masked. Default: False.
        query_offset: key position of query 0, an int or a scalar tensor. Default: `S - T`, so that
            the queries are the last positions, for distances and for causality.
            keras.layers.MultiHeadAttention uses 0 for causality, which differs if T != S. In
            cross-attention, pass 0 if query `i` corresponds to key `i`.
        query_positions: int `[T]` or `[B, T]`, a position for every query. Replaces `query_offset`.
            With explicit positions, causality and `sliding_window` compare positions instead of
            indices. Default: `query_offset + (0, 1, …)`.
        key_positions: int `[S]` or `[B, S]`, a position for every key. Default: `(0, 1, …)`.

    Attributes:
        query_dense: projection of queries, a `keras.layers.EinsumDense`.
        key_dense: projection of keys.
        value_dense: projection of values.
        output_dense: projection of the outputs of the heads.
        key_embedding: a^K, a `RelativePositionEmbedding`, or None if off. Its `table` is
            `[left + right + 1, H]`, or `[N, left + right + 1, H]` if `share_heads` is False. It
            exists after `build`.
        value_embedding: a^V, a `RelativePositionEmbedding`, or None if off.

    Returns:
        outputs `[B, T, D]`; if requested, (outputs, scores `[B, N, T, S]`), the weights after
        softmax and before dropout.

    Raises:
        ValueError: if an argument is out of range or not supported, or a mask, a position or an
            offset has the wrong shape or dtype.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import RelativeMultiHeadAttention
    >>> attention = RelativeMultiHeadAttention(num_heads=2, key_dim=4, max_relative_position=16)
    >>> x = np.random.default_rng(0).normal(size=(3, 7, 8)).astype("float32")
    >>> tuple(attention(x, x, use_causal_mask=True).shape)
    (3, 7, 8)

    Reference: Shaw et al. 2018, section 3; t2t
    `multihead_attention(attention_type="dot_product_relative")`.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        sliding_window=None,
        flash_attention=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        use_gate=False,
        seed=None,
        *,
        max_relative_position=None,
        use_key_table=True,
        use_value_table=True,
        share_heads=True,
        table_initializer="glorot_uniform",
        num_key_value_heads=None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            key_dim,
            value_dim=value_dim,
            dropout=dropout,
            use_bias=use_bias,
            output_shape=output_shape,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            use_gate=use_gate,
            seed=seed,
            share_heads=share_heads,
            table_initializer=table_initializer,
            **kwargs,
        )
        _check_attention_axes(attention_axes)
        if num_key_value_heads is not None:
            self.num_key_value_heads = _key_value_heads(num_key_value_heads, self.num_heads)
        if sliding_window is not None:
            sliding_window = _checks.positive_int(sliding_window, "sliding_window")
        if use_key_table or use_value_table or max_relative_position is not None:
            max_relative_position = _checks.max_relative_position(max_relative_position)
        self.max_relative_position = max_relative_position
        self.attention_axes = attention_axes
        self.flash_attention = flash_attention
        self.sliding_window = sliding_window
        self.use_key_table = use_key_table
        self.use_value_table = use_value_table

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.key_embedding = self.value_embedding = None
        if self.use_key_table:
            self.key_embedding = self._make_table("key_embedding", self.key_dim)
        if self.use_value_table:
            self.value_embedding = self._make_table("value_embedding", self.value_dim)

    def _make_table(self, name, depth):
        embedding = RelativePositionEmbedding(
            self.max_relative_position,
            depth,
            num_heads=None if self.share_heads else self.num_heads,
            embeddings_initializer=clone_initializer(self.table_initializer),
            dtype=self.dtype_policy,
            trainable=self.trainable,
            name=name,
        )
        embedding.build()
        return embedding

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        query_offset=None,
        query_positions=None,
        key_positions=None,
    ):
        key = value if key is None else key
        padding_masks = query_mask, value_mask, key_mask
        self._check_call((query, value, key), padding_masks, attention_mask)
        _check_query_offset(query_offset)
        pairs = _Pairs(
            attention_mask,
            self._is_causal(use_causal_mask),
            query_offset,
            (query_positions, key_positions),
            query_mask=query_mask,
            key_mask=conjunction(key_mask, value_mask),
        )
        outputs, weights = self._attend_projected(
            (self.query_dense(query), self.key_dense(key), self.value_dense(value)),
            pairs,
            training=training,
            return_weights=return_attention_scores,
            is_checked=True,
        )
        outputs = self._merge_heads(outputs, query)
        return (outputs, weights) if return_attention_scores else outputs

    def _is_causal(self, use_causal_mask):
        """Returns whether keys after a query are masked."""
        return use_causal_mask

    def _attend_projected(
        self, projected, pairs, *, training=None, return_weights=False, **options
    ):
        """Returns the results of `_compute_attention` at the positions and with the masks of pairs.

        A method of a subclass gets one mask instead of several, and the keyword arguments
        `query_offset` or `relative_ids` only if there are tables and the positions are not the
        default. It gets no `options`, which are further arguments of `attend`.
        """
        query, key, _ = projected
        lengths = [backend.size(x, 1) for x in (query, key)]
        positions = pairs.explicit_positions(lengths, query.shape[0])
        has_tables = self.use_key_table or self.use_value_table
        mask, causal, window, ids = pairs.attention_mask, pairs.causal, self.sliding_window, None
        if positions is not None and has_tables:
            ids = relative_ids_from_positions(*positions, self.max_relative_position)
        original = RelativeMultiHeadAttention._compute_attention
        is_overridden = type(self)._compute_attention is not original
        # Otherwise, `attend` applies causality and the window without a mask.
        if positions is not None or is_overridden:
            mask = make_attention_mask(
                lengths,
                mask,
                causal=causal,
                window=window,
                query_offset=pairs.query_offset,
                positions=positions,
            )
            causal, window = False, None
        arguments = {"query_offset": pairs.query_offset, "relative_ids": ids}
        if is_overridden:
            mask = _keras_mask(mask, pairs.query_mask, pairs.key_mask)
            given = {name: x for name, x in arguments.items() if has_tables and x is not None}
            return self._compute_attention(*projected, mask, training, return_weights, **given)
        arguments |= {"query_mask": pairs.query_mask, "key_mask": pairs.key_mask} | options
        return self._compute_attention(
            *projected, mask, training, return_weights, causal, sliding_window=window, **arguments
        )

    def _compute_attention(
        self,
        query,
        key,
        value,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
        use_causal_mask=False,
        **options,
    ):
        """Returns attention to projected keys and values. Subclasses may override this method.

        Args:
            query: `[B, T, N, H]`, not scaled.
            key: `[B, S, G, H]`. G is `num_key_value_heads`, by default N.
            value: `[B, S, G, Hv]`.
            attention_mask: bool `[B, T, S]` or `[B, N, T, S]`, axes may have size 1; True = attend.
                In a subclass, it includes all masks. Default: None.
            training: whether dropout is applied. Default: None, not applied.
            return_attention_scores: whether the weights are returned. Default: False.
            use_causal_mask: whether keys after a query are masked. Default: False.
            **options: further arguments of `attend`. In a subclass: `query_offset` or
                `relative_ids`, if the layer has tables and the positions are not the default.

        Returns:
            (outputs `[B, T, N, Hv]`, weights `[B, N, T, S]` or None).
        """
        dropout = None
        if self.dropout and training:
            seeds = backend.traced_seeds(self.dropout_layer.seed_generator)
            dropout = AttentionDropout(self.dropout, seeds)
        defaults = {
            "return_weights": return_attention_scores,
            "rematerialize": self._rematerialize(training),
        }
        outputs, weights = self.attend(
            swap_heads(query) * self.key_dim**-0.5,
            swap_heads(key),
            swap_heads(value),
            mask=attention_mask,
            causal=use_causal_mask,
            dropout=dropout,
            **defaults | options,
        )
        return swap_heads(outputs), weights

    def _rematerialize(self, training):
        """Returns the argument `rematerialize` of `attend`. False allows saving weights."""
        if self.flash_attention:
            return True
        # A functional model made in a `keras.RematScope` passes a tensor on JAX.
        return False if ops.is_tensor(training) or training else None

    def attend(self, query, key, value, *, is_checked=False, **kwargs):
        """Returns the results of `attention.attend` with the tables of this layer.

        Args:
            query: `[B, N, T, H]`, from `project_query`.
            key: `[B, G, S, H]`, from `project_key`.
            value: `[B, G, S, Hv]`, from `project_value`.
            is_checked: whether the tensors are known to be valid, as in a call of the layer.
                Default: False, `attention.attend` checks them.
            **kwargs: the keyword arguments of `attention.attend`, such as `mask` and `causal`.

        Returns:
            (outputs `[B, N, T, Hv]`, weights `[B, N, T, S]`, or None without `return_weights`).
        """
        options = {"max_relative_position": self.max_relative_position} | kwargs
        compute = attend_unchecked if is_checked else attend
        return compute(query, key, value, *self.clipped_tables(), **options)

    def clipped_tables(self):
        """Returns the rows for distances `-left` to `right`, of the tables of keys and values.

        Each is a tensor `[left + right + 1, H]`, `[N, left + right + 1, H]` for separate tables of
        the heads, or None for a table that is off.
        """
        tables = (self.key_embedding, self.value_embedding)
        return [None if t is None else ops.convert_to_tensor(t.table) for t in tables]

    def attend_packed(
        self,
        query,
        value,
        query_packing=None,
        value_packing=None,
        *,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        query_offset=None,
        query_positions=None,
        key_positions=None,
    ):
        """Returns the results of a call whose sequences have no padding, for Transformer blocks.

        Args:
            query: `[1, P, D]`, the tokens of all sequences, or `[B, T, D]` without a packing.
            value: `[1, P, D]`, or `[B, S, D]` without a packing.
            query_packing: the `Packing` `[B, T]` of `query`. Default: None.
            value_packing: the `Packing` `[B, S]` of `value`. Its padding is masked. Default: None.
            attention_mask: as in a call, for the sequences with padding. Default: None.
            return_attention_scores: as in a call. Default: False.
            training: as in a call. Default: None, no dropout.
            use_causal_mask: as in a call. Default: False.
            query_offset: as in a call. Default: `S - T`.
            query_positions: as in a call, `[T]` or `[B, T]`. Default: None.
            key_positions: as in a call, `[S]` or `[B, S]`. Default: None.

        Returns:
            outputs of the shape of `query`; if requested, (outputs, scores `[B, N, T, S]`).

        Raises:
            ValueError: if the layer is not built, or a sequence does not have the size of its
                packing.
        """
        _checks.built(self)
        _check_query_offset(query_offset)
        positions, causal = (query_positions, key_positions), self._is_causal(use_causal_mask)
        key_mask = None if value_packing is None else value_packing.mask
        is_default = all(x is None for x in (query_offset, *positions))
        if causal and is_default and query_packing is value_packing:
            key_mask = None  # Padding follows all tokens: the causal mask includes it.
        options = {}
        if attention_mask is None:  # Other tensors are those of this layer.
            is_self_attention = query_packing is not None and query_packing is value_packing
            options = {"is_checked": True, "equal_lengths": is_self_attention}
        outputs, weights = self._attend_projected(
            (
                unpack_heads(self.query_dense(query), query_packing),
                unpack_heads(self.key_dense(value), value_packing),
                unpack_heads(self.value_dense(value), value_packing),
            ),
            _Pairs(attention_mask, causal, query_offset, positions, key_mask=key_mask),
            training=training,
            return_weights=return_attention_scores,
            **options,
        )
        if query_packing is not None:
            outputs = query_packing.merge_heads(swap_heads(outputs))
            outputs = ops.reshape(outputs, (1, -1, self.num_heads, self.value_dim))
        outputs = self._merge_heads(outputs, query)
        return (outputs, weights) if return_attention_scores else outputs

    def project_cache(self, value):
        """Returns the keys and values of a sequence, as a cache.

        Args:
            value: `[B, S, D]`.

        Returns:
            `[B, 2, S, G, H]`, as in KerasHub; a pair `[B, S, G, H]` and `[B, S, G, Hv]` if
            `value_dim` differs from `key_dim`. G is `num_key_value_heads`, by default N.

        Raises:
            ValueError: if the layer is not built.
        """
        _checks.built(self)
        # Keras casts only the arguments of `call`.
        value = ops.cast(value, self.compute_dtype)
        parts = self.key_dense(value), self.value_dense(value)
        return ops.stack(parts, axis=1) if self.value_dim == self.key_dim else parts

    def attend_with_cache(
        self, query, value, cache, update_index=None, *, mask=None, query_offset=None, causal=False
    ):
        """Returns attention to a cache, after writing the keys and values of `value` into it.

        Args:
            query: `[B, T, D]`.
            value: `[B, L, D]`, sequence of the keys and values to write. None without
                `update_index`.
            cache: keys and values `[B, 2, S, G, H]`, as in KerasHub, for example zeros; a pair
                `[B, S, G, H]` and `[B, S, G, Hv]` if `value_dim` differs from `key_dim`. G is
                `num_key_value_heads`, by default N.
            update_index: cache position of `value`, an int or a scalar tensor. With
                None, the cache is only read. Default: None.
            mask: bool `[T, S]`, `[B, T, S]` or `[B, N, T, S]`, axes may have size 1; True = attend.
                Default: None.
            query_offset: key position of query 0, an int, a scalar tensor or int `[B]`. In
                self-attention, pass `update_index`. Default: `S - T`, the end of the cache.
            causal: whether keys after a query are masked. Default: False.

        Returns:
            (outputs `[B, T, D]`, the cache).

        Raises:
            ValueError: if the layer is not built, the cache has the wrong shape or dtype, the
                written positions are known to be outside it, `query_offset` is missing although
                `causal` or `sliding_window` depend on it, or it is `[B]` with
                `flash_attention=True` and T is not known to be 1. In a compiled graph, which can't
                raise an error, all outputs are NaN if a written position is outside the cache.

        Example:
        >>> import numpy as np
        >>> from t2t_relpos.layers import RelativeMultiHeadAttention
        >>> layer = RelativeMultiHeadAttention(num_heads=2, key_dim=4, max_relative_position=16)
        >>> x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
        >>> expected = layer(x, x, use_causal_mask=True)
        >>> cache = np.zeros((3, 2, 5, 2, 4), "float32")
        >>> for i in range(5):
        ...     token = x[:, i : i + 1]
        ...     output, cache = layer.attend_with_cache(
        ...         token, token, cache, i, query_offset=i, causal=True
        ...     )
        >>> bool(np.allclose(output[:, 0], expected[:, 4], atol=1e-5))
        True
        """
        pairs = _Pairs(mask, self._is_causal(causal), query_offset)
        return attend_with_cache(self, query, value, cache, update_index, pairs)

    def explain(self, length_q, length_k=None, *, training=False, causal=False, **options):
        """Reports which implementation a call of this layer uses, and why not the others.

        Args:
            length_q: number of queries T. None: unknown.
            length_k: number of keys S. Default: T.
            training: whether the call is one of training. Default: False.
            causal: as `use_causal_mask` of the call. Default: False.
            **options: further options of `attention.explain`, such as `return_weights` for returned
                scores, `ids_rank` for explicit positions, `backend`, `xla` and `device`. They
                replace the settings of the layer.

        Returns:
            The `Explanation` of `attention.explain` for the tables, depths, dtype, dropout, window
            and `flash_attention` of this layer.

        Example:
        >>> from t2t_relpos.layers import RelativeMultiHeadAttention
        >>> layer = RelativeMultiHeadAttention(2, 64, max_relative_position=16, sliding_window=64)
        >>> on_gpu = layer.explain(4096, training=True, backend="torch", device="gpu")
        >>> on_gpu.chosen, on_gpu.skips_keys
        ('blocks', True)
        """
        has_tables = self.use_key_table or self.use_value_table
        settings = {
            "max_relative_position": self.max_relative_position if has_tables else None,
            "dtype": self.compute_dtype,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "causal": self._is_causal(causal),
            "dropout": self.dropout if training else 0.0,
            "sliding_window": self.sliding_window,
            "rematerialize": self._rematerialize(training),
            "grouped_queries": self.num_key_value_heads != self.num_heads,
        }
        return explain(length_q, length_k, **settings | options)

    @classmethod
    def from_multi_head_attention(cls, layer, max_relative_position, **kwargs):
        """Returns a layer with the weights of a `keras.layers.MultiHeadAttention` and zero tables.

        The outputs are equal, except for causal masks if T != S (see `query_offset`) and fully
        masked queries. Keras's layer also removes the padding mask of its inputs. This layer does
        not. Frozen projections stay frozen.

        Args:
            layer: a built `keras.layers.MultiHeadAttention` with one attention axis.
            max_relative_position: clipping distance K, or a pair (left, right) of them.
            **kwargs: further arguments of the constructor, which replace those of `layer`, such as
                `share_heads` or `flash_attention`.

        Returns:
            A built layer.

        Raises:
            ValueError: if `layer` is not a `keras.layers.MultiHeadAttention`, is not built, has
                several attention axes, or has LoRA or quantized weights.

        Example:
        >>> import keras
        >>> import numpy as np
        >>> from t2t_relpos.layers import RelativeMultiHeadAttention
        >>> x = np.ones((3, 7, 8), "float32")
        >>> trained = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
        >>> outputs = trained(x, x)
        >>> layer = RelativeMultiHeadAttention.from_multi_head_attention(trained, 16)
        >>> bool(np.allclose(layer(x, x), outputs, atol=1e-5))
        True
        """
        _check_keras_attention(layer)
        if kwargs.get("num_key_value_heads") not in (None, layer.num_heads):
            raise ValueError(
                "Expected no `num_key_value_heads`: `layer` has keys and values for each of its "
                f"{layer.num_heads} heads. Received: {kwargs['num_key_value_heads']}."
            )
        extra = {"max_relative_position": max_relative_position} | kwargs
        extra["table_initializer"] = "zeros"
        relative_layer = cls.from_config(layer.get_config() | extra)
        # The order is that of the arguments of `build`.
        projections = layer.query_dense, layer.value_dense, layer.key_dense
        relative_layer.build(*((None, None, dense.kernel.shape[0]) for dense in projections))
        for name, keras_dense in attention_projections(layer).items():
            dense = getattr(relative_layer, f"{name}_dense")
            dense.set_weights(keras_dense.get_weights())
            dense.trainable = keras_dense.trainable
        relative_layer.built = True
        return relative_layer

    def get_config(self):
        names = (
            "max_relative_position attention_axes sliding_window flash_attention use_key_table "
            "use_value_table"
        )
        heads = self.num_key_value_heads
        is_grouped = heads != self.num_heads
        return {
            **super().get_config(),
            **config_of(self, names),
            **({"num_key_value_heads": heads} if is_grouped else {}),
        }


def _check_query_offset(query_offset):
    """Raises ValueError unless the offset of a call is None, an int or an integer scalar tensor."""
    advice = "Pass `query_positions` for positions per batch entry."
    _checks.positions(query_offset, "query_offset", "", advice=advice)


def _key_value_heads(value, num_heads):
    """Returns the number of heads of keys and values. Raises ValueError unless it divides N."""
    heads = _checks.positive_int(value, "num_key_value_heads")
    if num_heads % heads:
        raise ValueError(
            "Expected `num_key_value_heads` to divide `num_heads`. Received: "
            f"num_key_value_heads={heads}, num_heads={num_heads}."
        )
    return heads


def _check_attention_axes(attention_axes):
    """Raises ValueError unless `attention_axes` is None or the sequence axis of `[B, T, D]`."""
    if attention_axes not in (None, 1, (1,), [1], -2, (-2,), [-2]):
        raise ValueError(
            "Expected `attention_axes` to be None or 1, the sequence axis of "
            "[batch, length, width]: relative positions have one axis. "
            f"Received: attention_axes={attention_axes!r}"
        )


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """The arguments of a call that concern pairs of a query and a key.

    `positions` are those of (queries, keys). None stands for consecutive ones: keys from 0, queries
    from `query_offset`.
    """

    attention_mask: Any
    causal: bool
    query_offset: Any
    positions: tuple = (None, None)
    query_mask: Any = None
    key_mask: Any = None

    def explicit_positions(self, lengths, batch_size):
        """Checks and returns (query positions, key positions), or None if a call gives neither."""
        queries, keys = self.positions
        if queries is None and keys is None:
            return None
        if queries is not None and self.query_offset is not None:
            raise ValueError("Expected either `query_offset` or `query_positions`. Received: both.")
        sizes = {"B": batch_size, "T": lengths[0], "S": lengths[1]}
        _checks.positions(queries, "query_positions", "T | B T", sizes)
        _checks.positions(keys, "key_positions", "S | B S", sizes)
        if queries is None:
            queries = key_positions(*lengths, self.query_offset)
        if keys is None:
            keys = ops.arange(lengths[1], dtype="int32")
        return as_positions(queries, "query_positions"), as_positions(keys, "key_positions")


def _keras_mask(mask, query_mask, key_mask):
    """Returns the conjunction of masks as Keras makes it, or None if all are None.

    It is `[B, T, S]`, or `[B, N, T, S]` if `mask` differs between heads.
    """
    combined = pair_mask(query_mask, [key_mask], mask)
    if combined is None:
        return None
    if len(combined.shape) == 2:
        return ops.expand_dims(combined, 0)
    return ops.squeeze(combined, 1) if combined.shape[1] == 1 else combined


def _check_keras_attention(layer):
    """Raises ValueError unless `from_multi_head_attention` can convert the weights of a layer."""
    if not isinstance(layer, keras.layers.MultiHeadAttention):
        raise ValueError(
            "Expected a `keras.layers.MultiHeadAttention`. Received: a "
            f"{type(layer).__name__}. Pass the attention layer that it contains."
        )
    if not layer.built:
        raise ValueError(
            "Expected a built layer. Received: one without weights. Call it once first."
        )
    for name, dense in attention_projections(layer).items():
        if dense.lora_enabled:
            raise ValueError(
                f"Expected a layer without LoRA. Received: LoRA in the {name} projection of "
                f"{layer.name}. Convert the layer before `enable_lora`, or save and load its "
                "model. That merges LoRA into the weights."
            )
        if dense.quantization_mode is not None:
            raise ValueError(
                f"Expected a layer with floating-point weights. Received: {layer.name}, whose "
                f"{name} projection is quantized to {dense.quantization_mode}. Convert the layer "
                "before `quantize`, then quantize the result."
            )
