"""Recipes: default training settings of each preset, or of an existing model.

The presets' architectures are in t2t_relpos.models.PRESETS. DEFAULTS applies to all recipes.
`learning_rate` multiplies the Noam schedule. `batch_tokens` counts the tokens of the longer side
over all devices.
"""

import difflib
import json
from pathlib import Path

import t2t_relpos

from .model_dir import TRANSLATION, ModelDirectory

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

# `t2t_relpos.t2t` reads the same file, but imports Keras.
_HPARAMS_SETS = Path(t2t_relpos.__file__).parent / "t2t" / "hparams_sets.json"

DEFAULTS = {"keep_checkpoints": 5}
_INTERVALS = ("checkpoint_every", "checkpoint_minutes")
# Used if neither the settings nor the recipe have a checkpoint interval.
CHECKPOINT_EVERY = 1000
# Settings that `init_from` inherits. The vocabulary size is that of the model.
_REQUIRED = tuple(name for name in RECIPES["transformer_base"] if name != "vocab_size")
_OPTIONAL = ("device_tokens", *_INTERVALS, "keep_checkpoints")


def recipe_of(config) -> dict:
    """Returns the recipe for the settings of a `trainer.config.RunConfig` that are None.

    Raises:
        ValueError: if the preset or the model of `init_from` does not exist, or that model does not
            record a setting.
    """
    chosen = _preset_recipe(config) if config.init_from is None else _inherited_recipe(config)
    recipe = {"data": "files"} | DEFAULTS | chosen
    every = config.checkpoint_every or recipe.get("checkpoint_every", CHECKPOINT_EVERY)
    # A given interval replaces both intervals of the recipe.
    if any(getattr(config, name) is not None for name in _INTERVALS):
        recipe = {name: value for name, value in recipe.items() if name not in _INTERVALS}
    elif "checkpoint_minutes" not in recipe:
        recipe["checkpoint_every"] = every
    return recipe | {"evaluate_every": every}


def _preset_recipe(config):
    if config.preset not in RECIPES:
        raise ValueError(
            f"Expected preset to be one of {', '.join(RECIPES)}. Received: "
            f"{config.preset or 'none'}. {_preset_hint(config.preset)}"
        )
    return RECIPES[config.preset]


def _preset_hint(name):
    """Returns what to do instead of giving an unknown preset."""
    if name is None:
        return "Give one with --preset."
    sets = json.loads(_HPARAMS_SETS.read_text("utf-8"))["sets"]
    if name in sets:
        base, differences = sets[name]
        while not differences and base not in RECIPES:
            base, differences = sets[base]
        if not differences:
            return f"This hparams set of tensor2tensor is equal to {base}: give --preset={base}."
        return "This hparams set of tensor2tensor is no preset."
    # A guess corrects letters, not words or versions: those would be other architectures.
    similar = [preset for preset in RECIPES if sorted(preset) == sorted(name)]
    similar += difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.88)
    similar = [preset for preset in similar if _digits(preset) == _digits(name)]
    return f"Did you mean {similar[0]}?" if similar else "Give another --preset."


def _digits(text):
    return [character for character in text if character.isdigit()]


def _inherited_recipe(config):
    recorded = ModelDirectory.open(config.init_from, TRANSLATION).read_run()
    names = _REQUIRED + _OPTIONAL
    recipe = {name: recorded[name] for name in names if recorded.get(name) is not None}
    missing = [n for n in _REQUIRED if n not in recipe and getattr(config, n) is None]
    if missing:
        raise ValueError(
            f"Expected {' and '.join(missing)}, which {config.init_from} does not record. "
            f"Received: none. Give {' and '.join('--' + name for name in missing)}."
        )
    return recipe
