"""Unique names of a model's token ids, which CTranslate2 needs."""

from collections.abc import Sequence
from typing import NamedTuple

from trainer.data.token_ids import EOS_ID, PAD_ID
from trainer.model_dir import ModelDirectory


class TokenNames(NamedTuple):
    """A name for every id, and the names with a special meaning.

    Attributes:
        names: by id, all different.
        pad: of id 0, with which decoding starts.
        eos: of id 1, which ends a sentence.
        unknown: for tokens without an id.
    """

    names: list[str]
    pad: str
    eos: str
    unknown: str


def token_names(directory: ModelDirectory, vocab_size: int) -> TokenNames:
    """Returns the names of a model directory's ids: SentencePiece's pieces, tensor2tensor's
    subtokens, or ids in decimal if there is no vocabulary.

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
            f"Expected a vocabulary of the {vocab_size} ids that the model has. Received: "
            f"{directory.vocabulary_file(kind)}, of {len(names)}. Restore the vocabulary that the "
            "model was trained with."
        )
    return TokenNames(names, names[PAD_ID], names[EOS_ID], names[unk_id])


def distinct(names: Sequence[str]) -> list[str]:
    """Returns the names, with "<id N>" for empty names and all but the last of equal names.

    tensor2tensor's vocabularies can contain both, and never use those ids.

    Example:
        >>> distinct(["<pad>", "<EOS>", "a", "", "a"])
        ['<pad>', '<EOS>', '<id 2>', '<id 3>', 'a']
    """
    last = {name: i for i, name in enumerate(names) if name}
    return [name if last.get(name) == i else f"<id {i}>" for i, name in enumerate(names)]
