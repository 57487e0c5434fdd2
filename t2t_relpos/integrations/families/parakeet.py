"""Parakeet, Nemotron ASR streaming and Nemotron 3.5 ASR: FastConformers of transformers.

Attention has the positions of Transformer-XL. Encoders of transformers make a mask `[B, 1, T, T]`
of a padding mask, and positions for each batch entry. The exchanged encoders hand the padding mask
on as `[B, 1, 1, T]`, and positions without a batch. With `dropout_positions` in training,
transformers computes the encoder.

A frame of Nemotron attends to the frames of its chunk and of some chunks before it. Windows of a
few chunks, and the frames before them, are folded into the batch, so that no mask has an entry per
pair of frames. transformers computes calls with a cache, whose masks are small.

Padded frames: in Parakeet, transformers gives them uniform weights over all frames. Here, they
attend to the frames that are no padding. In Nemotron, they attend to the frames in their chunks
that are no padding, there and here. Outputs of other frames do not depend on them.
"""

import torch
from torch.nn import functional

from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families.attention import has_exchanged_layers, returns_weights
from t2t_relpos.integrations.families.transformer_xl import (
    attend_transformer_xl,
    is_exported,
    key_or_pair_mask,
)

# Queries of a window, unless more keys come before them. Not tuned.
SMALLEST_WINDOW = 64


def _attend(module, hidden_states, positions, masks, chunks=None, **kwargs):
    """Returns (outputs `[B, T, D]`, weights or None) of an attention module.

    Args:
        module: the attention module.
        hidden_states: `[B, T, D]`.
        positions: sinusoids `[1, 2S - 1, D]`, for the S keys of a window if there are chunks.
        masks: the result of `key_or_pair_mask`.
        chunks: (frames of a chunk, chunks before it). Default: None.
        **kwargs: `output_attentions`.
    """
    attend = attend_transformer_xl if chunks is None else _windowed(chunks)
    outputs, weights = attend(
        module,
        [linear(hidden_states) for linear in (module.q_proj, module.k_proj, module.v_proj)],
        module.relative_k_proj(positions),
        (module.bias_u, module.bias_v),
        masks,
        head_dim=module.head_dim,
        scale=module.scaling,
        dropout=module.attention_dropout,
        return_weights=returns_weights(module, kwargs.get("output_attentions")),
    )
    return module.o_proj(outputs), weights


def _have_equal_positions(module, positions):
    """Returns whether positions `[B, R, D]` are those of all batch entries."""
    return len(positions) == 1 or not (module.training and module.config.dropout_positions)


class Attention:
    """Attention of Parakeet."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        if is_exported():
            return super().forward(hidden_states, position_embeddings, attention_mask, **kwargs)
        masks = key_or_pair_mask(attention_mask, len(hidden_states))
        if masks is None or not _have_equal_positions(self, position_embeddings):
            positions = position_embeddings.expand(len(hidden_states), -1, -1)
            return super().forward(hidden_states, positions, attention_mask, **kwargs)
        return _attend(self, hidden_states, position_embeddings[:1], masks, **kwargs)


class Layer:
    """Layer with the methods of transformers, which hand the masks of the encoder on."""


class _Encoder:
    """Encoder whose layers are called by `_run`, if no other computation is needed."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if not issubclass(cls, torch.nn.Module):
            return  # A class of this file, whose import does not import transformers.
        from transformers.utils.generic import merge_with_config_defaults
        from transformers.utils.output_capturing import capture_outputs

        # Records hidden states and weights.
        cls._run_decorated = merge_with_config_defaults(capture_outputs(cls._run))

    def _takes_key_mask(self):
        """Returns whether layers take masks of keys, and positions without a batch."""
        has_dropout = self.training and self.dropout_positions
        return not (has_dropout or is_exported()) and has_exchanged_layers(self)

    def _run_layers(self, hidden_states, **options):
        """Returns the hidden states after all layers that LayerDrop leaves."""
        for layer in self.layers:
            if not (self.training and self.layerdrop and torch.rand([]) < self.layerdrop):
                hidden_states = layer(hidden_states, **options)
        return hidden_states


class Encoder(_Encoder):
    """Encoder of Parakeet that hands its padding mask on."""

    def forward(self, input_features, attention_mask=None, *args, **kwargs):
        if args or not self._takes_key_mask():
            return super().forward(input_features, attention_mask, *args, **kwargs)
        return self._run_decorated(input_features, attention_mask, **kwargs)

    def _run(self, input_features, attention_mask=None, *, output_attention_mask=True, **kwargs):
        from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderModelOutput

        x = self.subsampling(input_features, attention_mask) * self.input_scale
        positions = self.encode_positions(x[:1])
        x = functional.dropout(x, self.dropout, self.training)
        real = masks = None
        if attention_mask is not None:
            real = self._get_output_attention_mask(attention_mask, target_length=x.shape[1])
            masks = real[:, None, None]
        x = self._run_layers(x, attention_mask=masks, position_embeddings=positions, **kwargs)
        has_mask = real is not None and output_attention_mask
        return ParakeetEncoderModelOutput(
            last_hidden_state=x, attention_mask=real.int() if has_mask else None
        )


# Nemotron: chunks


def _window_sizes(chunks, length):
    """Returns (queries of a window, keys before them)."""
    size, num_before = chunks
    before = num_before * size
    queries = -(-max(before, SMALLEST_WINDOW) // size) * size
    return (length, 0) if queries >= length else (queries, before)


def _windowed(chunks):
    """Returns `attend_transformer_xl` in windows of chunks, for positions of a window."""

    def attend(module, projected, positions, biases, masks, **options):
        batch, length, _ = projected[0].shape
        queries, before = _window_sizes(chunks, length)
        after = -length % queries
        real = masks.get("key_mask")
        if real is None:
            real = torch.ones(batch, length, dtype=torch.bool, device=projected[0].device)
        query, *keys = projected
        windows = [functional.pad(query, (0, 0, 0, after)).unflatten(1, (-1, queries))]
        windows += [
            functional.pad(x, (0, 0, before, after)).unfold(1, before + queries, queries).mT
            for x in keys
        ]
        real = functional.pad(real, (before, after)).unfold(1, before + queries, queries)
        pairs = _chunk_mask(chunks, queries, before, real.device)
        masks = {"mask": pairs, "key_mask": real.flatten(0, 1)}
        windows = [x.flatten(0, 1) for x in windows]
        outputs, _ = attend_transformer_xl(module, windows, positions, biases, masks, **options)
        return outputs.unflatten(0, (batch, -1)).flatten(1, 2)[:, :length], None

    return attend


def _chunk_mask(chunks, queries, before, device):
    """Returns the mask `[queries, before + queries]` of the keys in the chunks of queries."""
    size, num_before = chunks
    of_key = torch.arange(before + queries, device=device) // size
    distance = of_key[before:, None] - of_key
    return (distance >= 0) & (distance <= num_before)


class NemotronAttention:
    """Attention of Nemotron. `chunks` is (frames of a chunk, chunks before it)."""

    def forward(
        self,
        hidden_states,
        position_embeddings,
        attention_mask=None,
        cache=None,
        chunks=None,
        **kwargs,
    ):
        if is_exported():
            return super().forward(
                hidden_states, position_embeddings, attention_mask, cache, **kwargs
            )
        masks = key_or_pair_mask(attention_mask, len(hidden_states))
        is_other = masks is None or cache is not None or "past_key_values" in kwargs
        if is_other or not _have_equal_positions(self, position_embeddings):
            positions = position_embeddings.expand(len(hidden_states), -1, -1)
            return super().forward(hidden_states, positions, attention_mask, cache, **kwargs)
        return _attend(self, hidden_states, position_embeddings[:1], masks, chunks, **kwargs)


class NemotronEncoder(_Encoder):
    """Encoder of Nemotron that hands its padding mask and chunks on."""

    def forward(self, input_features, attention_mask=None, *args, **kwargs):
        cached = any(kwargs.get(name) for name in ("cache", "padding_cache", "past_key_values"))
        # Weights are of all pairs.
        asked = returns_weights(self, kwargs.get("output_attentions"))
        cached = cached or kwargs.get("use_cache", getattr(self.config, "use_cache", False))
        if args or cached or asked or not self._takes_key_mask():
            return super().forward(input_features, attention_mask, *args, **kwargs)
        return self._run_decorated(input_features, attention_mask, **kwargs)

    def _run(
        self,
        input_features,
        attention_mask=None,
        *,
        output_attention_mask=True,
        num_lookahead_tokens=None,
        position_ids=None,
        use_cache=None,
        cache=None,
        padding_cache=None,
        **kwargs,
    ):
        from transformers.models.nemotron_asr_streaming import modeling_nemotron_asr_streaming as m

        x = self.subsampling(input_features, attention_mask) * self.input_scale
        left, right = self._resolve_attn_context(num_lookahead_tokens)
        size, length = right + 1, x.shape[1]
        # A negative number stands for all frames.
        chunks = size, left // size if left >= 0 else length
        num_keys = sum(_window_sizes(chunks, length))
        positions = self.encode_positions(x[:1, :1].expand(-1, num_keys, -1))
        x = functional.dropout(x, self.dropout, self.training)
        real = masks = no_key = None
        if attention_mask is not None:
            real = self._get_output_attention_mask(attention_mask, target_length=length)
            masks = real[:, None, None]
            # The first key of a frame.
            first = (torch.arange(length, device=x.device) // size - chunks[1]).clamp(min=0) * size
            no_key = (first >= real.sum(-1, keepdim=True))[:, None]
        x = self._run_layers(
            x,
            attention_mask=masks,
            all_masked_rows=no_key,
            position_embeddings=positions,
            chunks=chunks,
            **kwargs,
        )
        has_mask = real is not None and output_attention_mask
        return m.NemotronAsrStreamingEncoderModelOutput(
            last_hidden_state=x, attention_mask=real.int() if has_mask else None
        )


# The comparison

_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    # The length of inputs stays.
    "num_mel_bins": 16,
    "subsampling_factor": 2,
    "subsampling_conv_stride": 1,
    "subsampling_conv_channels": 2,
    "conv_kernel_size": 3,
    "attn_implementation": "sdpa",
    **dict.fromkeys(("dropout", "layerdrop", "activation_dropout", "attention_dropout"), 0.0),
}


def small_config():
    """Returns the configuration of the encoder of Parakeet that is compared."""
    from transformers import ParakeetEncoderConfig

    return ParakeetEncoderConfig(**_SIZES)


def small_nemotron_config():
    """Returns the configuration of the encoder of Nemotron that is compared."""
    from transformers import NemotronAsrStreamingEncoderConfig

    return NemotronAsrStreamingEncoderConfig(
        **_SIZES, sliding_window=21, default_num_lookahead_tokens=4
    )


def _call(encoder, x, padding_mask):
    """Returns the outputs of frames that are no padding, which is at the end for the encoder."""
    outputs = encoder(x, padding_mask)
    return outputs.last_hidden_state[outputs.attention_mask.bool()]


_PARAKEET = "transformers.models.parakeet.modeling_parakeet.Parakeet"
_STREAMING = "transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming"
_NEMOTRON = f"{_STREAMING}.NemotronAsrStreaming"
FAMILIES = [
    Family(
        name="Parakeet",
        attention={f"{_PARAKEET}EncoderAttention": Attention},
        optional={f"{_PARAKEET}EncoderBlock": Layer, f"{_PARAKEET}Encoder": Encoder},
        encoder=f"{_PARAKEET}Encoder",
        small_config=small_config,
        call=_call,
    ),
    Family(
        name="Nemotron ASR",
        attention={f"{_NEMOTRON}EncoderAttention": NemotronAttention},
        optional={f"{_NEMOTRON}EncoderBlock": Layer, f"{_NEMOTRON}Encoder": NemotronEncoder},
        encoder=f"{_NEMOTRON}Encoder",
        small_config=small_nemotron_config,
        call=_call,
        since="5.24",
    ),
]
