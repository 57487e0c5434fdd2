"""SeamlessM4T, the first version: a speech encoder with "relative" positions, Transformer-XL's.

Its layers are those of w2v-BERT 2.0. The attention of the adapter has no positions, and stays with
transformers. Frames of padding attend to the frames that are none, in transformers and here, and
are equal.
"""

from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families import wav2vec2_bert as conformer


def small_config():
    """Returns the configuration of the encoder that is compared."""
    from transformers import SeamlessM4TConfig

    return SeamlessM4TConfig(
        hidden_size=16,
        speech_encoder_layers=2,
        speech_encoder_attention_heads=2,
        speech_encoder_intermediate_size=16,
        speech_encoder_layerdrop=0.0,
        speech_encoder_dropout=0.0,
        position_embeddings_type="relative",
        conv_depthwise_kernel_size=3,
        attn_implementation="sdpa",
    )


_MODULE = "transformers.models.seamless_m4t.modeling_seamless_m4t"
FAMILIES = [
    Family(
        name="SeamlessM4T",
        attention={f"{_MODULE}.SeamlessM4TConformerSelfAttention": conformer.Attention},
        optional={
            f"{_MODULE}.SeamlessM4TConformerEncoderLayer": conformer.EncoderLayer,
            f"{_MODULE}.SeamlessM4TConformerEncoder": conformer.Encoder,
        },
        has_tables=conformer.has_relative,
        condition="position_embeddings_type='relative'",
        encoder=f"{_MODULE}.SeamlessM4TConformerEncoder",
        small_config=small_config,
        call=lambda encoder, x, padding_mask: encoder(x, padding_mask),
    )
]
