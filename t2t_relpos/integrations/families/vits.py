"""VITS and MMS-TTS: the text encoder, with vectors for keys and values that are zero beyond K."""

from torch.nn.functional import pad

from t2t_relpos.integrations.exchange import is_exchanged
from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families.attention import attend_heads, key_mask, mask_arguments


class Encoder:
    """Text encoder that hands the padding mask on as `[B, 1, 1, T]`."""

    def forward(self, hidden_states, padding_mask, attention_mask=None, *args, **kwargs):
        if all(is_exchanged(layer.attention) for layer in self.layers):
            attention_mask = key_mask(attention_mask, hidden_states.device)
        return super().forward(hidden_states, padding_mask, attention_mask, *args, **kwargs)


class Attention:
    """Attention of the text encoder, whose vectors are zero beyond the window."""

    def forward(
        self,
        hidden_states,
        key_value_states=None,
        attention_mask=None,
        output_attentions=None,
    ):
        masks = mask_arguments(attention_mask, hidden_states.shape[0])
        if masks is None:
            return super().forward(
                hidden_states, key_value_states, attention_mask, output_attentions
            )
        outputs, weights = attend_heads(
            self,
            [linear(hidden_states) for linear in (self.q_proj, self.k_proj, self.v_proj)],
            # One more distance on both sides, whose vector is zero.
            [pad(x[0], (0, 0, 1, 1)) for x in (self.emb_rel_k, self.emb_rel_v)],
            self.window_size + 1,
            masks,
            head_dim=self.head_dim,
            scale=self.scaling,
            dropout=self.dropout,
            return_weights=bool(output_attentions),
        )
        return self.out_proj(outputs), weights


def small_config():
    """Returns the configuration of the encoder that is compared."""
    from transformers import VitsConfig

    return VitsConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        window_size=4,
        ffn_dim=16,
        layerdrop=0.0,
        hidden_dropout=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
        attn_implementation="eager",
    )


def _call(encoder, x, padding_mask):
    return encoder(x, padding_mask[..., None].to(x.dtype), padding_mask)[0]


_MODULE = "transformers.models.vits.modeling_vits"
FAMILIES = [
    Family(
        name="VITS",
        attention={f"{_MODULE}.VitsAttention": Attention},
        optional={f"{_MODULE}.VitsEncoder": Encoder},
        has_tables=lambda module: bool(module.window_size),
        condition="the text encoder with window_size",
        encoder=f"{_MODULE}.VitsEncoder",
        small_config=small_config,
        call=_call,
    )
]
