"""A name for every id of a model directory's vocabulary, all different, which is what CTranslate2
needs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import sentencepiece

from t2t_relpos.t2t.subwords import SubwordVocabulary
from trainer.model_dir import ModelDirectory

PAD_ID = 0
EOS_ID = 1


class TokenNames(NamedTuple):
    """A name for every id, and those that CTranslate2 asks for.

    Attributes:
        names: by id, all different.
        pad: of id 0, with which decoding starts.
        eos: of id 1, which ends a sentence.
        unknown: whatever is for a token without an id.
    """

    names: list[str]
    pad: str
    eos: str
    unknown: str


def token_names(directory: ModelDirectory, vocab_size: int) -> TokenNames:
    """The names of a model directory's ids: SentencePiece's pieces, tensor2tensor's subtokens, or
    else the ids in decimal.

    Raises:
        ValueError: where the vocabulary is missing or not the one that the model was made with, or
            of another size.
    """
    kind = directory.tokenizer_kind
    if kind == "none":
        names = [str(i) for i in range(vocab_size)]
        return TokenNames(names, names[PAD_ID], names[EOS_ID], names[PAD_ID])
    # Checks that the file is the model's.
    directory.load_tokenizer()
    file = directory.vocabulary_file(kind)
    if kind == "subwords":
        names = distinct(SubwordVocabulary.from_bytes(file.read_bytes()).subtokens)
        # tensor2tensor spells out what it does not know; so nothing needs more than a token that
        # means nothing.
        unknown = PAD_ID
    else:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(file))
        names = distinct([pieces.id_to_piece(i) for i in range(pieces.get_piece_size())])
        unknown = pieces.unk_id()
    if len(names) != vocab_size:
        raise ValueError(
            f"Expected a vocabulary of the {vocab_size} ids that the model has. Received: {file}, "
            f"of {len(names)}. "
            "Restore the vocabulary that the model was trained with."
        )
    return TokenNames(names, names[PAD_ID], names[EOS_ID], names[unknown])


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with those that no text is split into named by their ids: CTranslate2 finds ids
    by names.

    tensor2tensor uses the last of equal subtokens, and has empty ones.

    Example:
        >>> distinct(["<pad>", "<EOS>", "a", "", "a"])
        ['<pad>', '<EOS>', '<id 2>', '<id 3>', 'a']
    """
    last = {name: i for i, name in enumerate(names) if name}
    return [name if last.get(name) == i else f"<id {i}>" for i, name in enumerate(names)]
