"""Reads a checkpoint of tensor2tensor into a model directory.

    python -m trainer.import_t2t --checkpoint=model.ckpt-250000 --hparams_set=transformer_relative \
      --vocab=vocab.translate_ende_wmt32k.32768.subwords --model_dir=runs/imported

The model can then be evaluated, exported and fine-tuned like one that was trained here.
"""

import sys

from absl import app, flags

from trainer.quiet_start import import_tensorflow


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""

    def define(kind, *args, **kwargs):
        kind(*args, flag_values=values, **kwargs)

    define(
        flags.DEFINE_string,
        "checkpoint",
        None,
        "Prefix of a TF1 checkpoint: the path without .index.",
        required=True,
    )
    define(
        flags.DEFINE_string,
        "hparams_set",
        None,
        "tensor2tensor's set that the model was trained with.",
        required=True,
    )
    define(flags.DEFINE_string, "hparams", "", "Changes to the set: key=value,key=value.")
    define(
        flags.DEFINE_integer,
        "target_space_id",
        0,
        "Id of the problem's target space; 0 for plain text problems.",
    )
    define(flags.DEFINE_string, "vocab", None, "tensor2tensor's subword vocabulary of the problem.")
    define(
        flags.DEFINE_integer,
        "vocab_size",
        None,
        "Instead of --vocab: its size, for a model that takes and gives ids.",
    )
    define(flags.DEFINE_string, "model_dir", None, "Directory to make.", required=True)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds what was not a flag."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    import_tensorflow()
    from trainer.t2t_checkpoints import import_checkpoint

    try:
        config = import_checkpoint(
            values.checkpoint,
            values.model_dir,
            hparams_set=values.hparams_set,
            hparams=values.hparams,
            target_space_id=values.target_space_id,
            vocab=values.vocab,
            vocab_size=values.vocab_size,
        )
    except (ValueError, OSError) as error:
        sys.exit(f"trainer.import_t2t: {error}")
    print(f"Imported {values.checkpoint}: {config}")
    print(f"The model is in {values.model_dir}.")


def run():
    """Runs the program with the flags of the command line."""
    define_flags()
    app.run(main)


if __name__ == "__main__":
    run()
