"""The settings of a training run: frozen, checked, made from a dict or from absl flags."""

import dataclasses
import difflib

from absl import flags

from trainer import config_fields
from trainer.config_checks import ARCHITECTURE_SETTINGS, check_together
from trainer.config_fields import setting
from trainer.config_recipes import recipe_of

# The flags belong to the program that defines them, so that its --help lists them.
flags.disclaim_key_flags()

_RECIPE = " Default: the recipe's value."
_PRESET = " Default: the preset's value."
# Equal to t2t_relpos.models.config.POSITIONS, which is not imported: that imports TensorFlow.
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

    preset: str | None = setting("Name of an architecture and its training recipe.")
    model_dir: str | None = setting(
        "Directory of the model. Created, or resumed if it exists.", fixed=False
    )
    init_from: str | None = setting(
        "Instead of --preset: a model directory whose architecture, vocabulary and weights are "
        "the start.",
        fixed=False,
    )
    data: str | None = setting(
        "Name of a translation set of TensorFlow Datasets. Default: 'files', those of "
        "--train_source and --train_target."
    )
    direction: str | None = setting("Languages of a set of TensorFlow Datasets. Default: en-de.")
    data_dir: str | None = setting(
        "Data folder of TensorFlow Datasets. Default: ~/tensorflow_datasets, or $TFDS_DATA_DIR.",
        fixed=False,
    )
    train_source: str | None = setting(
        "Text file of source sentences, one per line; or several, comma-separated.", fixed=False
    )
    train_target: str | None = setting("Text file of their translations.", fixed=False)
    dev_source: str | None = setting(
        "Text file of source sentences for evaluations during training.", fixed=False
    )
    dev_target: str | None = setting("Text file of their translations.", fixed=False)
    vocab_size: int | None = setting(
        "Size of the joint SentencePiece vocabulary." + _RECIPE, at_least=4
    )
    train_steps: int | None = setting("Total number of updates." + _RECIPE, at_least=1, fixed=False)
    batch_tokens: int | None = setting(
        "Tokens of the longer side in a batch over all devices, padding included." + _RECIPE,
        at_least=1,
    )
    max_length: int = setting(
        "Longest sentence in tokens. Longer pairs are skipped.", 256, at_least=2
    )
    learning_rate: float | None = setting("Factor of the Noam schedule." + _RECIPE, at_least=0.0)
    warmup_steps: int | None = setting(
        "Updates until the learning rate is largest." + _RECIPE, at_least=1
    )
    label_smoothing: float | None = setting(
        "Probability of all wrong ids together in the targets." + _RECIPE, at_least=0.0, below=1.0
    )
    adam_beta1: float | None = setting(
        "Decay of Adam's mean of gradients." + _RECIPE, at_least=0.0, below=1.0
    )
    adam_beta2: float | None = setting(
        "Decay of Adam's mean of squared gradients." + _RECIPE, at_least=0.0, below=1.0
    )
    adam_epsilon: float | None = setting("Added to Adam's denominator." + _RECIPE, at_least=0.0)
    dropout: float | None = setting(
        "Dropout rate of embeddings and sublayers." + _PRESET, at_least=0.0, below=1.0
    )
    attention_dropout: float | None = setting(
        "Dropout rate of attention weights." + _PRESET, at_least=0.0, below=1.0
    )
    activation_dropout: float | None = setting(
        "Dropout rate inside the feed-forward networks." + _PRESET, at_least=0.0, below=1.0
    )
    position: str | None = setting(
        "Position encoding: in every self-attention, or added to embeddings." + _PRESET,
        choices=POSITIONS,
    )
    max_relative_position: int | None = setting(
        "Clipping distance K of relative positions." + _PRESET, at_least=0
    )
    use_key_table: bool | None = setting("Whether relative positions are added to keys." + _PRESET)
    use_value_table: bool | None = setting(
        "Whether relative positions are added to values." + _PRESET
    )
    share_heads: bool | None = setting("Whether heads share the relative tables." + _PRESET)
    seed: int = setting("Seed of initial weights, dropout and data order.", 1, at_least=0)
    deterministic: bool = setting("Use deterministic operations. Slower.", False, fixed=False)
    strategy: str = setting(
        "'one' device, 'mirrored' over all GPUs of this machine, 'multiworker' over those of the "
        "machines in TF_CONFIG. 'auto': mirrored if there are several GPUs, else one.",
        "auto",
        choices=("auto", "one", "mirrored", "multiworker"),
        fixed=False,
    )
    logical_devices: int = setting(
        "Divide the CPU into this number of devices and train on all of them.",
        0,
        at_least=0,
        fixed=False,
    )
    device_tokens: int | None = setting(
        "Tokens of the longer side that a device computes at once, padding included. Larger "
        "batches are split and their gradients accumulated." + _RECIPE,
        at_least=1,
        fixed=False,
    )
    precision: str = setting(
        "Data type of layer computations. Weights are always float32; float16 uses loss scaling.",
        "float32",
        choices=("float32", "bfloat16", "float16"),
    )
    jit_compile: bool | None = setting(
        "Compile the training step with XLA, for one device. Batches are padded to few shapes. "
        "Default: auto, which is on for one GPU and off on CPUs and for several devices.",
        fixed=False,
    )
    clip_norm: float | None = setting("Largest global norm of gradients.", at_least=0.0)
    steps_per_execution: int = setting(
        "Updates per call of the compiled function.", 1, at_least=1, fixed=False
    )
    checkpoint_every: int | None = setting(
        "Updates between checkpoints." + _RECIPE, at_least=1, fixed=False
    )
    checkpoint_minutes: float | None = setting(
        "Largest number of minutes between checkpoints." + _RECIPE, at_least=0.0, fixed=False
    )
    keep_checkpoints: int | None = setting(
        "Number of latest checkpoints to keep." + _RECIPE, at_least=1, fixed=False
    )
    evaluate_every: int | None = setting(
        "Updates between evaluations on dev. Default: --checkpoint_every, or 1000 without one.",
        at_least=1,
        fixed=False,
    )
    dev_bleu: bool = setting(
        "Whether evaluations also translate dev, with a beam of 1, and report BLEU.",
        False,
        fixed=False,
    )
    keep_best: int = setting(
        "Number of checkpoints with the best dev BLEU to keep.", 0, at_least=0, fixed=False
    )
    early_stopping: int | None = setting(
        "Evaluations without a better dev BLEU after which training stops.",
        at_least=1,
        fixed=False,
    )
    log_every: int = setting(
        "Updates between lines in the log and points in TensorBoard.", 100, at_least=1, fixed=False
    )

    def __post_init__(self):
        config_fields.check(self)
        check_together(self)

    @classmethod
    def from_dict(cls, settings: dict) -> "RunConfig":
        """Returns the settings of a dict.

        Raises:
            ValueError: for an unknown name, with similar names; and as the class itself.
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
        """Returns the values of the flags of `define_flags`."""
        return cls(**{field.name: values[field.name].value for field in dataclasses.fields(cls)})

    def resolve(self) -> "RunConfig":
        """Returns these settings with a recipe's values in place of None.

        The recipe is that of the preset, or of the model that `init_from` names. Settings that are
        still None are those of the architecture.

        Raises:
            ValueError: if the preset or that model does not exist.
        """
        recipe = recipe_of(self)
        missing = {name: value for name, value in recipe.items() if getattr(self, name) is None}
        files = config_fields.absolute_paths(
            self, ("train_source", "train_target", "dev_source", "dev_target")
        )
        return dataclasses.replace(self, **missing, **files)

    @property
    def translates_dev(self) -> bool:
        """Whether evaluations measure BLEU."""
        return self.dev_bleu or bool(self.keep_best) or self.early_stopping is not None

    def to_dict(self) -> dict:
        """Returns all settings by name, for `from_dict`."""
        return dataclasses.asdict(self)

    def architecture(self) -> dict:
        """Returns the settings that replace those of the preset's architecture."""
        values = {name: getattr(self, name) for name in ARCHITECTURE_SETTINGS}
        return {name: value for name, value in values.items() if value is not None}

    def fixed(self) -> dict:
        """Returns the settings that must not change when a run is resumed."""
        fields = dataclasses.fields(self)
        return {
            field.name: getattr(self, field.name) for field in fields if field.metadata["fixed"]
        }


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines a flag for every setting of `RunConfig`, with its type, default and help."""
    config_fields.define_flags(RunConfig, values)
