"""`python -m trainer.train` with an additional preset, `small`, for tests in a separate process."""

import sys

from absl import app

from t2t_relpos.models import PRESETS
from trainer import recipes, train


def add_preset():
    """Adds the preset `small` and its recipe."""
    PRESETS["small"] = PRESETS["tiny"] | {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 12,
        "intermediate_dim": 17,
        "num_heads": 3,
        "dropout": 0.3,
    }
    recipes.RECIPES["small"] = recipes.RECIPES["tiny"] | {
        "warmup_steps": 5,
        "batch_tokens": 250,
        "train_steps": 8,
    }


def remove_preset():
    """Removes the preset `small` and its recipe."""
    del PRESETS["small"], recipes.RECIPES["small"]


if __name__ == "__main__":
    add_preset()
    train.define_flags()
    app.run(train.main, sys.argv)
