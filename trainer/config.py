"""The settings of a training run, as a frozen dataclass and as absl flags.

Change the default, help or range of a setting here, and the checks of combinations of settings. The
flags and range checks of single settings are in `trainer.setting_flags`.
"""

import dataclasses
import os

from absl import flags

from . import setting_flags
from .metrics import DEFAULT_TOKENIZER, check_bleu_tokenize
from .model_dir import LANGUAGE_MODEL, TRANSLATION
from .recipes import RECIPES, recipe_of
from .setting_flags import setting

# The flags belong to the program that defines them, so that its --help lists them.
flags.disclaim_key_flags()

# Settings that require relative positions.
RELATIVE_SETTINGS = ("max_relative_position", "use_key_table", "use_value_table", "share_heads")
# Settings that override the preset's architecture.
DROPOUT_SETTINGS = ("dropout", "attention_dropout", "activation_dropout")
ARCHITECTURE_SETTINGS = (*DROPOUT_SETTINGS, "position", *RELATIVE_SETTINGS)
PAIR_FILES = ("train_source", "train_target", "dev_source", "dev_target")
TEXT_FILES = (*PAIR_FILES, "train_text", "dev_text")
VOCABULARIES = ("vocab", "source_vocab")
_RECIPE = " Default: the recipe's value."
_PRESET = " Default: the preset's value."
_INTERVAL = (
    " --checkpoint_every and --checkpoint_minutes replace both intervals of the recipe; with both, "
    "the first that is due counts."
)
# The positions of t2t_relpos.models.config that a Transformer supports. Importing them would import
# TensorFlow.
POSITIONS = (
    "relative",
    "sinusoidal",
    "learned",
    "relative+sinusoidal",
    "relative+learned",
    "none",
)
# Copy of trainer.data.sentencepiece_tokenizer.NORMALIZATIONS.
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "identity")
# Settings of the scores of the dev set, with their defaults by kind of model. A resumed run keeps
# its values, because scores of other metrics can't be compared.
SCORE_SETTINGS = {
    TRANSLATION: {"bleu_tokenize": DEFAULT_TOKENIZER, "best_metric": "dev_bleu"},
    LANGUAGE_MODEL: {"best_metric": "dev_loss"},
}
# Settings that a language model does not have.
_PAIR_SETTINGS = (
    *("data", "direction", "data_dir", "source_vocab_size", "source_vocab", *PAIR_FILES),
    *("dev_bleu", "bleu_tokenize"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of `python -m trainer.train`.

    A recipe is the set of default training settings of a preset, of hparams or of a model
    (`trainer.recipes`). `resolve` replaces settings that are None with its values.

    Raises:
        ValueError: for a setting out of range, or settings that contradict each other.

    Example:

    >>> from trainer.config import RunConfig
    >>> config = RunConfig(
    ...     preset="tiny", model_dir="runs/first", data="wmt14_translate/de-en"
    ... ).resolve()
    >>> config.batch_tokens, config.warmup_steps
    (1024, 2000)
    """

    preset: str | None = setting(
        f"Name of an architecture and its training recipe: {', '.join(RECIPES)}. transformer_base "
        "is tensor2tensor's transformer_base and transformer_base_v3."
    )
    hparams_set: str | None = setting(
        "Instead of --preset: name of an hparams set of tensor2tensor, for architecture and "
        "training."
    )
    hparams: str | None = setting("Changes to --hparams_set: key=value,key=value.")
    config: str | None = setting(
        "Instead of --preset: JSON file with the settings of a TransformerConfig. The training "
        "recipe is that of transformer_base.",
        fixed=False,
    )
    model_dir: str | None = setting(
        "Directory of the model. Created, or resumed if it exists.", fixed=False
    )
    init_from: str | None = setting(
        "Instead of --preset: start from the architecture, vocabulary and weights of this model "
        "directory.",
        fixed=False,
    )
    data: str | None = setting(
        "Name of a translation set of TensorFlow Datasets. Default: 'files', which reads "
        "--train_source and --train_target."
    )
    direction: str | None = setting("Languages of a set of TensorFlow Datasets. Default: en-de.")
    data_dir: str | None = setting(
        "Data folder of TensorFlow Datasets. Default: ~/tensorflow_datasets, or $TFDS_DATA_DIR.",
        fixed=False,
    )
    train_source: str | None = setting(
        "Comma-separated text files of source sentences, one sentence per line.", fixed=False
    )
    train_target: str | None = setting(
        "Text files of the translations of --train_source, one per line.", fixed=False
    )
    dev_source: str | None = setting(
        "Comma-separated text files of source sentences for evaluations during training.",
        fixed=False,
    )
    dev_target: str | None = setting(
        "Text files of the translations of --dev_source, one per line.", fixed=False
    )
    train_text: str | None = setting(
        "Instead of sentence pairs, for a language model: comma-separated text files, one text per "
        "line.",
        fixed=False,
    )
    dev_text: str | None = setting(
        "Text files for evaluations of a language model during training.", fixed=False
    )
    vocab: str | None = setting(
        "SentencePiece model file of an existing vocabulary. Default: a vocabulary is trained on "
        "the training data.",
        fixed=False,
    )
    source_vocab: str | None = setting(
        "SentencePiece model file of the source vocabulary, if --vocab is that of the target only.",
        fixed=False,
    )
    vocab_size: int | None = setting(
        "Size of the joint SentencePiece vocabulary, or with --source_vocab_size of the target's."
        + _RECIPE,
        at_least=4,
    )
    source_vocab_size: int | None = setting(
        "Size of a SentencePiece vocabulary of the source. The model then has separate embeddings "
        "of source and target. Default: none; source and target share a vocabulary.",
        at_least=4,
    )
    normalization: str | None = setting(
        "Rule of SentencePiece that replaces characters of a new vocabulary's text, such as "
        "full-width punctuation. Default: nmt_nfkc.",
        choices=NORMALIZATIONS,
        fixed=False,
    )
    byte_fallback: bool | None = setting(
        "Whether a new vocabulary has 256 pieces for bytes, so that no character is unknown. "
        "Default: off.",
        fixed=False,
    )
    train_steps: int | None = setting("Total number of updates." + _RECIPE, at_least=1, fixed=False)
    batch_tokens: int | None = setting(
        "Batch size in tokens over all devices: sentence pairs times the longer of source and "
        "target length, including padding. For a language model: texts times length." + _RECIPE,
        at_least=1,
    )
    max_length: int | None = setting(
        "Maximum length of a sentence in tokens. Longer pairs, or texts of a language model, are "
        "skipped. Default: 256, or as in --hparams_set.",
        at_least=2,
    )
    learning_rate: float | None = setting(
        "Multiplier of the Noam learning-rate schedule." + _RECIPE, above=0.0
    )
    warmup_steps: int | None = setting(
        "Number of warm-up updates, during which the learning rate rises." + _RECIPE, at_least=1
    )
    label_smoothing: float | None = setting(
        "Label smoothing: probability spread over the incorrect ids." + _RECIPE,
        at_least=0.0,
        below=1.0,
    )
    adam_beta1: float | None = setting(
        "Adam's decay rate of the first-moment estimate." + _RECIPE, at_least=0.0, below=1.0
    )
    adam_beta2: float | None = setting(
        "Adam's decay rate of the second-moment estimate." + _RECIPE, at_least=0.0, below=1.0
    )
    adam_epsilon: float | None = setting(
        "Constant added to Adam's denominator." + _RECIPE, above=0.0
    )
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
        "Position encoding. 'relative' is used in every self-attention layer; 'sinusoidal' and "
        "'learned' are added to embeddings." + _PRESET,
        choices=POSITIONS,
    )
    max_relative_position: int | tuple | None = setting(
        "Clipping distance K of relative positions, or two distances LEFT,RIGHT." + _PRESET,
        at_least=0,
    )
    use_key_table: bool | None = setting("Whether relative positions are added to keys." + _PRESET)
    use_value_table: bool | None = setting(
        "Whether relative positions are added to values." + _PRESET
    )
    share_heads: bool | None = setting("Whether heads share the relative tables." + _PRESET)
    seed: int = setting("Seed of initial weights, dropout and data order.", 1, at_least=0)
    deterministic: bool = setting(
        "Use deterministic operations, which are slower.", False, fixed=False
    )
    strategy: str = setting(
        "'one': a single device. 'mirrored': all GPUs of this machine. 'multiworker': the GPUs of "
        "all machines in TF_CONFIG. 'auto': mirrored if there are several GPUs, else one.",
        "auto",
        choices=("auto", "one", "mirrored", "multiworker"),
        fixed=False,
    )
    logical_devices: int = setting(
        "Split the CPU into this number of devices and train on all of them.",
        0,
        at_least=0,
        fixed=False,
    )
    device_tokens: int | None = setting(
        "Size of a micro-batch on one device, in tokens as for --batch_tokens. Larger batches are "
        "split, and their gradients are accumulated." + _RECIPE,
        at_least=1,
        fixed=False,
    )
    precision: str = setting(
        "Compute dtype of the layers. Weights are always float32; float16 uses loss scaling.",
        "float32",
        choices=("float32", "bfloat16", "float16"),
    )
    jit_compile: bool | None = setting(
        "Compile the training step with XLA, or with --strategy=mirrored the gradients of each "
        "device. Batches are padded to a small set of shapes. Default: on for a single GPU, "
        "otherwise off. A resumed run keeps its value.",
        fixed=False,
    )
    clip_norm: float | None = setting(
        "Clip gradients to this global norm. Default: no clipping.", above=0.0
    )
    checkpoint_every: int | None = setting(
        "Updates between checkpoints." + _INTERVAL, at_least=1, fixed=False
    )
    checkpoint_minutes: float | None = setting(
        "Maximum number of minutes between checkpoints." + _INTERVAL, above=0.0, fixed=False
    )
    keep_checkpoints: int | None = setting(
        "Number of latest checkpoints to keep." + _RECIPE, at_least=1, fixed=False
    )
    evaluate_every: int | None = setting(
        "Updates between evaluations on the dev set. Default: --checkpoint_every, or the recipe's, "
        "or 1000.",
        at_least=1,
        fixed=False,
    )
    dev_bleu: bool = setting(
        "Whether evaluations also translate the dev set greedily and report BLEU.",
        False,
        fixed=False,
    )
    bleu_tokenize: str | None = setting(
        "Tokenizer of sacreBLEU for dev BLEU: 13a, intl, zh, char, none, ja-mecab or ko-mecab. "
        f"Default: {DEFAULT_TOKENIZER}.",
        fixed=False,
    )
    best_metric: str | None = setting(
        "Metric of the dev set that --keep_best and --early_stopping follow. Default: dev_bleu, or "
        "dev_loss for a language model, which has no other.",
        choices=("dev_bleu", "dev_chrf", "dev_loss"),
        fixed=False,
    )
    keep_best: int = setting(
        "Number of checkpoints with the best --best_metric to keep.", 0, at_least=0, fixed=False
    )
    early_stopping: int | None = setting(
        "Stop training after this number of evaluations without a better --best_metric.",
        at_least=1,
        fixed=False,
    )
    log_every: int = setting(
        "Updates between log lines and TensorBoard points.", 100, at_least=1, fixed=False
    )

    def __post_init__(self):
        # Settings that are read from JSON have lists.
        if isinstance(self.max_relative_position, list):
            object.__setattr__(self, "max_relative_position", tuple(self.max_relative_position))
        setting_flags.check(self)
        if isinstance(self.max_relative_position, tuple):
            left, right = self.max_relative_position
            if left == right:
                object.__setattr__(self, "max_relative_position", left)
        _check_together(self)

    @classmethod
    def from_flags(cls, values: flags.FlagValues = flags.FLAGS) -> "RunConfig":
        """Returns settings from the flags that `define_flags` defines."""
        return cls(**setting_flags.read_flags(cls, values))

    def resolve(self, **found) -> "RunConfig":
        """Returns these settings with None replaced by the values of a recipe.

        With `init_from`, the recipe is read from that model directory. Architecture settings are
        not part of a recipe and stay None. `found` are settings that replace all others, such as
        the sizes of existing vocabularies.

        Raises:
            ValueError: if the preset, the hparams set or that model does not exist, or training
                lacks what hparams require.
        """
        recipe = recipe_of(self)
        missing = {name: value for name, value in recipe.items() if getattr(self, name) is None}
        names = (*TEXT_FILES, *VOCABULARIES, "config")
        files = {name: _absolute(getattr(self, name)) for name in names if getattr(self, name)}
        values = {"dev_bleu": self.computes_dev_bleu} | missing | files | found
        return dataclasses.replace(self, **values)

    @property
    def kind(self) -> str:
        """Kind of model, see `ModelDirectory.kind`: text without sources makes a language model."""
        return LANGUAGE_MODEL if self.train_text else TRANSLATION

    @property
    def needs_dev_set(self) -> bool:
        """Whether settings require evaluations."""
        return self.dev_bleu or bool(self.keep_best) or self.early_stopping is not None

    @property
    def computes_dev_bleu(self) -> bool:
        """Whether evaluations measure BLEU."""
        return self.needs_dev_set and self.kind == TRANSLATION

    @property
    def score_settings(self) -> dict:
        """Settings of the scores of the dev set, with their defaults."""
        return SCORE_SETTINGS[self.kind]

    def to_dict(self) -> dict:
        """Returns all settings by name."""
        return dataclasses.asdict(self)

    @property
    def dtype_policy(self) -> str:
        """The Keras dtype policy of the layers. Weights are float32."""
        return self.precision if self.precision == "float32" else f"mixed_{self.precision}"

    def architecture_overrides(self) -> dict:
        """Returns the settings that override the preset's architecture."""
        values = {name: getattr(self, name) for name in ARCHITECTURE_SETTINGS}
        return {name: value for name, value in values.items() if value is not None}

    def fixed_on_resume(self) -> dict:
        """Returns the settings that must not change when a run is resumed."""
        names = [field.name for field in dataclasses.fields(self) if field.metadata["fixed"]]
        return {name: getattr(self, name) for name in names}


def _absolute(paths):
    return ",".join(os.path.abspath(path.strip()) for path in paths.split(",") if path.strip())


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines a flag for every setting of `RunConfig`, with its type, default and help."""
    setting_flags.define_flags(RunConfig, values)


def _check_together(config):
    """Raises ValueError if settings contradict each other or require others that are missing."""
    if not config.model_dir:
        raise ValueError(
            "Expected a directory for the model. Received: none. Give one with --model_dir."
        )
    names = ("preset", "hparams_set", "config", "init_from")
    given = [name for name in names if getattr(config, name) is not None]
    if len(given) > 1:
        raise ValueError(
            f"Expected either {given[0]} or {given[1]}. Received: both. Leave one of them out."
        )
    if config.hparams is not None and config.hparams_set is None:
        raise ValueError(
            f"Expected hparams_set with hparams. Received: hparams={config.hparams!r} only. Give "
            "the set that they change with --hparams_set, such as transformer_base."
        )
    if config.init_from is not None:
        other = "init_from, because that model's position encoding is fixed"
        _reject(config, ("position", *RELATIVE_SETTINGS), other)
        _reject(config, VOCABULARIES, "init_from, because that model's vocabulary is used")
    _check_data(config)
    if config.source_vocab is not None and config.vocab is None:
        raise ValueError(
            "Expected vocab, the vocabulary of the target, with source_vocab. Received: "
            f"source_vocab={config.source_vocab!r} only. Give --vocab too."
        )
    if config.bleu_tokenize is not None:
        check_bleu_tokenize(config.bleu_tokenize)
    if config.jit_compile:
        other = "jit_compile, because XLA has no deterministic version of some operations"
        _reject(config, ("deterministic",), other)
    if config.jit_compile and config.strategy == "multiworker":
        other = "the strategy multiworker: XLA can't compile a step that runs on several machines"
        _reject(config, ("jit_compile",), other)


def _reject(config, names, other):
    """Raises ValueError if one of the settings `names` has another value than its default."""
    for name in names:
        value = getattr(config, name)
        if value not in ("", getattr(RunConfig, name)):
            raise ValueError(
                f"Expected no {name} with {other}. Received: {value!r}. Leave one of them out."
            )


def _check_data(config):
    is_text = config.data in (None, "files")
    if config.kind == LANGUAGE_MODEL:
        names = [name for name in _PAIR_SETTINGS if name != "data" or not is_text]
        names += ["best_metric"] if config.best_metric != "dev_loss" else []
        _reject(config, names, "train_text, which trains a language model")
        return
    if config.dev_text is not None or config.best_metric == "dev_loss":
        name = "best_metric=dev_loss" if config.dev_text is None else "dev_text"
        raise ValueError(
            f"Expected train_text, which trains a language model, with {name}. Received: none. "
            "Give --train_text, or leave the other out."
        )
    for split in ("train", "dev"):
        sides = {side: getattr(config, f"{split}_{side}") for side in ("source", "target")}
        missing = [side for side, files in sides.items() if not files]
        if len(missing) == 1:
            raise ValueError(
                f"Expected {split}_source and {split}_target together. Received: one of them. Give "
                f"--{split}_{missing[0]} too."
            )
    if is_text and not config.train_source:
        raise ValueError(
            "Expected training data. Received: none. Give --train_source and --train_target, or "
            "--data=NAME of a TensorFlow Datasets set, or --train_text for a language model."
        )
    if is_text:
        _reject(config, ("data_dir", "direction"), "text files")
    else:
        _reject(config, ("train_source", "dev_source"), f"data={config.data!r}")
