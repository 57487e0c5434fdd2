"""The models that record_models.py records, as data."""

import dataclasses

# These sizes keep a checkpoint near 100 kB. All sizes of a model are different.
SMALL = {"hidden_size": 24, "filter_size": 40, "num_heads": 4, "num_hidden_layers": 2}
# Dropout uses tensor2tensor's random numbers, so losses are comparable only without it.
NO_DROPOUT = {
    "layer_prepostprocess_dropout": 0.0,
    "attention_dropout": 0.0,
    "relu_dropout": 0.0,
}


@dataclasses.dataclass(frozen=True)
class ModelCase:
    """The hparams of one model, and its number of training steps on the toy task.

    The number of steps is small, so that the model is uncertain and its beams differ. `slots`
    keeps Adam's slots in the checkpoint. `averaged` selects t2t's average of the last three
    checkpoints.
    """

    name: str
    hparams_set: str
    vocab_size: int
    seed: int
    overrides: dict = dataclasses.field(default_factory=dict)
    target_space_id: int = 0
    steps: int = 300
    slots: bool = False
    averaged: bool = False

    @property
    def hparams(self):
        return {**SMALL, **NO_DROPOUT, **self.overrides}


RELATIVE = "transformer_relative_tiny"

CASES = (
    ModelCase("relative_short_k", RELATIVE, 37, 1, {"max_relative_position": 3}),
    ModelCase("relative_long_k", RELATIVE, 43, 2, {"max_relative_position": 37}),
    ModelCase(
        "relative_post_norm",
        RELATIVE,
        41,
        3,
        {
            "max_relative_position": 3,
            "layer_preprocess_sequence": "none",
            "layer_postprocess_sequence": "dan",
        },
        target_space_id=3,
    ),
    ModelCase(
        "relative_sinusoidal",
        RELATIVE,
        47,
        4,
        {
            "max_relative_position": 3,
            "pos": "timing",
            "num_encoder_layers": 1,
            "num_decoder_layers": 2,
        },
    ),
    ModelCase(
        "relative_separate_softmax",
        RELATIVE,
        37,
        5,
        {"max_relative_position": 5, "shared_embedding_and_softmax_weights": False},
        target_space_id=21,
    ),
    ModelCase("sinusoidal", "transformer_tiny", 53, 6, target_space_id=8),
    ModelCase(
        "sinusoidal_post_norm",
        "transformer_base_v1",
        48,
        7,
        {"num_encoder_layers": 2, "num_decoder_layers": 1},
    ),
    ModelCase("learned", "transformer_tiny", 39, 8, {"pos": "emb", "max_length": 61}),
    ModelCase("relative_adam_slots", RELATIVE, 37, 9, {"max_relative_position": 2}, slots=True),
    ModelCase(
        "relative_averaged",
        RELATIVE,
        37,
        10,
        {"max_relative_position": 2},
        slots=True,
        averaged=True,
    ),
)
