"""One block of the Transformer's decoder."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.layers.attention_cache import cache_length, check_cache
from t2t_relpos.layers.layer_mixin import traced_output_spec
from t2t_relpos.layers.transformer_block import TransformerBlock, block_mask, call_attention


@keras.saving.register_keras_serializable(package="t2t_relpos")
class TransformerDecoder(TransformerBlock):
    """Causal self-attention, attention to an encoder, and a feed-forward network.

    Code for `keras_hub.layers.TransformerDecoder` runs with this class and the additional argument
    `max_relative_position`. Without `encoder_sequence` in its first call, a layer has no attention
    to an encoder.

    Args:
        intermediate_dim, num_heads, dropout, activation, layer_norm_epsilon, kernel_initializer,
            bias_initializer, normalize_first: as in `TransformerEncoder`, with the same defaults.
        relative_cross_attention: whether the attention to the encoder has relative positions, with
            its own tables. Target position `i` is at source position `i`, whatever T and S are:
            the block passes `query_offset=0`, not the default `S - T` of
            `RelativeMultiHeadAttention`. Default: False.
        relative_v2: whether the self-attention is a masked `RelativeMultiHeadAttentionV2`, in which
            distances of `max_relative_position` and more have no vectors. Default: False.
        **kwargs: `max_relative_position`, `use_key_table`, `use_value_table`, `share_heads`,
            `use_bias`, `attention_dropout`, `activation_dropout`, `key_dim`, `value_dim`,
            `sliding_window`, `flash_attention`, `seed`, `name`, `dtype` and `trainable` as in
            `TransformerEncoder`, with the same defaults. The window limits self-attention only;
            limit the attention to the encoder with `encoder_attention_mask`. `flash_attention`
            applies to both.

    Call arguments:
        decoder_sequence: `[B, T, D]`.
        encoder_sequence: `[B, S, D]`. Default: None, for a decoder-only block, or if
            `cross_attention_cache` is only read.
        decoder_padding_mask: bool `[B, T]`, True = a token. It replaces the mask of a mask_zero
            embedding. Default: that mask. With a cache, bool `[B, max_length]`, for all positions
            of the cache. Default: None, because the mask of an embedding is ignored.
        decoder_attention_mask: bool `[B, T, T]` or `[T, T]`, True = attend. Default: None.
        encoder_padding_mask: bool `[B, S]`, True = a token. It replaces the mask of a mask_zero
            embedding. Default: that mask.
        encoder_attention_mask: bool `[B, T, S]` or `[T, S]`, True = attend. Default: None.
        self_attention_cache: `[B, 2, max_length, N, H]`, keys and values of earlier positions. If
            `value_dim` differs from `key_dim`, a pair of `[B, max_length, N, H]` and
            `[B, max_length, N, Hv]`. Default: None.
        self_attention_cache_update_index: position of `decoder_sequence` in the cache, an int or a
            scalar tensor. With None, the cache is only read, and the queries are its last
            positions. Default: None.
        cross_attention_cache: keys and values of the encoder, `[B, 2, S, N, H]` or such a pair.
            Default: None.
        cross_attention_cache_update_index: Pass 0 in the first call, which fills
            `cross_attention_cache`, and None in later calls. Default: None.
        use_causal_mask: whether keys after a query are masked in self-attention. Default: True.
        training: whether dropout is applied. Default: Keras's training mode.
        return_attention_scores: whether to return (outputs, scores). Requires `encoder_sequence`,
            no caches, and no `flash_attention`. Default: False.
        packing: a `Packing` `[B, T]`. Inputs and outputs are then `[1, P, D]`. Default: None.
        encoder_packing: a `Packing` `[B, S]` of `encoder_sequence`. Default: None.

    Attributes:
        cross_attention: the attention to the encoder, a `RelativeMultiHeadAttention`, or None.
        cross_attention_residual: its `Residual`, or None. The other attributes are those of
            `TransformerEncoder`.

    Returns:
        outputs `[B, T, D]`; (outputs, self_attention_cache) or (outputs, self_attention_cache,
        cross_attention_cache) if caches are given; (outputs, scores `[B, N, T, S]`) if scores are
        requested: the weights of the attention to the encoder.

    Raises:
        ValueError: if an argument is out of range; if a mask or a cache has the wrong shape; if a
            mask has a float dtype; if `encoder_sequence` is given to a block that was built without
            it, or is missing for a block that was built with it; if only one of the two caches is
            given; or if caches are given with returned scores or a packing.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import TransformerDecoder
    >>> layer = TransformerDecoder(intermediate_dim=16, num_heads=2, max_relative_position=4)
    >>> tuple(layer(np.ones((3, 5, 8)), np.ones((3, 7, 8))).shape)
    (3, 5, 8)
    """

    def __init__(
        self,
        intermediate_dim,
        num_heads,
        dropout=0,
        activation="relu",
        layer_norm_epsilon=1e-05,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        normalize_first=False,
        *,
        relative_cross_attention=False,
        relative_v2=False,
        **kwargs,
    ):
        super().__init__(
            intermediate_dim,
            num_heads,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            normalize_first=normalize_first,
            **kwargs,
        )
        self.relative_cross_attention = relative_cross_attention
        self.relative_v2 = relative_v2
        if relative_v2:
            _checks.one_distance(self.max_relative_position, "relative_v2=True")

    def build(self, decoder_sequence_shape, encoder_sequence_shape=None):
        self._build_sublayers("decoder_sequence", decoder_sequence_shape)
        if encoder_sequence_shape is not None:
            self.cross_attention = self._make_attention(
                "cross_attention",
                decoder_sequence_shape[-1],
                relative=self.relative_cross_attention,
            )
            self.cross_attention.build(decoder_sequence_shape, encoder_sequence_shape)
            self.cross_attention_residual = self._make_residual(
                "cross_attention_residual", decoder_sequence_shape
            )

    def call(
        self,
        decoder_sequence,
        encoder_sequence=None,
        decoder_padding_mask=None,
        decoder_attention_mask=None,
        encoder_padding_mask=None,
        encoder_attention_mask=None,
        self_attention_cache=None,
        self_attention_cache_update_index=None,
        cross_attention_cache=None,
        cross_attention_cache_update_index=None,
        use_causal_mask=True,
        training=None,
        return_attention_scores=False,
        packing=None,
        encoder_packing=None,
    ):
        self._check_call(
            encoder_sequence,
            caches=(self_attention_cache, cross_attention_cache),
            update_indices=(self_attention_cache_update_index, cross_attention_cache_update_index),
            has_packing=packing is not None or encoder_packing is not None,
            return_attention_scores=return_attention_scores,
        )
        x, self_attention_cache = self._attend_to_decoder(
            decoder_sequence,
            (decoder_padding_mask, decoder_attention_mask),
            (self_attention_cache, self_attention_cache_update_index),
            use_causal_mask=use_causal_mask,
            training=training,
            packing=packing,
        )
        scores = None
        if self.cross_attention is not None:
            x, scores, cross_attention_cache = self._attend_to_encoder(
                x,
                encoder_sequence,
                (encoder_padding_mask, encoder_attention_mask),
                (cross_attention_cache, cross_attention_cache_update_index),
                cached_query_offset=_cached_query_offset(
                    decoder_sequence, self_attention_cache, self_attention_cache_update_index
                ),
                return_attention_scores=return_attention_scores,
                training=training,
                packings=(packing, encoder_packing),
            )
        x = self._feed(x, training=training)
        if self_attention_cache is not None:
            caches = self_attention_cache, cross_attention_cache
            return (x, *caches[: 1 if self.cross_attention is None else 2])
        return (x, scores) if return_attention_scores else x

    def _attend_to_decoder(
        self, inputs, masks, cache_and_index, *, use_causal_mask, training, packing
    ):
        """Returns (outputs of the self-attention with its residual, cache or None)."""
        residual = self.self_attention_residual
        x = residual.before(inputs)
        cache, update_index = cache_and_index
        if cache is not None:
            sizes = {"B": inputs.shape[0]}
            check_cache(self.self_attention, "self_attention_cache", cache, sizes)
        mask = block_mask(
            inputs,
            inputs,
            masks,
            prefix="decoder_",
            key_length=_static_length(cache),
            packed=packing is not None,
        )
        if cache is None:
            outputs = call_attention(
                self.self_attention,
                x,
                x,
                masks[0],
                (packing, packing),
                attention_mask=mask,
                training=training,
                use_causal_mask=use_causal_mask,
            )
        else:
            outputs, cache = self.self_attention.attend_with_cache(
                x,
                x,
                cache,
                update_index,
                mask=mask,
                query_offset=update_index,
                causal=use_causal_mask,
            )
        return residual.after(inputs, outputs, training=training), cache

    def _attend_to_encoder(
        self,
        inputs,
        sequence,
        masks,
        cache_and_index,
        *,
        cached_query_offset,
        packings,
        **arguments,
    ):
        """Returns (outputs of the cross-attention with its residual, scores or None, cache)."""
        residual = self.cross_attention_residual
        x = residual.before(inputs)
        scores, (cache, update_index) = None, cache_and_index
        key_length = None
        if cache is not None:
            sizes = {"B": inputs.shape[0], "S": None if sequence is None else sequence.shape[1]}
            check_cache(self.cross_attention, "cross_attention_cache", cache, sizes)
            key_length = _static_length(cache) if sequence is None else None
        packed = any(packing is not None for packing in packings)
        mask = block_mask(
            inputs, sequence, masks, prefix="encoder_", key_length=key_length, packed=packed
        )
        if cache is None:
            arguments |= {"attention_mask": mask, "query_offset": 0}
            outputs = call_attention(
                self.cross_attention, x, sequence, masks[0], packings, **arguments
            )
            if arguments["return_attention_scores"]:
                outputs, scores = outputs
        else:
            outputs, cache = self.cross_attention.attend_with_cache(
                x, sequence, cache, update_index, mask=mask, query_offset=cached_query_offset
            )
        return residual.after(inputs, outputs, training=arguments["training"]), scores, cache

    def _check_call(
        self, encoder_sequence, *, caches, update_indices, has_packing, return_attention_scores
    ):
        """Raises ValueError if the arguments of a call contradict each other."""
        has_caches = [cache is not None for cache in caches]
        for name, has_cache, index in zip(("self", "cross"), has_caches, update_indices):
            if index is not None and not has_cache:
                raise ValueError(
                    f"Expected `{name}_attention_cache` with "
                    f"`{name}_attention_cache_update_index`. Received: the index without a cache."
                )
        reads_encoder = encoder_sequence is not None or (
            has_caches[1] and update_indices[1] is None
        )
        if (self.cross_attention is not None) != reads_encoder:
            built, received = ("without", "an") if self.cross_attention is None else ("with", "no")
            raise ValueError(
                "Expected the same sequences in every call: this layer was built "
                f"{built} attention to an encoder. Received: {received} `encoder_sequence`"
                f"{' or its cache' if received == 'an' else ''}."
            )
        if self.cross_attention is not None and has_caches[0] != has_caches[1]:
            raise ValueError(
                "Expected both `self_attention_cache` and `cross_attention_cache`, or neither. "
                "Received: one of them."
            )
        if return_attention_scores and (encoder_sequence is None or has_caches[0]):
            raise ValueError(
                "Expected `encoder_sequence` and no caches with `return_attention_scores=True`. "
                f"Received: {'caches' if has_caches[0] else 'no `encoder_sequence`'}."
            )
        if has_caches[0] and has_packing:
            raise ValueError("Expected no packing with caches. Received: both.")

    def compute_output_shape(self, decoder_sequence_shape, encoder_sequence_shape=None):
        self._check_shape("decoder_sequence", decoder_sequence_shape)
        if encoder_sequence_shape is not None:
            sizes = {"B": decoder_sequence_shape[0]}
            _checks.check_shape(encoder_sequence_shape, "encoder_sequence", "B S D", sizes)
        return tuple(decoder_sequence_shape)

    def compute_output_spec(self, decoder_sequence, encoder_sequence=None, *args, **kwargs):
        if not self.built:
            shape = None if encoder_sequence is None else encoder_sequence.shape
            self.build(decoder_sequence.shape, shape)
        return traced_output_spec(self, decoder_sequence, encoder_sequence, *args, **kwargs)

    def get_config(self):
        return {
            **super().get_config(),
            "relative_cross_attention": self.relative_cross_attention,
            "relative_v2": self.relative_v2,
        }


def _cached_query_offset(inputs, cache, update_index):
    """Returns the position of the first input in the self-attention cache, or None without one."""
    if cache is None or update_index is not None:
        return update_index
    # The cache is only read: the inputs are its last positions.
    return cache_length(cache) - ops.shape(inputs)[1]


def _static_length(cache):
    """Returns the number of positions of a cache, or None without a cache or if it is unknown."""
    length = None if cache is None else cache_length(cache)
    return length if isinstance(length, int) else None
