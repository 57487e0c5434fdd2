"""SeamlessM4T v2: a speech encoder of the layers of w2v-BERT 2.0, whose attention is in chunks.

Chunks and padding are handed on in the keyword arguments, which reach all layers.
"""

from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families import wav2vec2_bert as conformer
from t2t_relpos.integrations.families.attention import mask_arguments


class Attention:
    """Attention of the speech encoder.

    `chunks` is (frames of a chunk, chunks on the left that a frame attends to, or -1 for all).
    """

    def forward(self, hidden_states, attention_mask=None, chunks=None, **kwargs):
        masks = mask_arguments(attention_mask, hidden_states.shape[0])
        if masks is None or kwargs.get("is_causal"):
            return super().forward(hidden_states, attention_mask, **kwargs)
        return conformer.conformer_attention(self, hidden_states, masks, kwargs, chunks)


class Encoder:
    """Encoder that hands its padding mask on as `key_mask`, and `chunks`."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        chunks, size = None, self.config.speech_encoder_chunk_size
        if size is not None:
            chunks = size, self.config.speech_encoder_left_chunk_num
            # transformers ignores it beside a mask, which chunks always make.
            kwargs.pop("is_causal", None)
        if kwargs.get("is_causal") or not conformer.takes_key_mask(self):
            return super().forward(hidden_states, attention_mask, **kwargs)
        hidden_states = conformer.zero_padding(hidden_states, attention_mask)
        return super().forward(hidden_states, key_mask=attention_mask, chunks=chunks, **kwargs)

    def _apply_chunk_attention(self, attention_mask, hidden_states):
        """Returns no mask of pairs if layers take `chunks`."""
        if conformer.takes_key_mask(self):
            return attention_mask
        return super()._apply_chunk_attention(attention_mask, hidden_states)


def small_config():
    """Returns the configuration of the encoder that is compared."""
    from transformers import SeamlessM4Tv2Config

    return SeamlessM4Tv2Config(
        hidden_size=16,
        speech_encoder_layers=2,
        speech_encoder_attention_heads=2,
        speech_encoder_intermediate_size=16,
        speech_encoder_chunk_size=120,
        speech_encoder_left_chunk_num=1,
        speech_encoder_layerdrop=0.0,
        speech_encoder_dropout=0.0,
        left_max_position_embeddings=9,
        right_max_position_embeddings=4,
        conv_depthwise_kernel_size=3,
        attn_implementation="sdpa",
        **conformer.NO_DROPOUT,
    )


_MODULE = "transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2"
FAMILIES = [
    Family(
        name="SeamlessM4T v2",
        attention={f"{_MODULE}.SeamlessM4Tv2ConformerSelfAttention": Attention},
        optional={
            f"{_MODULE}.SeamlessM4Tv2ConformerEncoderLayer": conformer.EncoderLayer,
            f"{_MODULE}.SeamlessM4Tv2ConformerEncoder": Encoder,
        },
        has_tables=conformer.has_relative_key,
        condition="position_embeddings_type='relative_key'",
        encoder=f"{_MODULE}.SeamlessM4Tv2ConformerEncoder",
        small_config=small_config,
        call=lambda encoder, x, padding_mask: encoder(x, padding_mask)[0],
    )
]
