"""Recipes, which provide default settings of a run: from a preset or from an existing model."""

import difflib

from trainer.model_dir import ModelDirectory
from trainer.recipes import CHECKPOINT_EVERY, DEFAULTS, RECIPES

# All settings of a recipe except the vocabulary size, because `init_from` has a vocabulary.
_INHERITED = tuple(name for name in RECIPES["transformer_base"] if name != "vocab_size")


def recipe_of(config) -> dict:
    """Returns the recipe for the settings of a `trainer.config.RunConfig` that are None.

    Raises:
        ValueError: if the preset or the model of `init_from` does not exist, or that model does not
            record a setting.
    """
    chosen = _preset_recipe(config) if config.init_from is None else _inherited_recipe(config)
    recipe = {"data": "files"} | DEFAULTS | chosen
    if config.checkpoint_minutes is not None:
        recipe.pop("checkpoint_every", None)
    elif "checkpoint_minutes" not in recipe:
        recipe.setdefault("checkpoint_every", CHECKPOINT_EVERY)
    every = recipe.get("checkpoint_every", CHECKPOINT_EVERY)
    return recipe | {"evaluate_every": config.checkpoint_every or every}


def _preset_recipe(config):
    if config.preset not in RECIPES:
        similar = difflib.get_close_matches(config.preset or "", RECIPES, n=1, cutoff=0.5)
        hint = f" Did you mean {similar[0]}?" if similar else " Give one with --preset."
        raise ValueError(
            f"Expected preset to be one of {', '.join(RECIPES)}. Received: "
            f"{config.preset or 'none'}.{hint}"
        )
    return RECIPES[config.preset]


def _inherited_recipe(config):
    recorded = ModelDirectory.open(config.init_from).read_run()
    recipe = {name: recorded[name] for name in _INHERITED if recorded.get(name) is not None}
    missing = [n for n in _INHERITED if n not in recipe and getattr(config, n) is None]
    if missing:
        raise ValueError(
            f"Expected {' and '.join(missing)}, which {config.init_from} does not record. "
            f"Received: none. Give {' and '.join('--' + name for name in missing)}."
        )
    return recipe
