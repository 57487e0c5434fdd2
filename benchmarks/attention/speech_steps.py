"""Builds the steps of modules of transformers' speech models that benchmarks measure."""

import torch
from transformers import VitsConfig, Wav2Vec2BertConfig
from transformers.models.vits import modeling_vits as vits
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as wav2vec2_bert

from t2t_relpos.integrations.transformers import replace_attention


def make_module(implementation: str, part: str):
    """Returns a module and the width of its inputs. "fused" is `attend` with the fused kernel."""
    torch.manual_seed(0)
    config = VitsConfig() if part == "vits" else Wav2Vec2BertConfig()
    if part != "vits":
        config.position_embeddings_type = "relative_key"
    config._attn_implementation = "sdpa" if implementation == "sdpa" else "eager"
    config.num_hidden_layers, config.apply_spec_augment = 1, False
    kinds = {
        "attention": wav2vec2_bert.Wav2Vec2BertSelfAttention,
        "encoder": wav2vec2_bert.Wav2Vec2BertEncoderLayer,
        "model": wav2vec2_bert.Wav2Vec2BertModel,
        "vits": vits.VitsAttention,
    }
    module = kinds[part](config)
    if implementation in ("attend", "fused"):
        replace_attention(module, flash_attention=implementation == "fused")
    return module, config.feature_projection_input_dim if part == "model" else config.hidden_size


def make_step(
    implementation: str,
    part: str,
    passes: str,
    length: int,
    batch_size=1,
    *,
    is_padded=False,
    **placement,
):
    """Returns a function that runs a module forward, or forward and backward.

    `is_padded` gives the model a padding mask. `placement` has the arguments `device` and `dtype`
    of a tensor's method `to`.
    """
    module, width = make_module(implementation, part)
    module.to(**placement)
    x = torch.randn(batch_size, length, width, generator=torch.Generator().manual_seed(length))
    x, options = x.to(**placement), {}
    if is_padded:
        real = [length - i * length // (4 * batch_size) for i in range(batch_size)]
        is_real = torch.arange(length) < torch.tensor(real)[:, None]
        options["attention_mask"] = is_real.long().to(x.device)

    def infer():
        with torch.no_grad():
            module(x, **options)

    def train():
        outputs = module(x, **options)
        outputs = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        outputs.square().mean().backward()
        module.zero_grad()

    module.train(passes == "both")
    return train if passes == "both" else infer
