"""Exports a trained model for CTranslate2.

    python -m trainer.export_ctranslate2 --model_dir=runs/NAME --output_dir=ctranslate2/NAME

Requires the package ctranslate2: pip install 't2t-relpos[ctranslate2]'. The search of CTranslate2
differs from ours as follows:

    length_penalty        divides the log-probability by `length ** length_penalty`; ours divides it
                          by `((5 + length) / 6) ** alpha`. Both count EOS. For lengths of about L,
                          length_penalty = alpha * L / (5 + L) gives the most similar ranking.
    patience              a sentence is done after beam_size * patience finished hypotheses (with
                          length_penalty=0: when the best hypothesis of the beam is finished); ours
                          when no unfinished hypothesis can beat the best finished one
    (no option)           only the best beam_size of the 2 * beam_size candidates of a step can end
                          a hypothesis; in ours, all of them can, as in tensor2tensor
    coverage_penalty      use 0; ours has none
    max_decoding_length   256, the same for all sentences of a call; truncated hypotheses count as
                          finished. Ours adds 50 to each source length and prefers finished ones
    min_decoding_length   1; ours is 0
    max_input_length      1,024; in an export, the `--max_length` of the training run, at least 256

Neither search chooses padding. CTranslate2 gives padding probability 0, which raises its scores.

With int8, the program compares the scores of a few dev sentences with those in float32, on the
machine at hand. On AMD processors without VNNI, set CT2_USE_MKL=1 when you translate: without it,
CTranslate2 multiplies int8 with 16-bit sums that saturate, which changes scores and translations.
Processors with VNNI have avx512_vnni or avx_vnni among the flags in /proc/cpuinfo.
"""

import functools
import os
import shutil
from pathlib import Path

from absl import app, flags, logging

from . import atomic_files, entry_point
from .model_dir import TRANSLATION, ModelDirectory
from .serving.translation_settings import longest_input

QUANTIZATIONS = tuple(
    "none int8 int8_float32 int8_float16 int8_bfloat16 int16 float16 bfloat16 float32".split()
)
_MAX_INPUT_LENGTH = 1024  # CTranslate2's default.
# Factor of the simulated difference above which int8 is reported. The simulation does not round
# embeddings and the inputs of the logits, which adds less than half. Sums that saturate had a
# factor of 28 in a model of width 16.
_LARGEST_FACTOR = 3


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    define = functools.partial(entry_point.define_flag, values)
    define("model_dir", str, "Model directory to export.", required=True)
    define("output_dir", str, "Directory to create.", required=True)
    define("quantization", str, f"Type of the weights: {', '.join(QUANTIZATIONS)}.", "none")
    define("force", bool, "Replace an existing CTranslate2 model in --output_dir.", False)


def export(
    model_dir: str | os.PathLike,
    output_dir: str | os.PathLike,
    quantization: str = "none",
    *,
    force: bool = False,
):
    """Writes the model of a model directory and its vocabularies for CTranslate2, atomically.

    Args:
        model_dir: the model directory.
        output_dir: directory to create.
        quantization: type of the weights, one of `QUANTIZATIONS`.
        force: whether to replace an existing CTranslate2 model.

    Raises:
        ValueError: if the model directory has no model, CTranslate2 does not support the model,
            or `output_dir` can't be written.
        ModuleNotFoundError: if the package ctranslate2 is not installed.
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"Expected --quantization to be one of {', '.join(QUANTIZATIONS)}. Received: "
            f"{quantization!r}."
        )
    from .serving.ctranslate2_spec import build

    output = Path(output_dir)
    _check_destination(output, force)
    directory = ModelDirectory.open(model_dir, TRANSLATION)
    model = directory.load_model()
    source, _ = directory.token_names(model.config.num_source_ids, "source")
    target, unk_id = directory.token_names(model.config.vocab_size, "target")
    spec = build(model, source, target, unk_id)
    spec.optimize(quantization=None if quantization == "none" else quantization)
    with atomic_files.atomic_directory(output) as temporary:
        spec.save(str(temporary))
        for file in directory.vocabulary_files:
            shutil.copy(file, temporary)
        _check_destination(output, force)


def _check_destination(output, force):
    """Raises ValueError if `output` exists, unless it is a CTranslate2 model and `force` is set."""
    if not output.exists():
        return
    if not force:
        raise ValueError(
            f"Expected an --output_dir that does not exist yet. Received: {output}, which exists. "
            "Replace it with --force."
        )
    if not (output / "model.bin").is_file():
        raise ValueError(
            "Expected --force to replace a CTranslate2 model, which has a model.bin. Received: "
            f"{output}, which has none. Choose another --output_dir."
        )


def _report(scores):
    """Prints how much int8 changes scores, and warns if it is far above the simulation."""
    print(
        f"Scores of {scores.texts} in int8 differ from float32 by {scores.measured:.4f} per token "
        f"on this machine (simulated: {scores.simulated:.4f})."
    )
    print("On AMD processors without VNNI, set CT2_USE_MKL=1 when you translate.")
    if scores.measured > _LARGEST_FACTOR * scores.simulated:
        logging.warning(
            "int8 is not exact on this processor. Set CT2_USE_MKL=1 when you translate. If it is "
            "set, use --quantization=none."
        )


def _run(values):
    export(values.model_dir, values.output_dir, values.quantization, force=values.force)
    print(f"Wrote {values.output_dir}")
    if values.quantization.startswith("int8"):
        from .serving.int8_scores import compare

        _report(compare(values.model_dir, values.output_dir))
    limit = longest_input(ModelDirectory.open(values.model_dir))
    if limit > _MAX_INPUT_LENGTH:
        print(
            f"By default, CTranslate2 truncates sentences of more than {_MAX_INPUT_LENGTH:,} "
            f"tokens. Give max_input_length={limit} to translate_batch."
        )


main = functools.partial(entry_point.run, "trainer.export_ctranslate2", _run)


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=entry_point.parse_flags)
