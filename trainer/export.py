"""Exports a trained model as a SavedModel that translates strings.

    python -m trainer.export --model_dir=runs/NAME

Writes saved_models/NAME/VERSION/, which `python -m trainer.translate` and TensorFlow Serving read.
"""

import dataclasses
import functools
import shlex
from pathlib import Path

from absl import app, flags, logging

from trainer import entry_point, setting_flags
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_settings import TranslationSettings, longest_input


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    define = functools.partial(entry_point.define_flag, values)
    define("model_dir", str, "Model directory to export.", required=True)
    define("name", str, "Name of the exported model. Default: the last part of --model_dir.")
    define("export_dir", str, "Folder of exported models.", "saved_models")
    define("version", int, "Version to write. Default: the next one.")
    define(
        "precision",
        str,
        "Dtype of matrix products with weights, except for the logits. bfloat16 is faster for "
        "batches on processors with bfloat16 instructions.",
        "float32",
        choices=("float32", "bfloat16"),
    )
    names = [field.name for field in dataclasses.fields(TranslationSettings)]
    names.remove("max_input_length")
    setting_flags.define_flags(TranslationSettings, values, names)
    define(
        "max_input_length",
        int,
        "Maximum number of ids of a sentence. Longer sentences are truncated. Default: the value "
        f"of --max_length in training, at least {TranslationSettings.max_input_length}.",
    )


def export(module, directory: Path, version: int | None = None) -> Path:
    """Writes a version of a model, with warm-up requests for TensorFlow Serving.

    Args:
        module: the `TranslationModule` to export.
        directory: saved_models/NAME, created if missing. NAME is the name of the model on a server.
        version: a positive integer. Default: the latest version plus 1.

    Returns:
        The directory of the version.

    Raises:
        ValueError: if the version exists, or the directory can't be written.
    """
    import tensorflow as tf

    from trainer.serving import model_versions, warmup

    with model_versions.new_version(directory, version) as (temporary, final):
        tf.saved_model.save(module, str(temporary), signatures=module.signatures)
        warmup.write(temporary, directory.name, module.tokenizer, module.settings)
    return final


def _destination(values):
    name = values.name if values.name is not None else Path(values.model_dir).resolve().name
    if name in ("", "..") or Path(name).name != name:
        raise ValueError(
            f"Expected --name to be the name of one folder. Received: {name!r}. Set its parent "
            "folder with --export_dir."
        )
    return Path(values.export_dir) / name


def _settings(values):
    given = setting_flags.read_flags(TranslationSettings, values)
    if given["max_input_length"] is None:
        given["max_input_length"] = longest_input(ModelDirectory.open(values.model_dir))
    return TranslationSettings(**given)


def _run(values):
    import tensorflow as tf

    from trainer.serving.signatures import TranslationModule

    # Without this, TensorFlow logs the temporary name of the directory.
    tf.get_logger().setLevel("WARNING")
    settings = _settings(values)
    directory = _destination(values)
    module = TranslationModule.from_model_dir(values.model_dir, settings, values.precision)
    path = export(module, directory, values.version)
    print(f"Wrote {path}")
    print(f"Sentences of more than {settings.max_input_length:,} tokens are truncated.")
    saved_model = shlex.quote(f"--saved_model={directory}")
    print(f"Translate with it: python -m trainer.translate {saved_model} < source.txt")


main = functools.partial(entry_point.run, "trainer.export", _run)


if __name__ == "__main__":
    define_flags()
    logging.set_verbosity(logging.WARNING)
    app.run(main)
