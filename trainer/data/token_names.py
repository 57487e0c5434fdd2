"""Unique names of a model's token ids, as CTranslate2 requires."""

from collections.abc import Sequence

from trainer.data.token_ids import PAD_ID
from trainer.model_dir import ModelDirectory


def token_names(directory: ModelDirectory, vocab_size: int) -> tuple[list[str], int]:
    """Returns unique names of a model's token ids, and the id of unknown tokens.

    Names are SentencePiece's pieces, tensor2tensor's subtokens, or decimal numbers if there is no
    vocabulary.

    Raises:
        ValueError: if the vocabulary is missing, has changed, or has another size.
    """
    kind = directory.tokenizer_kind
    if kind == "none":
        names, unk_id = list(map(str, range(vocab_size))), PAD_ID
    else:
        tokenizer = directory.load_tokenizer()
        names, unk_id = distinct(tokenizer.names), tokenizer.unk_id
    if len(names) != vocab_size:
        raise ValueError(
            f"Expected a vocabulary of {vocab_size} ids, the vocabulary size of the model. "
            f"Received: {directory.vocabulary_file(kind)} with {len(names)} ids. Restore the "
            "vocabulary that the model was trained with."
        )
    return names, unk_id


def distinct(names: Sequence[str]) -> list[str]:
    """Replaces empty names, and all but the last of several equal names, with "<id N>".

    tensor2tensor's vocabularies may contain both. Their ids are never used.

    Example:
        >>> distinct(["<pad>", "<EOS>", "a", "", "a"])
        ['<pad>', '<EOS>', '<id 2>', '<id 3>', 'a']
    """
    last = {name: i for i, name in enumerate(names) if name}
    return [name if last.get(name) == i else f"<id {i}>" for i, name in enumerate(names)]
