r"""Exports a trained model as a SavedModel that translates strings.

    python -m trainer.export --model_dir=runs/NAME

Writes saved_models/NAME/VERSION/, which `python -m trainer.translate` and TensorFlow Serving read.
The SavedModel of a language model continues and scores ids, and with a vocabulary also strings:

    python -m trainer.export --model_dir=runs/NAME --sampler=random --temperature=0.9 \
      --max_length=1024
"""

import dataclasses
import functools
import shlex
from pathlib import Path

from absl import app, flags, logging

from . import entry_point, setting_flags
from .errors import as_installed
from .model_dir import LANGUAGE_MODEL, ModelDirectory
from .serving.generation_settings import SAMPLERS, GenerationSettings
from .serving.translation_settings import TranslationSettings, longest_input
from .streams import report


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
    names = _names(TranslationSettings)
    setting_flags.define_flags(TranslationSettings, values, names - {"max_input_length"})
    setting_flags.define_flags(GenerationSettings, values, _names(GenerationSettings) - names)
    define(
        "max_input_length",
        int,
        "Maximum number of ids of a sentence. Longer sentences are truncated. Default: the value "
        f"of --max_length in training, at least {TranslationSettings.max_input_length}.",
    )
    define("jit_compile", bool, "Ignored. Searches of exported models are not compiled.", False)


def _names(settings):
    return {field.name for field in dataclasses.fields(settings)}


def export(module, directory: Path, version: int | None = None) -> Path:
    """Writes a version of a model, with warm-up requests for TensorFlow Serving.

    Args:
        module: the `TranslationModule` or `LanguageModule` to export.
        directory: saved_models/NAME, created if missing. NAME is the name of the model on a server.
        version: a positive integer. Default: the latest version plus 1.

    Returns:
        The directory of the version.

    Raises:
        ValueError: if the version exists, or the directory can't be written.
    """
    import tensorflow as tf

    from .serving import model_versions, warmup

    with model_versions.new_version(directory, version) as (temporary, final):
        tf.saved_model.save(module, str(temporary), signatures=module.signatures)
        warmup.write(temporary, directory.name, module.warmup_requests())
    return final


def _destination(values):
    name = values.name if values.name is not None else Path(values.model_dir).resolve().name
    if name in ("", "..") or Path(name).name != name:
        raise ValueError(
            f"Expected --name to be the name of one folder. Received: {name!r}. Set its parent "
            "folder with --export_dir."
        )
    return Path(values.export_dir) / name


def _settings(values, directory):
    """Returns the settings of the model, without values of other flags."""
    is_language_model = directory.kind == LANGUAGE_MODEL
    settings = GenerationSettings if is_language_model else TranslationSettings
    used, kind = _names(settings), directory.kind
    if is_language_model:
        used -= {name for names in SAMPLERS.values() for name in names}
        used |= {*SAMPLERS[values.sampler]}
        kind = f"{kind} and --sampler={values.sampler}"
    others = _names(TranslationSettings) | _names(GenerationSettings) | {"precision"}
    others -= used if is_language_model else {*used, "precision"}
    for name in sorted(others):
        if values[name].present:
            raise ValueError(
                f"Expected no --{name} with a model of kind {kind}. Received: "
                f"{values[name].value}. Leave it out."
            )
    given = setting_flags.read_flags(settings, values)
    if not is_language_model and given["max_input_length"] is None:
        given["max_input_length"] = longest_input(directory)
    return settings(**given)


def _module(directory, settings, precision):
    if directory.kind == LANGUAGE_MODEL:
        from .serving.language_module import LanguageModule

        has_text = directory.tokenizer_kind != "none"
        tokenizer = directory.load_tokenizer() if has_text else None
        return LanguageModule(directory.load_model(), tokenizer, settings)
    from .serving.translation_module import TranslationModule

    return TranslationModule.from_model_dir(directory.path, settings, precision)


def _run(values):
    import tensorflow as tf

    # Without this, TensorFlow logs the temporary name of the directory.
    tf.get_logger().setLevel("WARNING")
    if values.jit_compile:
        report("--jit_compile is ignored: searches of exported models are not compiled.")
    model_dir = ModelDirectory.open(values.model_dir)
    settings = _settings(values, model_dir)
    directory = _destination(values)
    module = _module(model_dir, settings, values.precision)
    path = export(module, directory, values.version)
    print(f"Wrote {path}")
    if model_dir.kind == LANGUAGE_MODEL:
        print(f"Signatures: {', '.join(module.signatures)}.")
        print(f"Outputs have at most {module.longest_output}.")
        return
    print(f"Sentences of more than {settings.max_input_length:,} tokens are truncated.")
    saved_model = shlex.quote(f"--saved_model={directory}")
    command = as_installed("python -m trainer.translate")
    print(f"Translate with it: {command} {saved_model} < source.txt")


main = functools.partial(entry_point.run, "trainer.export", _run)


if __name__ == "__main__":
    define_flags()
    logging.set_verbosity(logging.WARNING)
    app.run(main, flags_parser=entry_point.parse_flags)
