"""w2v-BERT 2.0: Conformer layers with "relative_key" positions, or "relative", Transformer-XL's.

Its encoder makes a mask `[B, 1, T, T]` of a padding mask. So the exchanged encoder calls that of
transformers without it, and hands it on in the keyword arguments, which reach all layers. State of
a module would be lost when gradient checkpointing calls a layer again.

Frames of padding attend to the frames that are none, in transformers and here, and are equal.
"""

import torch

from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families.attention import (
    attend_heads,
    has_exchanged_layers,
    key_mask,
    mask_arguments,
    returns_weights,
)
from t2t_relpos.integrations.families.transformer_xl import attend_transformer_xl, is_exported


def conformer_attention(module, hidden_states, masks, options, chunks=None):
    """Returns (outputs `[B, T, D]`, weights or None) of a module with "relative_key" positions."""
    left, right = module.left_max_position_embeddings, module.right_max_position_embeddings
    ids = torch.arange(left + right + 1, device=hidden_states.device)
    tables = (module.distance_embedding(ids),)
    outputs, weights = attend_heads(
        module,
        _projected(module, hidden_states),
        tables,
        (left, right),
        masks,
        chunks=chunks,
        **_settings(module, options),
    )
    return module.linear_out(outputs), weights


def relative_attention(module, hidden_states, sinusoids, masks, options):
    """Returns (outputs `[B, T, D]`, weights or None) of a module with "relative" positions."""
    outputs, weights = attend_transformer_xl(
        module,
        _projected(module, hidden_states),
        module.linear_pos(sinusoids),
        (module.pos_bias_u, module.pos_bias_v),
        masks,
        **_settings(module, options),
    )
    return module.linear_out(outputs), weights


def _projected(module, hidden_states):
    return [linear(hidden_states) for linear in (module.linear_q, module.linear_k, module.linear_v)]


def _settings(module, options):
    return {
        "head_dim": module.head_size,
        "scale": module.scaling,
        "dropout": module.dropout.p,
        "return_weights": returns_weights(module, options.get("output_attentions")),
    }


def takes_key_mask(encoder):
    """Returns whether `attend` computes all layers of an encoder."""
    if encoder.config.position_embeddings_type == "relative" and is_exported():
        return False
    return has_exchanged_layers(encoder)


def zero_padding(hidden_states, padding_mask):
    """Returns hidden states that are 0 where a mask `[B, T]` is, as transformers' encoders do."""
    if padding_mask is None:
        return hidden_states
    return hidden_states.masked_fill(~padding_mask.bool().unsqueeze(-1), 0.0)


def has_relative_key(module):
    """Returns whether an attention module has a table of relative positions."""
    return module.position_embeddings_type == "relative_key"


def has_relative(module):
    """Returns whether an attention module has the relative positions of Transformer-XL."""
    return module.position_embeddings_type == "relative"


class Attention:
    """Attention with "relative_key" or "relative" positions.

    `relative_position_embeddings` are the sinusoids `[1, 2T - 1, D]` of "relative".
    """

    def forward(
        self, hidden_states, attention_mask=None, relative_position_embeddings=None, **kwargs
    ):
        masks = mask_arguments(attention_mask, hidden_states.shape[0])
        is_relative = has_relative(self)
        if (
            masks is None
            or kwargs.get("is_causal")
            or (is_relative and (relative_position_embeddings is None or is_exported()))
        ):
            return super().forward(
                hidden_states, attention_mask, relative_position_embeddings, **kwargs
            )
        if is_relative:
            return relative_attention(
                self, hidden_states, relative_position_embeddings, masks, kwargs
            )
        return conformer_attention(self, hidden_states, masks, kwargs)


class EncoderLayer:
    """Encoder layer that takes the `key_mask` of the encoder."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        if "key_mask" in kwargs:
            padding_mask = kwargs.pop("key_mask")
            attention_mask = key_mask(padding_mask, hidden_states)
            kwargs["conv_attention_mask"] = padding_mask
        return super().forward(hidden_states, attention_mask=attention_mask, **kwargs)


class Encoder:
    """Encoder that hands its padding mask on as `key_mask`."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        if kwargs.get("is_causal") or not takes_key_mask(self):
            return super().forward(hidden_states, attention_mask, **kwargs)
        hidden_states = zero_padding(hidden_states, attention_mask)
        return super().forward(hidden_states, key_mask=attention_mask, **kwargs)


# Rates of dropout are those of the configurations of both Conformers.
NO_DROPOUT = dict.fromkeys(
    ("hidden_dropout", "activation_dropout", "attention_dropout", "conformer_conv_dropout"), 0.0
)


def _small_config(position_embeddings_type):
    from transformers import Wav2Vec2BertConfig

    return Wav2Vec2BertConfig(
        position_embeddings_type=position_embeddings_type,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        left_max_position_embeddings=9,
        right_max_position_embeddings=4,
        conv_depthwise_kernel_size=3,
        layerdrop=0.0,
        attn_implementation="sdpa",
        **NO_DROPOUT,
    )


def small_config():
    """Returns the configurations of the encoders that are compared."""
    return [_small_config("relative_key"), _small_config("relative")]


_MODULE = "transformers.models.wav2vec2_bert.modeling_wav2vec2_bert"
FAMILIES = [
    Family(
        name="w2v-BERT 2.0",
        attention={f"{_MODULE}.Wav2Vec2BertSelfAttention": Attention},
        optional={
            f"{_MODULE}.Wav2Vec2BertEncoderLayer": EncoderLayer,
            f"{_MODULE}.Wav2Vec2BertEncoder": Encoder,
        },
        has_tables=lambda module: has_relative_key(module) or has_relative(module),
        condition="position_embeddings_type='relative_key' or 'relative'",
        encoder=f"{_MODULE}.Wav2Vec2BertEncoder",
        small_config=small_config,
        call=lambda encoder, x, padding_mask: encoder(x, padding_mask)[0],
    )
]
