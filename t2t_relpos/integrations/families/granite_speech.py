"""Granite Speech, Granite Speech Plus and Granite Speech 5: Conformers with attention in blocks.

A frame attends to the frames of its block. Blocks are folded into the batch, as in transformers.
The first two families have no padding masks: padding is attended to, and only the frames that fill
up the last block are masked.
"""

import torch
from torch.nn.functional import pad

from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families.attention import attend_heads


def attend_in_blocks(module, hidden_states, project, embedding, key_mask=None, **options):
    """Returns the outputs `[B, T, N * H]` of attention within blocks of `module.context_size`.

    Args:
        module: the attention module.
        hidden_states: `[B, T, D]`.
        project: function that returns queries, keys and values `[B, T, N * H]`.
        embedding: the table, whose row `i - j + M` is of query i and key j.
        key_mask: bool `[B, T]`, True = attend. Default: None.
        **options: options of `attend_heads`.
    """
    (batch, length, _), size = hidden_states.shape, module.context_size
    if added := -length % size:
        if key_mask is None:
            key_mask = hidden_states.new_ones(batch, length, dtype=torch.bool)
        hidden_states, key_mask = pad(hidden_states, (0, 0, 0, added)), pad(key_mask, (0, added))
    # Rows for the distances j - i of a block, in ascending order.
    middle, reach = embedding.num_embeddings // 2, size - 1
    rows = torch.arange(middle + reach, middle - size, -1, device=hidden_states.device)
    outputs, _ = attend_heads(
        module,
        [x.unflatten(1, (-1, size)).flatten(0, 1) for x in project(hidden_states)],
        (embedding(rows),),
        reach,
        {} if key_mask is None else {"key_mask": key_mask.reshape(-1, size)},
        return_weights=False,
        **options,
    )
    return outputs.unflatten(0, (batch, -1)).flatten(1, 2)[:, :length]


class Attention:
    """Attention of Granite Speech and Granite Speech Plus."""

    def forward(self, hidden_states, attention_dists):
        outputs = attend_in_blocks(
            self,
            self.pre_norm(hidden_states),
            lambda x: (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)),
            self.rel_pos_emb,
            head_dim=self.dim_head,
            scale=self.scale,
            dropout=0.0,
        )
        return self.dropout(self.to_out(outputs))


class Attention5:
    """Attention of Granite Speech 5."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        outputs = attend_in_blocks(
            self,
            hidden_states,
            lambda x: [linear(x) for linear in (self.q_proj, self.k_proj, self.v_proj)],
            self.rel_pos_emb,
            attention_mask,
            head_dim=self.head_dim,
            scale=self.scaling,
            dropout=self.attention_dropout,
        )
        return self.o_proj(outputs), None


def small_config(name):
    """Returns the configuration of the encoder of one of the first two families, by its class."""
    import transformers

    return getattr(transformers, name)(
        input_dim=16,
        output_dim=5,
        hidden_dim=16,
        num_layers=2,
        num_heads=2,
        feedforward_mult=1,
        context_size=40,
        max_pos_emb=50,
        conv_kernel_size=3,
        dropout=0.0,
    )


def small_config_5():
    """Returns the configuration of the encoder of Granite Speech 5 that is compared."""
    from transformers import GraniteSpeech5EncoderConfig

    return GraniteSpeech5EncoderConfig(
        vocab_size=7,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_mel_bins=4,
        context_size=40,
        max_position_embeddings=50,
        conv_kernel_size=3,
        subsample_layers=[],
        attn_implementation="sdpa",
    )


_MODULE = "transformers.models.granite_speech.modeling_granite_speech"
_MODULE_PLUS = "transformers.models.granite_speech_plus.modeling_granite_speech_plus"
_MODULE_5 = "transformers.models.granite_speech5.modeling_granite_speech5"
FAMILIES = [
    Family(
        name="Granite Speech",
        attention={f"{_MODULE}.GraniteSpeechConformerAttention": Attention},
        encoder=f"{_MODULE}.GraniteSpeechCTCEncoder",
        small_config=lambda: small_config("GraniteSpeechEncoderConfig"),
        call=lambda encoder, x, padding_mask: encoder(x)[0],
    ),
    Family(
        name="Granite Speech Plus",
        attention={f"{_MODULE_PLUS}.GraniteSpeechPlusConformerAttention": Attention},
        encoder=f"{_MODULE_PLUS}.GraniteSpeechPlusCTCEncoder",
        small_config=lambda: small_config("GraniteSpeechPlusEncoderConfig"),
        call=lambda encoder, x, padding_mask: encoder(x)[0],
    ),
    Family(
        name="Granite Speech 5",
        attention={f"{_MODULE_5}.GraniteSpeech5EncoderAttention": Attention5},
        encoder=f"{_MODULE_5}.GraniteSpeech5Encoder",
        small_config=small_config_5,
        call=lambda encoder, x, padding_mask: encoder(x, padding_mask)[0],
    ),
]
