"""FastSpeech2-Conformer: text encoder and speech decoder, with the positions of Transformer-XL.

Masks are `[B, 1, T]`, so encoder and decoder stay as they are. Dropout of positions drops entries
of the sinusoids, before the attention. Frames of padding attend to the frames that are none, in
transformers and here, and are equal. In both, convolutions read them, and in evaluation the decoder
has no mask.
"""

from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families.transformer_xl import attend_transformer_xl, is_exported


class Attention:
    """Attention of the encoder and the decoder. `pos_emb` are the sinusoids `[1, 2T - 1, D]`."""

    def forward(self, hidden_states, attention_mask=None, pos_emb=None, output_attentions=False):
        batch, length, _ = hidden_states.shape
        is_other = attention_mask is not None and attention_mask.shape != (batch, 1, length)
        if is_other or is_exported():
            return super().forward(hidden_states, attention_mask, pos_emb, output_attentions)
        masks = {} if attention_mask is None else {"key_mask": attention_mask[:, 0] != 0}
        outputs, weights = attend_transformer_xl(
            self,
            [linear(hidden_states) for linear in (self.linear_q, self.linear_k, self.linear_v)],
            self.linear_pos(pos_emb),
            (self.pos_bias_u, self.pos_bias_v),
            masks,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            dropout=self.dropout.p,
            return_weights=bool(output_attentions),
        )
        return self.linear_out(outputs), weights


def small_config():
    """Returns the configuration of the model whose decoder is compared."""
    from transformers import FastSpeech2ConformerConfig

    rates = ("dropout_rate", "positional_dropout_rate", "attention_dropout_rate")
    return FastSpeech2ConformerConfig(
        hidden_size=16,
        vocab_size=5,
        num_mel_bins=4,
        encoder_layers=1,
        decoder_layers=2,
        encoder_linear_units=16,
        decoder_linear_units=16,
        decoder_kernel_size=3,
        **dict.fromkeys((f"decoder_{rate}" for rate in rates), 0.0),
    )


_MODULE = "transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer"
FAMILIES = [
    Family(
        name="FastSpeech2-Conformer",
        attention={f"{_MODULE}.FastSpeech2ConformerAttention": Attention},
        encoder=f"{_MODULE}.FastSpeech2ConformerModel",
        small_config=small_config,
        # The encoder has the same class, and takes token ids.
        call=lambda model, x, padding_mask: model.decoder(x, padding_mask[:, None])[0],
    )
]
