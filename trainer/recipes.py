"""Recipes: default training settings of a preset, of hparams, or of an existing model.

The presets' architectures are in t2t_relpos.models.PRESETS. DEFAULTS applies to all recipes.
`learning_rate` multiplies the Noam schedule. `batch_tokens` counts the tokens of the longer side
over all devices.
"""

import json
from pathlib import Path

from absl import logging

from t2t_relpos._suggestions import most_similar
from t2t_relpos.hparams_sets import DEFAULTS as HPARAMS
from t2t_relpos.hparams_sets import PRESET_SETS, SETS, parse_hparams

from .model_dir import ModelDirectory

# Training settings by the name of tensor2tensor's hparam.
_SETTINGS = {
    "batch_size": "batch_tokens",
    "learning_rate_constant": "learning_rate",
    "learning_rate_warmup_steps": "warmup_steps",
    "label_smoothing": "label_smoothing",
    "optimizer_adam_beta1": "adam_beta1",
    "optimizer_adam_beta2": "adam_beta2",
    "optimizer_adam_epsilon": "adam_epsilon",
}
# Their product is the Noam schedule, without the factor of the model's width.
_NOAM_FACTORS = {"constant", "linear_warmup", "rsqrt_decay"}
# Values of `optimizer` that are plain Adam: tensor2tensor makes the gradients of embeddings dense.
_ADAM = ("adam", "true_adam")
# Hparams that change training, for which the trainer accepts the value of transformer_base only.
_FIXED_HPARAMS = (
    *("attention_dropout_broadcast_dims", "layer_prepostprocess_dropout_broadcast_dims"),
    *("relu_dropout_broadcast_dims", "grad_noise_scale", "initializer", "initializer_gain"),
    *("length_bucket_step", "max_input_seq_length", "max_target_seq_length", "min_length"),
    *("min_length_bucket", "pack_dataset", "pretrained_model_dir", "scheduled_sampling_prob"),
    *("split_to_length", "symbol_dropout", "use_fixed_batch_size", "warm_start_from_second"),
    *("weight_decay", "weight_dtype", "weight_noise"),
)


def training_settings(hparams: dict) -> dict:
    """Returns the training settings in tensor2tensor's hparams.

    The learning rate is that of the Noam schedule, if the hparams have this schedule.

    Args:
        hparams: values of `t2t_relpos.t2t.parse_hparams`.

    Example:

    >>> from t2t_relpos.t2t import parse_hparams
    >>> from trainer.recipes import training_settings
    >>> settings = training_settings(parse_hparams("transformer_base_v1"))
    >>> settings["learning_rate"], settings["warmup_steps"], settings["batch_tokens"]
    (1.0, 4000, 4096)
    """
    settings = {ours: hparams[theirs] for theirs, ours in _SETTINGS.items()}
    factors = _schedule_factors(hparams)
    if factors == {"legacy"}:
        settings["learning_rate"] = 10 * hparams["learning_rate"]
    elif factors == _NOAM_FACTORS:
        settings["learning_rate"] *= hparams["hidden_size"] ** 0.5
    return settings


def _schedule_factors(hparams):
    return {factor.strip() for factor in hparams["learning_rate_schedule"].split("*")}


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
# 250,000 steps are the default of t2t_trainer. Other settings are those of hparams sets.
_T2T_RUN = {"vocab_size": 32768, "train_steps": 250_000}
_T2T_SETS = {name: _T2T_RUN | training_settings(parse_hparams(name)) for name in PRESET_SETS}
_T2T = _T2T_SETS["transformer_base"]

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
    **_T2T_SETS,
    "tiny": _T2T | _SMALL,
}

DEFAULTS = {"keep_checkpoints": 5, "max_length": 256}
_INTERVALS = ("checkpoint_every", "checkpoint_minutes")
# Used if neither the settings nor the recipe have a checkpoint interval.
CHECKPOINT_EVERY = 1000
# Settings that `init_from` inherits. The vocabulary size is that of the model.
_REQUIRED = tuple(name for name in RECIPES["transformer_base"] if name != "vocab_size")
_OPTIONAL = ("device_tokens", *_INTERVALS, "keep_checkpoints")


def recipe_of(config) -> dict:
    """Returns the recipe for the settings of a `trainer.config.RunConfig` that are None.

    Raises:
        ValueError: if the preset, the hparams set or the model of `init_from` does not exist, that
            model does not record a setting, or hparams require training that the trainer doesn't
            have.
    """
    if config.init_from is not None:
        chosen = _inherited_recipe(config)
    elif config.hparams_set is not None:
        chosen = _hparams_recipe(config)
    else:
        chosen = _preset_recipe(config) if config.config is None else _config_recipe(config)
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
        return "Give one with --preset, or --hparams_set, --config or --init_from."
    if name in SETS:
        same = next((preset for preset in _T2T_SETS if SETS[preset] == SETS[name]), None)
        if same is not None:
            return f"This hparams set of tensor2tensor is equal to {same}: give --preset={same}."
        return f"This hparams set of tensor2tensor is no preset: give --hparams_set={name}."
    similar = most_similar(name, RECIPES)
    return f"Did you mean {similar}?" if similar else "Give another --preset."


def _hparams_recipe(config):
    hparams = parse_hparams(config.hparams_set, config.hparams or "")
    _check_training(hparams)
    rate = parse_hparams(config.hparams_set)["learning_rate"]
    if hparams["learning_rate"] != rate and _schedule_factors(hparams) != {"legacy"}:
        logging.warning(
            "The hparam learning_rate has no effect on the learning rate schedule %r, as in "
            "tensor2tensor. Give learning_rate_constant.",
            hparams["learning_rate_schedule"],
        )
    recipe = _T2T_RUN | training_settings(hparams)
    # In tensor2tensor, `clip_grad_norm=0` means no clipping, and `max_length=0` means `batch_size`.
    recipe["max_length"] = hparams["max_length"] or hparams["batch_size"]
    if hparams["clip_grad_norm"]:
        recipe["clip_norm"] = float(hparams["clip_grad_norm"])
    return recipe


def _check_training(hparams):
    """Raises ValueError if hparams require training that the trainer doesn't have."""
    fixed = {key: HPARAMS[key] for key in _FIXED_HPARAMS if hparams[key] != HPARAMS[key]}
    if hparams["optimizer"].lower() not in _ADAM:
        fixed["optimizer"] = "adam"
    factors = _schedule_factors(hparams)
    if factors == {"legacy"} and hparams["learning_rate_decay_scheme"] != "noam":
        fixed["learning_rate_decay_scheme"] = "noam"
    elif factors not in ({"legacy"}, _NOAM_FACTORS, _NOAM_FACTORS | {"rsqrt_hidden_size"}):
        # `learning_rate_constant` of another schedule would have another meaning here.
        for key in ("learning_rate_schedule", "learning_rate_constant"):
            fixed[key] = HPARAMS[key]
    if "expected_attention_loss_type" in hparams:
        raise ValueError(
            "Expected an hparams set without supervised attention, which the trainer does not "
            "have. Received: expected_attention_loss_type="
            f"{hparams['expected_attention_loss_type']!r}."
        )
    if fixed:
        received = ", ".join(f"{key}={hparams[key]!r}" for key in fixed)
        changes = ",".join(f"{key}={value}" for key, value in fixed.items())
        raise ValueError(
            f"Expected hparams of training that the trainer has. Received: {received}. To train "
            f'without them, give --hparams="{changes}", with your other changes.'
        )


def _config_recipe(config):
    """Returns tensor2tensor's recipe, with the sizes of the vocabularies in a JSON file."""
    architecture = read_architecture(config.config)
    names = ["vocab_size", "source_vocab_size"]
    if "learned" in str(architecture.get("position")):
        names.append("max_length")
    sizes = {name: architecture[name] for name in names if architecture.get(name) is not None}
    return _T2T | sizes


def read_architecture(file: str) -> dict:
    """Returns the settings of a `TransformerConfig` in a JSON file.

    Raises:
        ValueError: if the file can't be read, is no JSON object, or has a key twice.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
        settings = json.loads(text, object_pairs_hook=_without_duplicates)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not valid JSON: {error}"
        raise ValueError(
            f"Expected --config to be a JSON file. Received: {file} ({reason})."
        ) from error
    if not isinstance(settings, dict) or "architecture" in settings:
        received = "a whole config.json" if isinstance(settings, dict) else "other JSON"
        raise ValueError(
            "Expected --config to be a JSON object with the settings of a TransformerConfig, as "
            f'under "architecture" in the config.json of a model. Received: {file}, {received}.'
        )
    return settings


def _without_duplicates(pairs):
    """Returns a JSON object as a dict. Raises ValueError if a key occurs twice."""
    found = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} occurs twice")
        found[key] = value
    return found


def _inherited_recipe(config):
    recorded = ModelDirectory.open(config.init_from, config.kind).read_run()
    names = _REQUIRED + _OPTIONAL
    recipe = {name: recorded[name] for name in names if recorded.get(name) is not None}
    missing = [n for n in _REQUIRED if n not in recipe and getattr(config, n) is None]
    if missing:
        raise ValueError(
            f"Expected {' and '.join(missing)}, which {config.init_from} does not record. "
            f"Received: none. Give {' and '.join('--' + name for name in missing)}."
        )
    return recipe
