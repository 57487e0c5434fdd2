"""`python -m trainer.train` with an additional preset, `small`, for tests in a separate process."""

import sys

from absl import app

from t2t_relpos.models import PRESETS
from trainer import recipes, train

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

if __name__ == "__main__":
    train.define_flags()
    app.run(train.main, sys.argv)
