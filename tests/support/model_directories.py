"""Model directories with untrained models."""

from t2t_relpos.models import Transformer
from t2t_relpos.t2t import config_from_hparams, parse_hparams
from trainer.import_t2t import import_checkpoint, write_checkpoint
from trainer.model_dir import ModelDirectory


def bare_model_directory(path, model):
    """Returns a new `ModelDirectory` with a model and without a vocabulary."""
    directory = ModelDirectory(path)
    directory.path.mkdir()
    directory.save_model(model)
    directory.write_config(model.config.to_dict())
    return directory


def subword_vocabulary(words):
    """Returns the text of a vocabulary of tensor2tensor: words, from id 2, and single letters."""
    letters = sorted({*"\\_u;0123456789<>padEOS", *"".join(words)})
    return "".join(f"'{subtoken}'\n" for subtoken in ["<pad>_", "<EOS>_", *words, *letters])


def import_random_model(folder, hparams, words, target_space_id=0):
    """Returns a model directory that was imported from a checkpoint with random weights.

    Args:
        folder: folder for the checkpoint, the vocabulary and the model directory.
        hparams: changes of the hparams set transformer_relative_tiny.
        words: words of the vocabulary.
        target_space_id: target space of the model.
    """
    hparams_set, checkpoint = "transformer_relative_tiny", str(folder / "model.ckpt-7")
    vocabulary, text = folder / "vocab.subwords", subword_vocabulary(words)
    vocabulary.write_text(text)
    values = parse_hparams(hparams_set, hparams)
    config = config_from_hparams(values, text.count("\n"), target_space_id)
    write_checkpoint(Transformer(config), checkpoint)
    import_checkpoint(
        checkpoint,
        str(folder / "imported"),
        hparams_set=hparams_set,
        hparams=hparams,
        target_space_id=target_space_id,
        vocab=str(vocabulary),
    )
    return folder / "imported"
