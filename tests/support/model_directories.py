"""Model directories with untrained models."""

import numpy as np

from t2t_relpos.models import CausalLM, Transformer
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


def import_random_model(
    folder, hparams, words, *, hparams_set="transformer_relative_tiny", **settings
):
    """Returns a model directory that was imported from a checkpoint with random weights.

    Args:
        folder: folder for the checkpoint, the vocabulary and the model directory.
        hparams: changes of the hparams set.
        words: words of the vocabulary.
        hparams_set: name of the hparams set.
        **settings: settings of `write_random_checkpoint`.
    """
    checkpoint, vocabulary = str(folder / "model.ckpt-7"), folder / "vocab.subwords"
    vocabulary.write_text(text := subword_vocabulary(words))
    write_random_checkpoint(checkpoint, hparams_set, hparams, text.count("\n"), **settings)
    import_checkpoint(
        checkpoint,
        str(folder / "imported"),
        hparams_set=hparams_set,
        hparams=hparams,
        target_space_id=settings.get("target_space_id", 0),
        vocab=str(vocabulary),
    )
    return folder / "imported"


def write_random_checkpoint(prefix, hparams_set, hparams, vocab_size, **settings):
    """Writes a checkpoint of tensor2tensor with random weights, and returns the model.

    Args:
        prefix: path of the checkpoint without `.index`.
        hparams_set: name of the hparams set.
        hparams: changes of the hparams set.
        vocab_size: number of ids.
        **settings: settings of `config_from_hparams`, such as `language_model=True`.
    """
    values = parse_hparams(hparams_set, hparams)
    config = config_from_hparams(values, vocab_size, **settings)
    is_language_model = settings.get("language_model", False)
    model = CausalLM(config=config) if is_language_model else Transformer(config)
    rng = np.random.default_rng(5)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * rng.normal(size=variable.shape).astype("float32"))
    write_checkpoint(model, str(prefix), values["symbol_modality_num_shards"])
    return model
