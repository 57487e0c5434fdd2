"""Builds the steps of families of models of transformers that benchmarks measure.

As a program, it is a worker of `benchmarks.families`.
"""

import dataclasses

import torch
import transformers

from benchmarks import memory
from benchmarks.workers import answer_all
from t2t_relpos.integrations.exchange import exchange_classes, find_exchanges, is_attention
from t2t_relpos.integrations.families import imported, registered_families


@dataclasses.dataclass(frozen=True)
class Case:
    """The encoder of a family at the size of its published models, with one layer.

    Args:
        config: name of the class of its configuration.
        settings: arguments of the configuration. The others have the values of transformers.
        length: positions of a batch entry.
        implementations: those of transformers, by the names of `attn_implementation`.
        family: name of the family. Default: that of the case.
    """

    config: str
    settings: dict
    length: int
    implementations: tuple = ("eager", "sdpa")
    family: str = ""


# A layer that is dropped would take no time.
ONE_LAYER = {"num_hidden_layers": 1, "layerdrop": 0.0}
# An eighth of the heads of Inkling, and two experts, which are not measured.
INKLING = {
    "num_hidden_layers": 1,
    "vocab_size": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 2,
    "sliding_window_size": 512,
    "log_scaling_n_floor": 512,
    "moe_intermediate_size": 8,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "eos_token_id": 1,
}
# One layer after a subsampling that keeps the length, without dropout.
PARAKEET = {
    "num_hidden_layers": 1,
    "num_mel_bins": 8,
    "subsampling_factor": 2,
    "subsampling_conv_stride": 1,
    "subsampling_conv_channels": 2,
    **dict.fromkeys(("dropout", "layerdrop", "activation_dropout", "attention_dropout"), 0.0),
}
FULL, SLIDING = {"layer_types": ["hybrid"]}, {"layer_types": ["hybrid_sliding"]}
EAGER = ("eager",)
CASES = {
    # 50 frames are a second of sound.
    "w2v-BERT 2.0": Case(
        "Wav2Vec2BertConfig", ONE_LAYER | {"position_embeddings_type": "relative_key"}, 3000
    ),
    "w2v-BERT 2.0 relative": Case(
        "Wav2Vec2BertConfig",
        ONE_LAYER | {"position_embeddings_type": "relative"},
        1500,
        family="w2v-BERT 2.0",
    ),
    "Wav2Vec2-Conformer": Case(
        "Wav2Vec2ConformerConfig",
        ONE_LAYER
        | {
            "position_embeddings_type": "relative",
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
        1500,
    ),
    "SeamlessM4T": Case(
        "SeamlessM4TConfig", {"speech_encoder_layers": 1, "speech_encoder_layerdrop": 0.0}, 1500
    ),
    "SeamlessM4T v2": Case(
        "SeamlessM4Tv2Config", {"speech_encoder_layers": 1, "speech_encoder_layerdrop": 0.0}, 3000
    ),
    "FastSpeech2-Conformer": Case(
        "FastSpeech2ConformerConfig", {"encoder_layers": 1, "decoder_layers": 1}, 1500, ("eager",)
    ),
    # 12.5 frames are a second of sound.
    "Parakeet": Case("ParakeetEncoderConfig", PARAKEET, 1500),
    "Parakeet with dropout": Case(
        "ParakeetEncoderConfig", PARAKEET | {"attention_dropout": 0.1}, 1500, family="Parakeet"
    ),
    "Nemotron ASR": Case("NemotronAsrStreamingEncoderConfig", PARAKEET, 1500, ("sdpa",)),
    "SpeechT5": Case(
        "SpeechT5Config", {"encoder_layers": 1, "encoder_layerdrop": 0.0}, 1500, ("eager",)
    ),
    # Characters.
    "VITS": Case("VitsConfig", ONE_LAYER, 400, ("eager",)),
    "Granite Speech": Case("GraniteSpeechEncoderConfig", {"num_layers": 1}, 1500, ("eager",)),
    "Granite Speech Plus": Case(
        "GraniteSpeechPlusEncoderConfig", {"num_layers": 1}, 1500, ("eager",)
    ),
    "Granite Speech 5": Case(
        "GraniteSpeech5EncoderConfig", {"num_hidden_layers": 1, "subsample_layers": []}, 1500
    ),
    # Tokens.
    "Inkling full": Case("InklingTextConfig", INKLING | FULL, 4096, family="Inkling"),
    "Inkling sliding": Case("InklingTextConfig", INKLING | SLIDING, 4096, family="Inkling"),
    "Inkling 2 full": Case("Inkling2TextConfig", INKLING | FULL, 4096, EAGER, "Inkling 2"),
    "Inkling 2 sliding": Case("Inkling2TextConfig", INKLING | SLIDING, 4096, EAGER, "Inkling 2"),
}


def family_of(name: str):
    """Returns the family of a case."""
    return registered_families()[CASES[name].family or name]


def make_encoder(family: str, implementation: str):
    """Returns (encoder with random weights, width of its inputs)."""
    torch.manual_seed(0)
    case, kind = CASES[family], imported(family_of(family).encoder)
    name = implementation if implementation in case.implementations else case.implementations[0]
    config = getattr(transformers, case.config)(**case.settings, attn_implementation=name)
    encoder = kind(config)
    if implementation not in case.implementations:
        exchange_classes(find_exchanges(encoder), flash_attention=implementation == "fused")
    # Encoders of Granite begin with a projection, and those of Parakeet with a convolution.
    if projection := getattr(encoder, "input_linear", None):
        return encoder, projection.in_features
    return encoder, config.num_mel_bins if hasattr(encoder, "subsampling") else config.hidden_size


def make_step(
    family: str,
    implementation: str,
    length: int,
    batch_size=1,
    *,
    part="encoder",
    passes="both",
    is_padded=False,
    **placement,
):
    """Returns a function that runs a step of a family.

    Args:
        family: name of a case.
        implementation: one of `CASES`, or of this library "attend" or, with the fused kernel,
            "fused".
        length: positions of a batch entry.
        batch_size: batch entries.
        part: "encoder", or "attention" for the attention module of its layer alone.
        passes: "forward", or "both" for forward and backward.
        is_padded: whether batch entries after the first end in padding, up to a quarter of them.
        **placement: the arguments `device` and `dtype` of a tensor's method `to`.
    """
    encoder, width = make_encoder(family, implementation)
    encoder.to(**placement).train(passes == "both")
    x = torch.randn(batch_size, length, width, generator=torch.Generator().manual_seed(length))
    real = [length - is_padded * i * length // (4 * batch_size) for i in range(batch_size)]
    padding_mask = (torch.arange(length) < torch.tensor(real)[:, None]).to(placement.get("device"))
    call, x = family_of(family).call, x.to(**placement)
    module, run = encoder, lambda: call(encoder, x, padding_mask)
    if part == "attention":
        module, arguments, options = _first_call_of_attention(encoder, run)
        run = lambda: module(*arguments, **options)

    def infer():
        with torch.no_grad():
            run()

    def train():
        outputs = run()
        outputs = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        outputs.square().mean().backward()
        module.zero_grad()

    return train if passes == "both" else infer


def _first_call_of_attention(encoder, run):
    """Returns (module, arguments, keyword arguments) of the first call of attention in `run`."""
    calls = []

    def record(module, arguments, options):
        calls.append((module, arguments, options))

    handles = [
        module.register_forward_pre_hook(record, with_kwargs=True)
        for module in encoder.modules()
        if is_attention(module)
    ]
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return calls[0]


def start_worker(settings: dict):
    """Returns the function that prepares the answers of a worker to "memory" and "time"."""
    torch.set_num_threads(settings["threads"])
    family, implementation, length = (settings[x] for x in ("family", "kind", "length"))
    options = settings["options"]
    # The first step of a process allocates memory that does not depend on the length.
    make_step(family, implementation, 8, **options)()
    step = make_step(family, implementation, length, **options)

    def megabytes():
        before = memory.reset_peak()
        step()
        step()
        return memory.peak() - before

    return lambda message: megabytes if message == "memory" else step


if __name__ == "__main__":
    answer_all(start_worker)
