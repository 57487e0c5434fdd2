"""Granite Speech, Granite Speech Plus and Granite Speech 5: Conformers with attention in blocks.

A frame attends to the frames of its block. Whole blocks are folded into the batch. transformers
fills the last block up and masks the new frames. Here, it is attention of its own, of the frames
that are left. The first two families have no padding masks: padding is attended to.
"""

import torch

from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families.attention import attend_heads


def attend_in_blocks(module, projected, embedding, key_mask=None, **options):
    """Returns the outputs `[B, T, N * H]` of attention within blocks of `module.context_size`.

    Args:
        module: the attention module.
        projected: queries, keys and values `[B, T, N * H]`.
        embedding: the table, whose row `i - j + M` is of query i and key j.
        key_mask: bool `[B, T]`, True = attend. Default: None.
        **options: options of `attend_heads`.
    """
    (batch, length), size = projected[0].shape[:2], module.context_size
    # Rows for the distances j - i in a block, in ascending order.
    middle, reach = embedding.num_embeddings // 2, size - 1
    rows = torch.arange(middle + reach, middle - size, -1, device=projected[0].device)
    tables, outputs = (embedding(rows),), []
    sizes = [n for n in (length - length % size, length % size) if n]
    inputs = projected if key_mask is None else (*projected, key_mask)
    for part in zip(*(x.split(sizes, dim=1) for x in inputs), strict=True):
        blocks = [x.unflatten(1, (-1, min(size, x.shape[1]))).flatten(0, 1) for x in part]
        masks = {} if key_mask is None else {"key_mask": blocks.pop()}
        x, _ = attend_heads(module, blocks, tables, reach, masks, return_weights=False, **options)
        outputs.append(x.unflatten(0, (batch, -1)).flatten(1, 2))
    return torch.cat(outputs, dim=1)


class Attention:
    """Attention of Granite Speech and Granite Speech Plus."""

    def forward(self, hidden_states, attention_dists):
        x = self.pre_norm(hidden_states)
        outputs = attend_in_blocks(
            self,
            (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)),
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
            [linear(hidden_states) for linear in (self.q_proj, self.k_proj, self.v_proj)],
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
