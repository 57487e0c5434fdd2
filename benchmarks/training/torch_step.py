"""The training step of PyTorch's own `torch.nn.Transformer`, pre-norm with sinusoidal positions.

It has the sizes and dropout rates of the preset. Embeddings and softmax share one table. Fused Adam
updates the weights. PyTorch uses its fused attention wherever it can.
"""

import math
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class TranslationModel(nn.Module):
    """Embeddings, positions, `torch.nn.Transformer` and logits, for fields of a config."""

    def __init__(self, config: dict, label_smoothing: float, max_length: int):
        super().__init__()
        width, self.label_smoothing = config["hidden_dim"], label_smoothing
        self.embedding = nn.Embedding(config["vocab_size"], width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.register_buffer("positions", sinusoids(max_length, width))
        self.dropout = nn.Dropout(config["dropout"])
        with warnings.catch_warnings():
            # Inference of pre-norm layers has no nested tensors, and training none at all.
            warnings.filterwarnings("ignore", "enable_nested_tensor")
            self.transformer = nn.Transformer(
                width,
                config["num_heads"],
                config["num_encoder_layers"],
                config["num_decoder_layers"],
                config["intermediate_dim"],
                config["dropout"],
                layer_norm_eps=config["layer_norm_epsilon"],
                batch_first=True,
                norm_first=True,
            )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = config["attention_dropout"]
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            # The dropout inside the feed-forward network.
            layer.dropout.p = config["activation_dropout"]

    def embed(self, ids):
        """Returns `[B, T, D]` for ids `[B, T]`."""
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.shape[1]])

    def forward(self, inputs, targets):
        """Returns the mean loss per target token for ids `[B, S]` and `[B, T]`, 0 for padding."""
        is_padding, length = inputs == 0, targets.shape[1]
        # No mask of the padding of targets is needed: it follows all tokens.
        states = self.transformer(
            self.embed(inputs),
            self.embed(functional.pad(targets[:, :-1], (1, 0))),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length),
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        logits = functional.linear(states, self.embedding.weight)
        return functional.cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
            ignore_index=0,
            label_smoothing=self.label_smoothing,
        )


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Returns sinusoidal position encodings `[length, width]`, sines before cosines."""
    rates = 1e-4 ** np.linspace(0, 1, width // 2)
    angles = np.arange(length)[:, None] * rates
    return torch.tensor(np.concatenate([np.sin(angles), np.cos(angles)], 1), dtype=torch.float32)


def make(settings):
    """Returns `prepare(batches)`, which returns a function that trains a model on the batches."""
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(1)
    config = settings["config"]
    model = TranslationModel(config, settings["label_smoothing"], settings["max_length"])
    adam = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)

    def step(inputs, targets):
        adam.zero_grad()
        loss = model(inputs, targets)
        loss.backward()
        adam.step()
        return loss.item()

    def prepare(batches):
        tensors = [[torch.tensor(ids).long() for ids in batch] for batch in batches]
        return lambda: [step(*batch) for batch in tensors]

    return prepare
