"""The models that models.py records, as data."""

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
    checkpoints. A `language_model` has no inputs. `decoded`: whether decoding is recorded.
    `num_used_ids`: texts contain only ids below. Default: the size of the vocabulary.
    `source_vocab_size`: size of the vocabulary of the inputs. Default: `vocab_size`.
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
    language_model: bool = False
    decoded: bool = True
    num_used_ids: int | None = None
    source_vocab_size: int | None = None

    @property
    def features(self):
        """The names of the model's features, first that which decoding starts from."""
        return ("targets",) if self.language_model else ("inputs", "targets")

    @property
    def hparams(self):
        return {**SMALL, **NO_DROPOUT, **self.overrides}


RELATIVE = "transformer_relative_tiny"

TRANSLATION_MODELS = (
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
    # tensor2tensor does not share the tables of unlike vocabularies.
    ModelCase(
        "relative_two_vocabularies",
        RELATIVE,
        37,
        11,
        {"max_relative_position": 3},
        source_vocab_size=45,
    ),
)

# Small checkpoints, because there are many language models.
TINY = {"hidden_size": 16, "filter_size": 24, "num_heads": 2}


def language_model(name, hparams_set, vocab_size, seed, overrides, **settings):
    shards_and_loss = {"symbol_modality_num_shards": 1, "label_smoothing": 0.1}
    overrides = {**TINY, **shards_and_loss, **overrides}
    return ModelCase(
        name, hparams_set, vocab_size, seed, overrides, language_model=True, **settings
    )


def v2(name, vocab_size, seed, max_relative_position, **overrides):
    """Returns a language model with relative_v2, by default with tables per head, of keys only."""
    overrides |= {
        "self_attention_type": "dot_product_relative_v2",
        "max_relative_position": max_relative_position,
    }
    return language_model(f"language_v2_{name}", "transformer_tiny", vocab_size, seed, overrides)


# No sequence that is trained or decoded has 50 ids.
LANGUAGE_MODELS = (
    language_model(
        "language_sinusoidal", "transformer_tiny", 37, 21, {"symbol_modality_num_shards": 16}
    ),
    language_model(
        "language_unshared",
        "transformer_tiny",
        41,
        22,
        {"shared_embedding_and_softmax_weights": False},
    ),
    language_model("language_v1", RELATIVE, 43, 25, {"max_relative_position": 3}),
    v2("short_k", 37, 27, 3, pos=None, heads_share_relative_embedding=True),
    v2("long_k", 43, 28, 50, add_relative_to_values=True),
    v2(
        "shared_values",
        37,
        29,
        3,
        heads_share_relative_embedding=True,
        add_relative_to_values=True,
        symbol_modality_num_shards=16,
    ),
    v2("learned", 41, 30, 5, pos="emb", max_length=61),
    # Heads wider than the model: keys of 64 and values of 48 channels.
    v2(
        "wide_heads",
        47,
        31,
        5,
        add_relative_to_values=True,
        attention_key_channels=128,
        attention_value_channels=96,
        pos=None,
        shared_embedding_and_softmax_weights=False,
    ),
    # The shape of Magenta's unconditional_model_16.ckpt, except for its widths.
    language_model(
        "language_16_layers",
        "transformer_tpu",
        310,
        33,
        {"num_hidden_layers": 16, "hidden_size": 8, "filter_size": 16},
        steps=600,
        num_used_ids=30,
    ),
    language_model(
        "language_bfloat16", "transformer_tpu", 37, 34, {"weight_dtype": "bfloat16"}, decoded=False
    ),
)

CASES = (*TRANSLATION_MODELS, *LANGUAGE_MODELS)
