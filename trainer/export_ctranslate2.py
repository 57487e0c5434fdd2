"""Exports a trained model for CTranslate2.

    python -m trainer.export_ctranslate2 --model_dir=runs/NAME --output_dir=ctranslate2/NAME

Needs the package ctranslate2: pip install '.[ctranslate2]'.
"""

import sys

from trainer.quiet_start import import_tensorflow

import_tensorflow()

from absl import app, flags

from trainer.serving import ctranslate2_model


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""

    def define(kind, *args, **kwargs):
        kind(*args, flag_values=values, **kwargs)

    kinds = ", ".join(ctranslate2_model.QUANTIZATIONS)
    define(flags.DEFINE_string, "model_dir", None, "Directory of a trained model.", required=True)
    define(flags.DEFINE_string, "output_dir", None, "Directory to make.", required=True)
    define(flags.DEFINE_string, "quantization", "none", f"Of the weights: {kinds}.")
    define(
        flags.DEFINE_bool, "force", False, "Replace a CTranslate2 model that is in --output_dir."
    )


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds what was not a flag."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    try:
        ctranslate2_model.write(
            values.model_dir, values.output_dir, values.quantization, values.force
        )
    except ValueError as error:
        sys.exit(f"trainer.export_ctranslate2: {error}")
    print(f"Wrote {values.output_dir}")


def run():
    """Runs the program with the flags of the command line."""
    define_flags()
    app.run(main)


if __name__ == "__main__":
    run()
