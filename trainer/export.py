"""Exports a trained model as a SavedModel that translates strings.

    python -m trainer.export --model_dir=runs/NAME

Writes saved_models/NAME/VERSION/, which `python -m trainer.translate` and TensorFlow Serving read.
"""

import functools
from pathlib import Path

from absl import app, flags, logging

from trainer import config_fields, entry_point
from trainer.serving.translation_settings import TranslationSettings


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
    config_fields.define_flags(TranslationSettings, values)


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

    from trainer.serving import saved_models, warmup

    with saved_models.new_version(directory, version) as (temporary, final):
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


def _run(values):
    import tensorflow as tf

    from trainer.serving.translation_module import TranslationModule

    # Without this, TensorFlow logs the temporary name of the directory.
    tf.get_logger().setLevel("WARNING")
    settings = TranslationSettings(**config_fields.read_flags(TranslationSettings, values))
    directory = _destination(values)
    module = TranslationModule.from_model_dir(values.model_dir, settings, values.precision)
    path = export(module, directory, values.version)
    print(f"Wrote {path}")
    print(f"Translate with it: python -m trainer.translate --saved_model={directory} < source.txt")


main = functools.partial(entry_point.run, "trainer.export", _run)


if __name__ == "__main__":
    define_flags()
    logging.set_verbosity(logging.WARNING)
    app.run(main)
