"""Wav2Vec2-Conformer with "relative" positions, those of Transformer-XL.

The attention is that of w2v-BERT 2.0, and so are masks, except that convolutions have none. Frames
of padding attend to the frames that are none, in transformers and here, and are equal. In both,
convolutions and the statistics of batch normalization in training read them.
"""

from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families import wav2vec2_bert as conformer
from t2t_relpos.integrations.families.attention import key_mask


class EncoderLayer:
    """Encoder layer that takes the `key_mask` of the encoder."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        if "key_mask" in kwargs:
            attention_mask = key_mask(kwargs.pop("key_mask"), hidden_states)
        return super().forward(hidden_states, attention_mask=attention_mask, **kwargs)


def small_config():
    """Returns the configuration of the encoder that is compared."""
    from transformers import Wav2Vec2ConformerConfig

    return Wav2Vec2ConformerConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        position_embeddings_type="relative",
        conv_depthwise_kernel_size=3,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        layerdrop=0.0,
        attn_implementation="sdpa",
        **conformer.NO_DROPOUT,
    )


_MODULE = "transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer"
FAMILIES = [
    Family(
        name="Wav2Vec2-Conformer",
        attention={f"{_MODULE}.Wav2Vec2ConformerSelfAttention": conformer.Attention},
        optional={
            f"{_MODULE}.Wav2Vec2ConformerEncoderLayer": EncoderLayer,
            f"{_MODULE}.Wav2Vec2ConformerEncoder": conformer.Encoder,
        },
        has_tables=conformer.has_relative,
        condition="position_embeddings_type='relative'",
        encoder=f"{_MODULE}.Wav2Vec2ConformerEncoder",
        small_config=small_config,
        call=lambda encoder, x, padding_mask: encoder(x, padding_mask)[0],
    )
]
