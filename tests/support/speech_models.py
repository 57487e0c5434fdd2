"""Small speech models of transformers with random weights."""

import dataclasses
from collections.abc import Callable

import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.seamless_m4t import modeling_seamless_m4t as seamless_v1
from transformers.models.seamless_m4t_v2 import modeling_seamless_m4t_v2 as seamless

LEFT, RIGHT, WIDTH, VOCAB = 5, 3, 16, 19
# One position, fewer than LEFT, more than LEFT + RIGHT.
LENGTHS = 1, 4, 21
NO_DROPOUT = dict.fromkeys(
    "hidden_dropout attention_dropout activation_dropout feat_proj_dropout conformer_conv_dropout "
    "layerdrop speech_encoder_dropout speech_encoder_layerdrop adaptor_dropout positional_dropout "
    "encoder_layerdrop decoder_layerdrop wavenet_dropout".split(),
    0.0,
)
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2}
WAVEFORM = {
    "conv_dim": (8,),
    "conv_stride": (2,),
    "conv_kernel": (2,),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
}
SEAMLESS = {
    "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": 2,
    "speech_encoder_intermediate_size": 24,
    "feature_projection_input_dim": 8,
    "conv_depthwise_kernel_size": 3,
    "add_adapter": True,
    "num_adapter_layers": 1,
    "adaptor_kernel_size": 3,
    "adaptor_stride": 2,
}
TABLES = "distance_embedding", "pe_k", "emb_rel", "linear_pos", "pos_bias"


def initialize(model):
    """Returns the model with random weights, so that attention is not uniform."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if any(table in name for table in TABLES):
            torch.nn.init.normal_(parameter, generator=generator)
        elif parameter.ndim == 2 and "embed" not in name:
            std = parameter.shape[1] ** -0.5
            torch.nn.init.normal_(parameter, std=std, generator=generator)
    return model


def settings(dropout, **sizes):
    """Returns arguments of a configuration, and sets the seed of the model's other weights."""
    torch.manual_seed(2)
    rates = NO_DROPOUT if dropout is None else NO_DROPOUT | dropout
    return {"vocab_size": VOCAB, "hidden_size": WIDTH, **rates, **sizes}


def w2v_bert(implementation="sdpa", dropout=None, model_class=None, **options):
    config = transformers.Wav2Vec2BertConfig(
        **settings(dropout),
        **SIZES,
        intermediate_size=24,
        feature_projection_input_dim=8,
        left_max_position_embeddings=LEFT,
        right_max_position_embeddings=RIGHT,
        conv_depthwise_kernel_size=3,
        output_hidden_size=WIDTH,
        num_adapter_layers=1,
        apply_spec_augment=False,
        attn_implementation=implementation,
        **options,
    )
    return initialize((model_class or transformers.Wav2Vec2BertModel)(config))


def seamless_encoder(implementation="sdpa", dropout=None, chunk_size=20_000):
    config = transformers.SeamlessM4Tv2Config(
        **settings(dropout),
        **SEAMLESS,
        speech_encoder_chunk_size=chunk_size,
        speech_encoder_left_chunk_num=1,
        left_max_position_embeddings=LEFT,
        right_max_position_embeddings=RIGHT,
    )
    encoder = seamless.SeamlessM4Tv2SpeechEncoder
    return initialize(encoder._from_config(config, attn_implementation=implementation))


def w2v_bert_relative(*args, **kwargs):
    return w2v_bert(*args, position_embeddings_type="relative", **kwargs)


def wav2vec2_conformer(implementation="sdpa", dropout=None, **options):
    config = transformers.Wav2Vec2ConformerConfig(
        **settings(dropout),
        **SIZES,
        **WAVEFORM,
        intermediate_size=24,
        conv_depthwise_kernel_size=3,
        attn_implementation=implementation,
        **{"position_embeddings_type": "relative"} | options,
    )
    return initialize(transformers.Wav2Vec2ConformerModel(config))


def seamless_v1_encoder(implementation="sdpa", dropout=None):
    config = transformers.SeamlessM4TConfig(**settings(dropout), **SEAMLESS)
    encoder = seamless_v1.SeamlessM4TSpeechEncoder
    return initialize(encoder._from_config(config, attn_implementation=implementation))


def fastspeech2(implementation=None, dropout=None):
    torch.manual_seed(2)
    rates = [f"{x}dropout_rate" for x in ("", "positional_", "attention_")]
    rates = [f"{part}_{rate}" for part in ("encoder", "decoder") for rate in rates]
    config = transformers.FastSpeech2ConformerConfig(
        **dict.fromkeys(rates, 0.0) | (dropout or {}),
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_mel_bins=4,
        encoder_layers=1,
        decoder_layers=1,
        encoder_linear_units=24,
        decoder_linear_units=24,
        encoder_kernel_size=3,
        decoder_kernel_size=3,
    )
    return initialize(transformers.FastSpeech2ConformerModel(config))


def speecht5(implementation=None, dropout=None):
    config = transformers.SpeechT5Config(
        **settings(dropout),
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=24,
        encoder_max_relative_position=4,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=24,
        **WAVEFORM,
    )
    return initialize(transformers.SpeechT5ForSpeechToText(config))


def vits(implementation=None, dropout=None, window_size=2):
    config = transformers.VitsConfig(
        **settings(dropout),
        **SIZES,
        window_size=window_size,
        ffn_dim=24,
        flow_size=4,
        spectrogram_bins=5,
        wavenet_kernel_size=3,
        upsample_initial_channel=8,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        posterior_encoder_num_wavenet_layers=1,
        prior_encoder_num_flows=1,
        prior_encoder_num_wavenet_layers=1,
        duration_predictor_num_flows=1,
        duration_predictor_filter_channels=8,
        depth_separable_num_layers=1,
        depth_separable_channels=2,
    )
    return initialize(transformers.VitsModel(config))


def call_encoder(model, length, padding, dtype=torch.float32, **options):
    """Returns the outputs of an encoder of features, of w2v-BERT or SeamlessM4T v2."""
    x = torch.randn(2, length, 8, generator=torch.Generator().manual_seed(5))
    return model(x.to(dtype), attention_mask=padding, **options)


def call_wav2vec2_conformer(model, length, padding, dtype=torch.float32, **options):
    x = torch.randn(2, 2 * length, generator=torch.Generator().manual_seed(5))
    padding = None if padding is None else padding.repeat_interleave(2, dim=1)
    return model(x.to(dtype), attention_mask=padding, **options)


def call_fastspeech2(model, length, padding, return_dict=True, **options):
    """Returns the outputs of the encoder and the decoder, which gets those of the encoder."""
    options.pop("dtype", None)
    ids = torch.randint(1, VOCAB, (2, length), generator=torch.Generator().manual_seed(5))
    mask = None if padding is None else padding[:, None]
    x, parts = ids, []
    for part in (model.encoder, model.decoder):
        parts.append(part(x, mask, return_dict=True, **options))
        x = parts[-1].last_hidden_state
    joined = BaseModelOutput(last_hidden_state=x)
    for name in parts[0].keys() - joined.keys():
        joined[name] = tuple(y for part in parts for y in part[name])
    return joined if return_dict else joined.to_tuple()


def call_speecht5(model, length, padding, dtype=torch.float32, **options):
    x = torch.randn(2, 2 * length, generator=torch.Generator().manual_seed(5))
    padding = None if padding is None else padding.repeat_interleave(2, dim=1)
    ids = torch.ones(2, 3, dtype=torch.long)
    return model(x.to(dtype), attention_mask=padding, decoder_input_ids=ids, **options)


def call_vits(model, length, padding, dtype=torch.float32, **options):
    ids = torch.randint(1, VOCAB, (2, length), generator=torch.Generator().manual_seed(5))
    is_token = torch.ones(2, length) if padding is None else padding
    return model.text_encoder(
        ids, padding_mask=is_token[..., None].to(dtype), attention_mask=padding, **options
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, a call of it, and its outputs by name with the number of positions per output."""

    make: Callable
    call: Callable
    # Name of the outputs, and how many positions of the inputs an output has.
    output: str = "last_hidden_state"
    stride: int = 1
    attentions: str = "attentions"
    # The implementation of transformers that masks padding and returns weights.
    eager: bool = True
    # Gradients of biases before batch normalization are 0 but for rounding.
    tolerance: float = 1e-5

    def padding(self, length):
        """Returns a mask `[2, T]` with padding in the second sequence."""
        return (torch.arange(length) < torch.tensor([[length], [(length + 1) // 2]])).long()

    def outputs(self, model, length, padding, **options):
        """Returns the outputs at real positions."""
        x = self.call(model, length, padding, **options)[self.output]
        if padding is None or self.output == "logits":
            return x
        real = padding[:, :: self.stride].bool()
        return x[:, : real.shape[1]][real]


def chunked(*args, **kwargs):
    return seamless_encoder(*args, chunk_size=4, **kwargs)


CASES = {
    "w2v-BERT": Case(w2v_bert, call_encoder),
    "w2v-BERT, relative": Case(w2v_bert_relative, call_encoder),
    "Wav2Vec2-Conformer": Case(wav2vec2_conformer, call_wav2vec2_conformer),
    "SeamlessM4T v1": Case(seamless_v1_encoder, call_encoder, stride=2),
    "FastSpeech2-Conformer": Case(fastspeech2, call_fastspeech2, tolerance=1e-4),
    "SeamlessM4T": Case(seamless_encoder, call_encoder, stride=2),
    "SeamlessM4T, chunks": Case(chunked, call_encoder, stride=2),
    "SpeechT5": Case(speecht5, call_speecht5, output="logits", attentions="encoder_attentions"),
    "VITS": Case(vits, call_vits),
}
