"""The settings of a training run: frozen, checked, made from a dict or from absl flags."""

import dataclasses
import difflib
import os
import types
import typing

from absl import flags

from trainer.model_dir import ModelDirectory
from trainer.recipes import RECIPES, SYNTHETIC

# The flags belong to the program that defines them, so that its --help lists them.
flags.disclaim_key_flags()

# What a recipe decides, but for the vocabulary: with init_from it is given.
_RECIPE_SETTINGS = tuple(name for name in RECIPES["tiny"] if name != "vocab_size")
_RECIPE = " Default: as the preset's recipe says."
_ARCHITECTURE = " Default: as the preset says."


def _setting(default, help, at_least=None, below=None, choices=None, fixed=True):
    """A field; `fixed`: a run that goes on must not change it."""
    metadata = {"help": help, "at_least": at_least, "below": below, "choices": choices, "fixed": fixed}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of `python -m trainer.train`. What is None is decided by the preset's recipe: see `resolve`.

    Raises:
        ValueError: for a setting out of range, or settings that contradict each other.

    Example:

    >>> config = RunConfig(preset="tiny", model_dir="runs/first", data="synthetic").resolve()
    >>> config.batch_tokens, config.warmup_steps
    (4096, 2000)
    """

    preset: str | None = _setting(None, "Name of the architecture and of its training recipe.")
    model_dir: str | None = _setting(None, "Directory of the model: made, or gone on with if it exists.", fixed=False)
    init_from: str | None = _setting(
        None, "Instead of --preset: a model directory whose architecture, vocabulary and weights to start from.", fixed=False
    )
    data: str | None = _setting(
        None,
        "'synthetic' for the embedded corpus, 'files' for --train_source and --train_target, or a TensorFlow Datasets name.",
    )
    direction: str | None = _setting(None, "Languages of a corpus that is not given as files. Default: en-de.")
    train_source: str | None = _setting(None, "Text file of source sentences, one a line; or several with commas.", fixed=False)
    train_target: str | None = _setting(None, "Text file of their translations.", fixed=False)
    dev_source: str | None = _setting(None, "Source sentences to measure the loss on during training.", fixed=False)
    dev_target: str | None = _setting(None, "Their translations.", fixed=False)
    vocab_size: int | None = _setting(None, "Size of the joint SentencePiece vocabulary." + _RECIPE, at_least=4)
    train_steps: int | None = _setting(None, "Updates in all." + _RECIPE, at_least=1, fixed=False)
    batch_tokens: int | None = _setting(
        None, "Tokens of the longer side in a batch, padding included, over all devices." + _RECIPE, at_least=1
    )
    max_length: int = _setting(256, "Longest sentence in tokens; pairs with a longer one are left out.", at_least=2)
    learning_rate: float | None = _setting(None, "Factor of the Noam schedule." + _RECIPE, at_least=0.0)
    warmup_steps: int | None = _setting(None, "Updates until the learning rate is largest." + _RECIPE, at_least=1)
    label_smoothing: float | None = _setting(None, "Probability given to wrong words." + _RECIPE, at_least=0.0, below=1.0)
    adam_beta1: float | None = _setting(None, "Decay of Adam's mean of gradients." + _RECIPE, at_least=0.0, below=1.0)
    adam_beta2: float | None = _setting(None, "Decay of Adam's mean of their squares." + _RECIPE, at_least=0.0, below=1.0)
    adam_epsilon: float | None = _setting(None, "Added to Adam's denominator." + _RECIPE, at_least=0.0)
    dropout: float | None = _setting(None, "Rate on embeddings and sub-layers." + _ARCHITECTURE, at_least=0.0, below=1.0)
    attention_dropout: float | None = _setting(
        None, "Rate on attention weights." + _ARCHITECTURE, at_least=0.0, below=1.0
    )
    activation_dropout: float | None = _setting(
        None, "Rate inside the feed-forward networks." + _ARCHITECTURE, at_least=0.0, below=1.0
    )
    max_relative_position: int | None = _setting(
        None, "Distance from which on all relative positions are alike." + _ARCHITECTURE, at_least=0
    )
    seed: int = _setting(1, "Of initial weights, dropout and the order of the data.", at_least=0)
    deterministic: bool = _setting(False, "Make every operation repeat bit for bit; slower.", fixed=False)
    strategy: str = _setting(
        "one", "'one' device, or 'mirrored' over all GPUs.", choices=("one", "mirrored"), fixed=False
    )
    logical_devices: int = _setting(
        0, "With --strategy=mirrored: divide the CPU into so many devices instead of using GPUs.", at_least=0, fixed=False
    )
    steps_per_execution: int = _setting(1, "Updates in one call of the compiled function.", at_least=1, fixed=False)
    checkpoint_every: int = _setting(1000, "Updates between checkpoints, and between dev losses.", at_least=1, fixed=False)
    keep_checkpoints: int = _setting(5, "How many of the last checkpoints are kept.", at_least=1, fixed=False)
    log_every: int = _setting(100, "Updates between lines in the log and points in TensorBoard.", at_least=1, fixed=False)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _check_type(field, getattr(self, field.name))
            _check_range(field, getattr(self, field.name))
        if not self.model_dir:
            raise ValueError("Expected a directory for the model. Received: none. Give one with --model_dir.")
        if self.preset is not None and self.init_from is not None:
            raise ValueError("Expected either preset or init_from. Received: both. Leave one of them out.")
        if self.max_relative_position is not None and self.init_from is not None:
            raise ValueError(
                "Expected no max_relative_position with init_from, whose tables have their size. "
                f"Received: {self.max_relative_position}. Leave it out."
            )
        self._check_data()
        self._check_steps()

    def _check_data(self):
        self._check_pair("train")
        self._check_pair("dev")
        if self.data is None and not self.train_source:
            raise ValueError(
                "Expected training data. Received: none. Give --train_source and --train_target, or --data=synthetic."
            )
        if self.data == "files" and not self.train_source:
            raise ValueError("Expected train_source and train_target with the data 'files'. Received: neither.")
        if self.data not in (None, "files"):
            for name in ("train_source", "dev_source"):
                if getattr(self, name):
                    raise ValueError(
                        f"Expected either {name} or data={self.data!r}. Received: both. Leave one of them out."
                    )
        elif self.direction is not None:
            raise ValueError(
                f"Expected no direction with text files, which have one. Received: direction={self.direction!r}. "
                "Exchange source and target files instead."
            )

    def _check_pair(self, split):
        source, target = getattr(self, f"{split}_source"), getattr(self, f"{split}_target")
        if bool(source) != bool(target):
            given, missing = ("source", "target") if source else ("target", "source")
            raise ValueError(
                f"Expected {split}_source and {split}_target together. Received: {split}_{given} alone. "
                f"Give --{split}_{missing} too."
            )

    def _check_steps(self):
        if self.steps_per_execution == 1:
            return
        if self.strategy != "one":
            raise ValueError(
                f"Expected steps_per_execution to be 1 with the strategy {self.strategy}: Keras can't run several steps of "
                f"batches of unlike shapes on several devices at once. Received: {self.steps_per_execution}."
            )
        for name in ("checkpoint_every", "train_steps"):
            steps = getattr(self, name)
            if steps is not None and steps % self.steps_per_execution:
                raise ValueError(
                    f"Expected {name} to be a multiple of steps_per_execution. "
                    f"Received: {name}={steps}, steps_per_execution={self.steps_per_execution}."
                )

    @classmethod
    def from_dict(cls, settings: dict) -> "RunConfig":
        """Settings by name.

        Raises:
            ValueError: for a name that is no setting, with the names that are near; and as the class itself.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in names:
                near = difflib.get_close_matches(name, names)
                hint = f"Did you mean {' or '.join(near)}?" if near else f"The settings are {', '.join(names)}."
                raise ValueError(f"Expected the name of a setting. Received: {name!r}. {hint}")
        return cls(**settings)

    @classmethod
    def from_flags(cls, values: flags.FlagValues = flags.FLAGS) -> "RunConfig":
        """The values of the flags that `define_flags` made."""
        return cls(**{field.name: values[field.name].value for field in dataclasses.fields(cls)})

    def resolve(self) -> "RunConfig":
        """The same settings, with what is None taken from a recipe; what is still None is the architecture's.

        The recipe is the preset's, or with `init_from` that of the model it names.

        Raises:
            ValueError: where the preset or that model doesn't exist.
        """
        settings = {"data": "files"} if self.data is None else {}
        recipe = self._recipe()
        settings |= {name: value for name, value in recipe.items() if getattr(self, name) is None}
        for name in ("train_source", "train_target", "dev_source", "dev_target"):
            if getattr(self, name):
                settings[name] = ",".join(os.path.abspath(path.strip()) for path in getattr(self, name).split(","))
        return dataclasses.replace(self, **settings)

    def _recipe(self):
        if self.init_from is not None:
            return self._inherited_recipe()
        if self.preset not in RECIPES:
            near = difflib.get_close_matches(self.preset or "", RECIPES, n=1)
            hint = f" Did you mean {near[0]}?" if near else " Give one with --preset."
            raise ValueError(
                f"Expected preset to be one of {', '.join(RECIPES)}. Received: {self.preset or 'none'}.{hint}"
            )
        return RECIPES[self.preset] | (SYNTHETIC if self.data == "synthetic" else {})

    def _inherited_recipe(self):
        recorded = ModelDirectory.open(self.init_from).read_run()
        recipe = {name: recorded[name] for name in _RECIPE_SETTINGS if recorded.get(name) is not None}
        missing = [name for name in _RECIPE_SETTINGS if name not in recipe and getattr(self, name) is None]
        if missing:
            raise ValueError(
                f"Expected {' and '.join(missing)}, which {self.init_from} does not record. Received: none. "
                f"Give {' and '.join('--' + name for name in missing)}."
            )
        return recipe

    def to_dict(self) -> dict:
        """All settings by name, as `from_dict` takes them."""
        return dataclasses.asdict(self)

    def architecture(self) -> dict:
        """What replaces settings of the preset's architecture."""
        names = ("dropout", "attention_dropout", "activation_dropout", "max_relative_position")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def fixed(self) -> dict:
        """The settings that a run that goes on must not change."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.metadata["fixed"]}


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines one absl flag for every setting of RunConfig, with its type, default and help."""
    definitions = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string, bool: flags.DEFINE_bool}
    for field in dataclasses.fields(RunConfig):
        help_text, choices = field.metadata["help"], field.metadata["choices"]
        if choices:
            flags.DEFINE_enum(field.name, field.default, choices, help_text, flag_values=values)
        else:
            definitions[_kind(field)](field.name, field.default, help_text, flag_values=values)


def _kind(field):
    """The type of a field without `| None`."""
    if isinstance(field.type, types.UnionType):
        return next(kind for kind in typing.get_args(field.type) if kind is not type(None))
    return field.type


def _check_type(field, value):
    kind = _kind(field)
    allowed = (int, float) if kind is float else kind
    if value is None and isinstance(field.type, types.UnionType):
        return
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"Expected {field.name} to be of type {kind.__name__}. Received: {value!r}.")


def _check_range(field, value):
    least, below, choices = (field.metadata[name] for name in ("at_least", "below", "choices"))
    if value is None:
        return
    if choices and value not in choices:
        raise ValueError(f"Expected {field.name} to be one of {', '.join(choices)}. Received: {value!r}.")
    if least is not None and not value >= least:
        raise ValueError(f"Expected {field.name} to be at least {least}. Received: {value}.")
    if below is not None and not value < below:
        raise ValueError(f"Expected {field.name} to be below {below}. Received: {value}.")
