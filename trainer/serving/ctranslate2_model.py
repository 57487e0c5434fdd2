"""A model directory's Transformer as a CTranslate2 model directory.

What CTranslate2's search means by its options, next to ours:

    beam_size             the same; 1 is greedy
    length_penalty        divides log-probability by `length ** length_penalty`, ours by
                          `((5 + length) / 6) ** alpha`, both counting the end of the sentence.
                          Equal only at 0. Near lengths of L, alpha * L / (5 + L) ranks most
                          similarly.
    patience              a sentence is done after beam_size * patience finished hypotheses (with
                          length_penalty=0: once the best hypothesis of the beam is finished); ours,
                          when no living hypothesis can beat the best finished one
    (no option)           only ends among the best beam_size of the 2 * beam_size candidates of a
                          step are taken; ours takes all, as tensor2tensor does
    coverage_penalty      ours has none: leave it at 0
    max_decoding_length   the same for all sentences of a call, 256; truncated hypotheses count as
                          finished. Ours adds 50 to each sentence's length, and prefers finished
                          ones
    min_decoding_length   ours has none: 0, where theirs is 1
    max_input_length      the same, but 1,024 here and 256 in an export

Padding is never chosen by either; here it has no share of the probability at all, so that scores
are higher by as much.
"""

import os
import shutil
from pathlib import Path

from trainer import atomic_files
from trainer.data.token_names import token_names
from trainer.model_dir import ModelDirectory

QUANTIZATIONS = (
    "none",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
    "int16",
    "float16",
    "bfloat16",
    "float32",
)


def write(
    model_dir: str | os.PathLike,
    output_dir: str | os.PathLike,
    quantization: str = "none",
    force: bool = False,
):
    """Writes the model of a model directory as a CTranslate2 model directory, with its vocabulary,
    whole or not at all.

    Args:
        model_dir: the directory that `trainer.train` or `trainer.import_t2t` wrote.
        output_dir: the directory to make.
        quantization: of the weights: one of `QUANTIZATIONS`.
        force: whether to replace a CTranslate2 model that is there already.

    Raises:
        ValueError: where the model directory has no model; for a model that CTranslate2 can't
            express, saying why; for an output_dir that can't be written; and where the package
            ctranslate2 is missing.
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"Expected --quantization to be one of {', '.join(QUANTIZATIONS)}. Received: "
            f"{quantization!r}."
        )
    build = _builder()
    output = Path(output_dir)
    check_destination(output, force)
    directory = ModelDirectory.open(model_dir)
    model = directory.load_model()
    check_expressible(model.config)
    spec = build(model, token_names(directory, model.config.vocab_size))
    spec.optimize(quantization=None if quantization == "none" else quantization)
    try:
        with atomic_files.whole_directory(output) as aside:
            spec.save(str(aside))
            if directory.tokenizer_kind != "none":
                shutil.copy(directory.vocabulary_file(directory.tokenizer_kind), aside)
            check_destination(output, force)
    except OSError as error:
        raise ValueError(
            f"Expected an --output_dir that can be written. Received: {output} "
            f"({error.strerror or error}). Choose another one."
        ) from error


def check_destination(output: Path, force: bool):
    """Refuses to replace what is there, and to replace anything but a CTranslate2 model."""
    if not output.exists():
        return
    if not force:
        raise ValueError(
            f"Expected an --output_dir that does not exist yet. Received: {output}, which does. "
            "Replace it with --force."
        )
    if not (output / "model.bin").is_file():
        raise ValueError(
            "Expected --force to replace a CTranslate2 model, which holds a model.bin. Received: "
            f"{output}, which holds none. "
            "Choose another --output_dir."
        )


def check_expressible(config):
    """Refuses architectures that CTranslate2 has no form for.

    Args:
        config: a `TransformerConfig`.

    Raises:
        ValueError: naming the setting.

    Example:
        >>> from t2t_relpos.models import TransformerConfig
        >>> check_expressible(TransformerConfig.from_preset("tiny", vocab_size=8000))
    """
    has_tables = config.relative and (config.use_key_table or config.use_value_table)
    if has_tables and not config.share_heads and config.num_heads > 1:
        raise ValueError(
            "Expected relative positions that all heads share, since CTranslate2 has one table "
            "for all heads of a layer. "
            f"Received: share_heads=False with {config.num_heads} heads. Presets such as tiny and "
            "shaw_big share them."
        )
    if config.relative_cross_attention:
        raise ValueError(
            "Expected attention to the encoder without positions, since CTranslate2 has none "
            "there. "
            "Received: relative_cross_attention=True."
        )
    if config.position == "relative+sinusoidal" and not config.normalize_first:
        raise ValueError(
            "Expected either relative positions or sinusoids in a model with post-norm, since "
            "CTranslate2 adds no sinusoids where "
            "the first layer has relative positions. Received: position='relative+sinusoidal', "
            "normalize_first=False."
        )


def _builder():
    try:
        from trainer.serving.ctranslate2_spec import build
    except ModuleNotFoundError as error:
        raise ValueError(
            "Expected the package ctranslate2. Received: an environment without it. Install it: "
            "pip install '.[ctranslate2]'."
        ) from error
    return build
