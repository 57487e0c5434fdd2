"""Exports a trained model as a SavedModel that translates strings.

    python -m trainer.export --model_dir=runs/NAME

Writes saved_models/NAME/VERSION/, which `python -m trainer.translate` and TensorFlow Serving read.
"""

import sys
from pathlib import Path

from trainer.quiet_start import import_tensorflow

import_tensorflow()

import tensorflow as tf
from absl import app, flags, logging

from trainer.serving import saved_models, warmup
from trainer.serving.translation_module import TranslationModule, TranslationSettings


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""

    def define(kind, *args, **kwargs):
        kind(*args, flag_values=values, **kwargs)

    settings = TranslationSettings()
    define(flags.DEFINE_string, "model_dir", None, "Directory of a trained model.", required=True)
    define(
        flags.DEFINE_string,
        "name",
        None,
        "Name of the exported model; the last part of --model_dir where omitted.",
    )
    define(flags.DEFINE_string, "export_dir", "saved_models", "Folder of exported models.")
    define(flags.DEFINE_integer, "version", None, "Version to write; the next one where omitted.")
    define(flags.DEFINE_integer, "beam_size", settings.beam_size, "Hypotheses kept per sentence.")
    define(flags.DEFINE_float, "alpha", settings.alpha, "Exponent of the length penalty.")
    define(
        flags.DEFINE_integer,
        "max_input_length",
        settings.max_input_length,
        "Ids of a sentence; a longer one is cut.",
    )
    define(
        flags.DEFINE_integer,
        "extra_length",
        settings.extra_length,
        "Ids a translation may have beyond its source's.",
    )
    early = (
        "Whether a search stops with beam_size finished translations: faster, sometimes less "
        "likely."
    )
    define(flags.DEFINE_boolean, "early_stopping", settings.early_stopping, early)
    define(
        flags.DEFINE_integer,
        "max_beam_size",
        settings.max_beam_size,
        "Largest beam that a request may ask for.",
    )


def export(module: TranslationModule, directory: Path, version: int | None = None) -> Path:
    """Writes a version of a model, with the requests that warm up TensorFlow Serving.

    Args:
        module: the module to export.
        directory: saved_models/NAME, made where missing; NAME is what a server knows the model by.
        version: a positive integer; the next one where omitted.

    Returns:
        The directory of the version.

    Raises:
        ValueError: where the version exists, or the directory can't be written.
    """
    with saved_models.new_version(directory, version) as (aside, final):
        tf.saved_model.save(module, str(aside), signatures=module.signatures)
        warmup.write(aside, directory.name, module.tokenizer, module.settings.max_input_length)
    return final


def _destination(values):
    name = values.name if values.name is not None else Path(values.model_dir).resolve().name
    if name in ("", "..") or Path(name).name != name:
        raise ValueError(
            f"Expected --name to be the name of one folder. Received: {name!r}. Say where it lies "
            "with --export_dir."
        )
    return Path(values.export_dir) / name


def _run(values):
    settings = TranslationSettings(
        values.beam_size,
        values.alpha,
        values.max_input_length,
        values.extra_length,
        values.early_stopping,
        values.max_beam_size,
    )
    directory = _destination(values)
    module = TranslationModule.from_model_dir(values.model_dir, settings)
    path = export(module, directory, values.version)
    print(f"Wrote {path}")
    print(f"Translate with it: python -m trainer.translate --saved_model={directory} < source.txt")


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds what was not a flag."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    try:
        _run(values)
    except ValueError as error:
        sys.exit(f"trainer.export: {error}")


def run():
    """Runs the program with the flags of the command line."""
    define_flags()
    # TensorFlow would report the name under which the model is written aside.
    logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel("WARNING")
    app.run(main)


if __name__ == "__main__":
    run()
