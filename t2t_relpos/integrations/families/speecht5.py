"""SpeechT5: the encoder, whose layers share one table.

The exchanged positional encoding returns the table, and the exchanged attention gets it as
`position_bias`. The decoder has modules of the same classes, without relative positions.
"""

import torch

from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families.attention import attend_heads, key_mask, mask_arguments


class Encoder:
    """Encoder that hands the padding mask on as `[B, 1, 1, T]`."""

    def forward(self, hidden_states, attention_mask=None, *args, **kwargs):
        attention_mask = key_mask(attention_mask, hidden_states.device)
        return super().forward(hidden_states, attention_mask, *args, **kwargs)


class PositionalEncoding:
    """Returns the key table `[2M, H]` for the distances `(M - 1, M)`.

    Row `i` of the embedding is of the key at distance `M - i`, so the order of rows is reversed.
    """

    def forward(self, hidden_states):
        rows = torch.arange(2 * self.max_length, device=hidden_states.device)
        return self.pe_k(rows.flip(0))


class Attention:
    """Attention of the encoder. Its `position_bias` is the key table."""

    def forward(
        self,
        hidden_states,
        *args,
        attention_mask=None,
        position_bias=None,
        output_attentions=False,
        **kwargs,
    ):
        masks = mask_arguments(attention_mask, hidden_states.shape[0])
        if args or kwargs or masks is None or position_bias is None:
            return super().forward(
                hidden_states,
                *args,
                attention_mask=attention_mask,
                position_bias=_vectors_of_pairs(position_bias, hidden_states),
                output_attentions=output_attentions,
                **kwargs,
            )
        right = len(position_bias) // 2
        outputs, weights = attend_heads(
            self,
            [linear(hidden_states) for linear in (self.q_proj, self.k_proj, self.v_proj)],
            (position_bias,),
            (right - 1, right),
            masks,
            head_dim=self.head_dim,
            scale=self.scaling,
            dropout=self.dropout,
            return_weights=bool(output_attentions),
        )
        return self.out_proj(outputs), weights


def _vectors_of_pairs(table, hidden_states):
    """Returns the vectors `[T, T, H]` that the encoder of transformers makes, or None."""
    if table is None:
        return None
    right = len(table) // 2
    positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)
    return table[(positions - positions[:, None]).clamp(1 - right, right) + right - 1]


def small_config():
    """Returns the configuration of the encoder that is compared."""
    from transformers import SpeechT5Config

    return SpeechT5Config(
        hidden_size=16,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=16,
        encoder_max_relative_position=9,
        encoder_layerdrop=0.0,
        hidden_dropout=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
        attn_implementation="eager",
    )


_MODULE = "transformers.models.speecht5.modeling_speecht5"
FAMILIES = [
    Family(
        name="SpeechT5",
        attention={f"{_MODULE}.SpeechT5Attention": Attention},
        required={f"{_MODULE}.SpeechT5RelativePositionalEncoding": PositionalEncoding},
        optional={f"{_MODULE}.SpeechT5Encoder": Encoder},
        inside=f"{_MODULE}.SpeechT5Encoder",
        condition="the encoder",
        encoder=f"{_MODULE}.SpeechT5Encoder",
        small_config=small_config,
        call=lambda encoder, x, padding_mask: encoder(x, padding_mask)[0],
    )
]
