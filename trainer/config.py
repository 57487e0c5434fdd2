"""The settings of a training run: frozen, checked, made from a dict or from absl flags."""

import dataclasses
import difflib
import os

from absl import flags

from trainer import config_fields
from trainer.config_checks import ARCHITECTURE_SETTINGS, check_together
from trainer.config_fields import setting
from trainer.model_dir import ModelDirectory
from trainer.recipes import CHECKPOINT_EVERY, DEFAULTS, RECIPES

# The flags belong to the program that defines them, so that its --help lists them.
flags.disclaim_key_flags()

# What every recipe decides, but for the vocabulary: with init_from it is given.
_RECIPE_SETTINGS = tuple(name for name in RECIPES["transformer_base"] if name != "vocab_size")
_RECIPE = " Default: as the preset's recipe says."
_ARCHITECTURE = " Default: the preset's value."
# As t2t_relpos.models.config has them, which is not imported here: it brings TensorFlow.
POSITIONS = ("relative", "sinusoidal", "learned", "relative+sinusoidal", "none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of `python -m trainer.train`.

    Settings that are None come from the preset's recipe: see `resolve`.

    Raises:
        ValueError: for a setting out of range, or settings that contradict each other.

    Example:

    >>> config = RunConfig(
    ...     preset="tiny", model_dir="runs/first", data="wmt14_translate/de-en"
    ... ).resolve()
    >>> config.batch_tokens, config.warmup_steps
    (1024, 2000)
    """

    preset: str | None = setting(None, "Name of the architecture and of its training recipe.")
    model_dir: str | None = setting(
        None, "Directory of the model: made, or resumed if it exists.", fixed=False
    )
    init_from: str | None = setting(
        None,
        "Instead of --preset: a model directory whose architecture, vocabulary and weights to "
        "start from.",
        fixed=False,
    )
    data: str | None = setting(
        None,
        "Name of a translation set of TensorFlow Datasets. Default: 'files', those of "
        "--train_source and --train_target.",
    )
    direction: str | None = setting(
        None, "Languages of a corpus that is not given as files. Default: en-de."
    )
    data_dir: str | None = setting(
        None,
        "Where TensorFlow Datasets keeps its data. Default: ~/tensorflow_datasets, or "
        "$TFDS_DATA_DIR.",
        fixed=False,
    )
    train_source: str | None = setting(
        None, "Text file of source sentences, one a line; or several with commas.", fixed=False
    )
    train_target: str | None = setting(None, "Text file of their translations.", fixed=False)
    dev_source: str | None = setting(
        None, "Source sentences to measure the loss on during training.", fixed=False
    )
    dev_target: str | None = setting(None, "Their translations.", fixed=False)
    vocab_size: int | None = setting(
        None, "Size of the joint SentencePiece vocabulary." + _RECIPE, at_least=4
    )
    train_steps: int | None = setting(None, "Updates in all." + _RECIPE, at_least=1, fixed=False)
    batch_tokens: int | None = setting(
        None,
        "Tokens of the longer side in a batch, padding included, over all devices." + _RECIPE,
        at_least=1,
    )
    max_length: int = setting(
        256, "Longest sentence in tokens; pairs with a longer one are left out.", at_least=2
    )
    learning_rate: float | None = setting(
        None, "Factor of the Noam schedule." + _RECIPE, at_least=0.0
    )
    warmup_steps: int | None = setting(
        None, "Updates until the learning rate is largest." + _RECIPE, at_least=1
    )
    label_smoothing: float | None = setting(
        None, "Probability given to wrong words." + _RECIPE, at_least=0.0, below=1.0
    )
    adam_beta1: float | None = setting(
        None, "Decay of Adam's mean of gradients." + _RECIPE, at_least=0.0, below=1.0
    )
    adam_beta2: float | None = setting(
        None, "Decay of Adam's mean of their squares." + _RECIPE, at_least=0.0, below=1.0
    )
    adam_epsilon: float | None = setting(
        None, "Added to Adam's denominator." + _RECIPE, at_least=0.0
    )
    dropout: float | None = setting(
        None, "Rate on embeddings and sub-layers." + _ARCHITECTURE, at_least=0.0, below=1.0
    )
    attention_dropout: float | None = setting(
        None, "Rate on attention weights." + _ARCHITECTURE, at_least=0.0, below=1.0
    )
    activation_dropout: float | None = setting(
        None, "Rate inside the feed-forward networks." + _ARCHITECTURE, at_least=0.0, below=1.0
    )
    position: str | None = setting(
        None,
        "How positions enter: in every self-attention, or added to embeddings." + _ARCHITECTURE,
        choices=POSITIONS,
    )
    max_relative_position: int | None = setting(
        None, "Clipping distance K of relative positions." + _ARCHITECTURE, at_least=0
    )
    use_key_table: bool | None = setting(
        None, "Whether relative positions are added to keys." + _ARCHITECTURE
    )
    use_value_table: bool | None = setting(
        None, "Whether relative positions are added to values." + _ARCHITECTURE
    )
    share_heads: bool | None = setting(
        None, "One table of relative positions for all heads, or one for each." + _ARCHITECTURE
    )
    seed: int = setting(1, "Of initial weights, dropout and the order of the data.", at_least=0)
    deterministic: bool = setting(
        False, "Make every operation repeat bit for bit; slower.", fixed=False
    )
    strategy: str = setting(
        "auto",
        "'one' device, 'mirrored' over all GPUs of this machine, 'multiworker' over those of the "
        "machines that TF_CONFIG names; 'auto': "
        "mirrored if there are several GPUs, else one.",
        choices=("auto", "one", "mirrored", "multiworker"),
        fixed=False,
    )
    logical_devices: int = setting(
        0,
        "Divide the CPU into so many devices, instead of using GPUs, and train on all of them.",
        at_least=0,
        fixed=False,
    )
    device_tokens: int | None = setting(
        None,
        "Tokens of the longer side, padding included, that a device computes at once: it takes "
        "its part of a larger batch in pieces "
        "and adds their gradients up." + _RECIPE + " None: all at once.",
        at_least=1,
        fixed=False,
    )
    precision: str = setting(
        "float32",
        "Data type of layer computations. Weights are always float32; float16 uses loss scaling.",
        choices=("float32", "bfloat16", "float16"),
    )
    jit_compile: bool = setting(
        False, "Compile the training step with XLA; batches are padded to few shapes."
    )
    clip_norm: float | None = setting(
        None, "Scale gradients down where their global norm is larger.", at_least=0.0
    )
    steps_per_execution: int = setting(
        1, "Updates in one call of the compiled function.", at_least=1, fixed=False
    )
    checkpoint_every: int | None = setting(
        None, "Updates between checkpoints." + _RECIPE, at_least=1, fixed=False
    )
    checkpoint_minutes: float | None = setting(
        None,
        "Also a checkpoint whenever so many minutes have passed since the last." + _RECIPE,
        at_least=0.0,
        fixed=False,
    )
    keep_checkpoints: int | None = setting(
        None, "How many of the last checkpoints are kept." + _RECIPE, at_least=1, fixed=False
    )
    evaluate_every: int | None = setting(
        None,
        "Updates between evaluations on the dev set. Default: --checkpoint_every, or 1000 without "
        "one.",
        at_least=1,
        fixed=False,
    )
    dev_bleu: bool = setting(
        False,
        "Translate the dev set too at every evaluation, with a beam of 1, and report its BLEU.",
        fixed=False,
    )
    keep_best: int = setting(
        0,
        "How many checkpoints with the best dev BLEU are kept besides the last.",
        at_least=0,
        fixed=False,
    )
    early_stopping: int | None = setting(
        None,
        "Evaluations in a row without a better dev BLEU after which training ends.",
        at_least=1,
        fixed=False,
    )
    log_every: int = setting(
        100, "Updates between lines in the log and points in TensorBoard.", at_least=1, fixed=False
    )

    def __post_init__(self):
        config_fields.check(self)
        check_together(self)

    @classmethod
    def from_dict(cls, settings: dict) -> "RunConfig":
        """Settings by name.

        Raises:
            ValueError: for a name that is no setting, with the names that are near; and as the
                class itself.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in names:
                near = difflib.get_close_matches(name, names)
                hint = (
                    f"Did you mean {' or '.join(near)}?"
                    if near
                    else f"The settings are {', '.join(names)}."
                )
                raise ValueError(f"Expected the name of a setting. Received: {name!r}. {hint}")
        return cls(**settings)

    @classmethod
    def from_flags(cls, values: flags.FlagValues = flags.FLAGS) -> "RunConfig":
        """The values of the flags that `define_flags` made."""
        return cls(**{field.name: values[field.name].value for field in dataclasses.fields(cls)})

    def resolve(self) -> "RunConfig":
        """The same settings, with those that are None taken from a recipe; any still None is the
        architecture's.

        The recipe is the preset's, or with `init_from` that of the model it names.

        Raises:
            ValueError: where the preset or that model doesn't exist.
        """
        settings = {"data": "files"} if self.data is None else {}
        recipe = DEFAULTS | self._recipe()
        if self.checkpoint_minutes is not None:
            recipe.pop("checkpoint_every", None)
        elif "checkpoint_minutes" not in recipe:
            recipe.setdefault("checkpoint_every", CHECKPOINT_EVERY)
        recipe["evaluate_every"] = self.checkpoint_every or recipe.get(
            "checkpoint_every", CHECKPOINT_EVERY
        )
        settings |= {name: value for name, value in recipe.items() if getattr(self, name) is None}
        for name in ("train_source", "train_target", "dev_source", "dev_target"):
            if getattr(self, name):
                settings[name] = ",".join(
                    os.path.abspath(path.strip()) for path in getattr(self, name).split(",")
                )
        return dataclasses.replace(self, **settings)

    def _recipe(self):
        if self.init_from is not None:
            return self._inherited_recipe()
        if self.preset not in RECIPES:
            near = difflib.get_close_matches(self.preset or "", RECIPES, n=1)
            hint = f" Did you mean {near[0]}?" if near else " Give one with --preset."
            raise ValueError(
                f"Expected preset to be one of {', '.join(RECIPES)}. Received: "
                f"{self.preset or 'none'}.{hint}"
            )
        return RECIPES[self.preset]

    def _inherited_recipe(self):
        recorded = ModelDirectory.open(self.init_from).read_run()
        recipe = {
            name: recorded[name] for name in _RECIPE_SETTINGS if recorded.get(name) is not None
        }
        missing = [
            name for name in _RECIPE_SETTINGS if name not in recipe and getattr(self, name) is None
        ]
        if missing:
            raise ValueError(
                f"Expected {' and '.join(missing)}, which {self.init_from} does not record. "
                "Received: none. "
                f"Give {' and '.join('--' + name for name in missing)}."
            )
        return recipe

    @property
    def translates_dev(self) -> bool:
        """Whether evaluations measure BLEU."""
        return self.dev_bleu or bool(self.keep_best) or self.early_stopping is not None

    def to_dict(self) -> dict:
        """All settings by name, as `from_dict` takes them."""
        return dataclasses.asdict(self)

    def architecture(self) -> dict:
        """What replaces settings of the preset's architecture."""
        return {
            name: getattr(self, name)
            for name in ARCHITECTURE_SETTINGS
            if getattr(self, name) is not None
        }

    def fixed(self) -> dict:
        """The settings that a run that continues must not change."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["fixed"]
        }


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines one absl flag for every setting of RunConfig, with its type, default and help."""
    config_fields.define_flags(RunConfig, values)
