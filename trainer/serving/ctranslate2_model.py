"""Writes a model directory's Transformer as a CTranslate2 model.

Options of CTranslate2's search, compared with ours:

    beam_size             the same; 1 is greedy
    length_penalty        divides the log-probability by `length ** length_penalty`; ours divides by
                          `((5 + length) / 6) ** alpha`. Both count EOS. They are equal only at 0.
                          Near a length of L, alpha * L / (5 + L) ranks most similarly.
    patience              a sentence is done after beam_size * patience finished hypotheses (with
                          length_penalty=0: when the best hypothesis of the beam is finished); ours,
                          when no living hypothesis can beat the best finished one
    (no option)           a hypothesis can end only among the best beam_size of the 2 * beam_size
                          candidates of a step; ours among all, as in tensor2tensor
    coverage_penalty      ours has none: leave it at 0
    max_decoding_length   256, the same for all sentences of a call; truncated hypotheses count as
                          finished. Ours adds 50 to each sentence's length and prefers finished ones
    min_decoding_length   1; ours is 0
    max_input_length      1,024; 256 in an export

Neither search chooses padding. In CTranslate2 padding has probability 0, so scores are higher.
"""

import os
import shutil
from pathlib import Path

from trainer import atomic_files
from trainer.data.token_names import token_names
from trainer.model_dir import ModelDirectory

QUANTIZATIONS = tuple(
    "none int8 int8_float32 int8_float16 int8_bfloat16 int16 float16 bfloat16 float32".split()
)


def write(
    model_dir: str | os.PathLike,
    output_dir: str | os.PathLike,
    quantization: str = "none",
    force: bool = False,
):
    """Writes the model of a model directory and its vocabulary for CTranslate2, atomically.

    Args:
        model_dir: directory that `trainer.train` or `trainer.import_t2t` wrote.
        output_dir: directory to create.
        quantization: of the weights; one of `QUANTIZATIONS`.
        force: whether to replace an existing CTranslate2 model.

    Raises:
        ValueError: if the model directory has no model, CTranslate2 does not support the model,
            `output_dir` can't be written, or the package ctranslate2 is missing.
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"Expected --quantization to be one of {', '.join(QUANTIZATIONS)}. Received: "
            f"{quantization!r}."
        )
    build = _import_build()
    output = Path(output_dir)
    check_destination(output, force)
    directory = ModelDirectory.open(model_dir)
    model = directory.load_model()
    check_expressible(model.config)
    spec = build(model, token_names(directory, model.config.vocab_size))
    spec.optimize(quantization=None if quantization == "none" else quantization)
    try:
        with atomic_files.atomic_directory(output) as temporary:
            spec.save(str(temporary))
            if directory.tokenizer_kind != "none":
                shutil.copy(directory.vocabulary_file(directory.tokenizer_kind), temporary)
            check_destination(output, force)
    except OSError as error:
        raise ValueError(
            f"Expected an --output_dir that can be written. Received: {output} "
            f"({error.strerror or error}). Choose another one."
        ) from error


def check_destination(output: Path, force: bool):
    """Raises ValueError if `output` exists, unless it is a CTranslate2 model and `force` is set."""
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
            f"{output}, which holds none. Choose another --output_dir."
        )


def check_expressible(config):
    """Raises ValueError if CTranslate2 does not support an architecture.

    Args:
        config: a `TransformerConfig`.
    """
    has_tables = config.relative and (config.use_key_table or config.use_value_table)
    if has_tables and not config.share_heads and config.num_heads > 1:
        raise ValueError(
            "Expected relative positions that all heads share, since CTranslate2 has one table "
            f"for all heads of a layer. Received: share_heads=False with {config.num_heads} heads. "
            "Presets such as tiny and shaw_big share them."
        )
    if config.relative_cross_attention:
        raise ValueError(
            "Expected attention to the encoder without positions, since CTranslate2 has none "
            "there. Received: relative_cross_attention=True."
        )
    if config.position == "relative+sinusoidal" and not config.normalize_first:
        raise ValueError(
            "Expected either relative positions or sinusoids in a model with post-norm, since "
            "CTranslate2 adds no sinusoids where the first layer has relative positions. Received: "
            "position='relative+sinusoidal', normalize_first=False."
        )


def _import_build():
    try:
        from trainer.serving.ctranslate2_spec import build
    except ModuleNotFoundError as error:
        raise ValueError(
            "Expected the package ctranslate2. Received: an environment without it. Install it: "
            "pip install '.[ctranslate2]'."
        ) from error
    return build
