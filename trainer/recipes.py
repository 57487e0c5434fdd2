"""Default training settings of each preset.

The presets' architectures are in t2t_relpos.models.PRESETS. DEFAULTS applies to all recipes.
`learning_rate` multiplies the Noam schedule. `batch_tokens` counts the tokens of the longer side
over all devices.
"""

# Shaw et al. 2018, section 4.1, and Vaswani et al. 2017, section 5.
_SHAW = {
    "vocab_size": 32768,
    "train_steps": 100_000,
    "batch_tokens": 25_000,
    "learning_rate": 1.0,
    "warmup_steps": 4000,
    "label_smoothing": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_epsilon": 1e-9,
}
# Section 4.1 as well: "a checkpoint every 10 minutes", and the big model averages the last 20.
# Batches are split into micro-batches, because the logits of 25,000 tokens take 3 GB.
_SHAW_RUN = {"checkpoint_minutes": 10.0, "device_tokens": 4096}
# t2t transformer_base_v1: the paper's settings with t2t's batch size. 250,000 steps are the default
# of t2t_trainer.
_T2T_V1 = _SHAW | {"train_steps": 250_000, "batch_tokens": 4096}
# t2t transformer_base_v3.
_T2T = _T2T_V1 | {"learning_rate": 2.0, "warmup_steps": 8000, "adam_beta2": 0.997}
_T2T_BIG = _T2T | {"batch_tokens": 2048}

# For corpora of a few ten thousand sentences, tuned on the dev set of Multi30k: see "The recipe for
# small data" in docs/results.md.
_SMALL = {
    "vocab_size": 8000,
    "train_steps": 16_000,
    "batch_tokens": 1024,
    "warmup_steps": 2000,
    "adam_beta2": 0.98,
    "checkpoint_every": 500,
    "keep_checkpoints": 10,  # to average
}

RECIPES = {
    "shaw_base": _SHAW | _SHAW_RUN,
    "shaw_big": _SHAW | _SHAW_RUN | {"train_steps": 300_000, "keep_checkpoints": 20},
    "transformer_base": _T2T,
    "transformer_base_v1": _T2T_V1,
    "transformer_big": _T2T_BIG,
    "transformer_tiny": _T2T,
    "transformer_relative": _T2T,
    "transformer_relative_tiny": _T2T,
    "transformer_relative_big": _T2T_BIG,
    "tiny": _T2T | _SMALL,
}

DEFAULTS = {"keep_checkpoints": 5}
# If neither the settings nor the recipe have a checkpoint interval.
CHECKPOINT_EVERY = 1000
