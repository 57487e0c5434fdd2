"""Tokenizers: strings to ids and back, inside a TensorFlow graph."""

import hashlib
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path

import sentencepiece
import tensorflow as tf
import tensorflow_text

from trainer import atomic_files

PAD_ID = 0
EOS_ID = 1
UNK_ID = 2
MODEL_TYPES = ("bpe", "unigram")


class SentencePieceTokenizer:
    """A SentencePiece model as TensorFlow ops: pad 0, eos 1, unk 2, no bos.

    A graph that tokenizes holds the SentencePiece model in itself, so that it can be exported from
    any tf.Module, and be served with only `tensorflow_text`.

    Args:
        model: the serialised SentencePiece model, bytes.

    Raises:
        ValueError: if the bytes are no SentencePiece model, or one with other ids for pad, eos, unk
            and bos.

    Example:

    >>> lines = ["to be or not to be", "that is the question"]
    >>> tokenizer = SentencePieceTokenizer.train(lines, vocab_size=32)
    >>> ids = tokenizer.tokenize(tf.constant(["to be", "the question"]))
    >>> [row[-1] for row in ids.to_list()]
    [1, 1]
    >>> tokenizer.detokenize(ids).numpy().tolist()
    [b'to be', b'the question']
    """

    def __init__(self, model: bytes):
        self._model = model
        self._vocab_size = _checked_vocab_size(model)

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        vocab_size: int,
        model_type: str = "bpe",
        character_coverage: float = 0.99999,
        byte_fallback: bool = False,
        max_sentences: int = 5_000_000,
    ) -> "SentencePieceTokenizer":
        """Learns a vocabulary; the same sentences give the same one.

        Args:
            sentences: strings, of both languages for a joint vocabulary. Read once, as a stream.
            vocab_size: number of pieces, pad, eos and unk among them.
            model_type: "bpe" or "unigram".
            character_coverage: share of the text's characters that get a separate piece; the
                rarest become unk.
            byte_fallback: spell characters without a piece in bytes instead of unk; takes 256
                pieces.
            max_sentences: a random choice of so many if there are more, because training holds
                them in memory. The same sentences give the same choice.

        Raises:
            ValueError: for an unknown model_type, no sentence, or a vocabulary larger or smaller
                than the sentences allow.
        """
        if model_type not in MODEL_TYPES:
            raise ValueError(
                f"Expected model_type to be one of {', '.join(MODEL_TYPES)}. Received: "
                f"{model_type!r}."
            )
        sentences = iter(sentences)
        first = next((sentence for sentence in sentences if sentence.strip()), None)
        if first is None:
            raise ValueError(
                "Expected sentences to learn a vocabulary from. Received: only blank sentences. "
                "Give a file with text."
            )
        model = io.BytesIO()
        sentencepiece.set_random_generator_seed(1)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_chain(first, sentences),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=model_type,
                character_coverage=character_coverage,
                byte_fallback=byte_fallback,
                input_sentence_size=max_sentences,
                shuffle_input_sentence=True,
                pad_id=PAD_ID,
                eos_id=EOS_ID,
                unk_id=UNK_ID,
                bos_id=-1,
                # The number of threads decides the order of sums in unigram's training, whatever
                # the machine.
                num_threads=8,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise _clear_error(error, vocab_size) from error
        return cls(model.getvalue())

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self._vocab_size

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model: tokenizers with the same one give the same ids."""
        return hashlib.sha256(self._model).hexdigest()

    def tokenize(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Splits strings into ids.

        Args:
            strings: string `[B]`. Bytes that are not UTF-8 count as U+FFFD.

        Returns:
            int32 RaggedTensor `[B, (ids)]`; every row ends in EOS.
        """
        strings = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
        return self._op().tokenize(strings)

    def detokenize(self, ids: tf.RaggedTensor | tf.Tensor) -> tf.Tensor:
        """Joins ids into strings.

        Args:
            ids: int32 `[B, (ids)]`, ragged or padded with 0. Every row counts up to its first EOS;
                padding is left out.

        Returns:
            string `[B]`.

        Raises:
            ValueError: outside of a graph, for ids that the vocabulary does not have. In a graph
                they count as nothing.
        """
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(PAD_ID)
        ids = tf.cast(ids, tf.int32)
        if tf.executing_eagerly():
            self._check_range(ids)
        is_eos = tf.cast(ids == EOS_ID, tf.int32)
        is_text = (tf.cumsum(is_eos, axis=1) == 0) & (ids != PAD_ID) & self._are_known(ids)
        return self._op().detokenize(tf.ragged.boolean_mask(ids, is_text))

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """The name of every id, as SentencePiece's own tools show it.

        Args:
            ids: int32, of any shape.

        Returns:
            string, as `ids`; "" for padding and for ids that the vocabulary does not have.

        Example:

        >>> lines = ["to be or not to be", "that is the question"]
        >>> tokenizer = SentencePieceTokenizer.train(lines, vocab_size=32)
        >>> ids = tokenizer.tokenize(tf.constant(["to be"])).values
        >>> [piece.decode() for piece in tokenizer.pieces(ids).numpy()]
        ['▁to', '▁be', '</s>']
        """
        is_piece = self._are_known(ids) & (ids != PAD_ID)
        return tf.where(is_piece, self._op().id_to_string(tf.where(is_piece, ids, UNK_ID)), "")

    def save(self, path: str | os.PathLike):
        """Writes the SentencePiece model, as `from_file` and SentencePiece's own tools read it."""
        with atomic_files.whole_file(path) as aside:
            aside.write_bytes(self._model)

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> "SentencePieceTokenizer":
        """Reads a SentencePiece model.

        Raises:
            ValueError: if there is no such file; and as the class itself.
        """
        path = Path(path)
        if not path.is_file():
            raise ValueError(
                f"Expected a SentencePiece model at {path}. Received: no such file. Check the path."
            )
        try:
            return cls(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _op(self):
        # Made again for every call: tensorflow_text's resource belongs to the kernel that made it,
        # and tf.random.set_seed throws away all kernels that ran outside of graphs.
        return tensorflow_text.SentencepieceTokenizer(
            model=self._model, out_type=tf.int32, add_eos=True
        )

    def _are_known(self, ids):
        return (ids >= 0) & (ids < self.vocab_size)

    def _check_range(self, ids):
        wrong = tf.boolean_mask(ids, ~self._are_known(ids))
        if tf.size(wrong):
            raise ValueError(
                f"Expected ids from 0 to {self.vocab_size - 1}, the vocabulary's. Received: "
                f"{int(wrong[0])}. "
                "Use the tokenizer that the ids were made with."
            )


def _chain(first, others):
    yield first
    yield from others


def _checked_vocab_size(model):
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError(
            f"Expected a serialised SentencePiece model. Received: {len(model)} bytes that are "
            "none. "
            "Train one with SentencePieceTokenizer.train."
        ) from error
    ids = processor.pad_id(), processor.eos_id(), processor.unk_id(), processor.bos_id()
    if ids != (PAD_ID, EOS_ID, UNK_ID, -1):
        raise ValueError(
            f"Expected a SentencePiece model with pad {PAD_ID}, eos {EOS_ID}, unk {UNK_ID} and no "
            "bos (-1). "
            "Received: pad {}, eos {}, unk {}, bos {}. ".format(*ids)
            + "Train it with --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1."
        )
    return processor.get_piece_size()


def _clear_error(error, vocab_size):
    """SentencePiece's refusal in our words."""
    most = re.search(r"Vocabulary size too high .*<= (\d+)", str(error))
    if most:
        return ValueError(
            f"Expected a vocab_size of at most {most[1]}, which is all that these sentences give. "
            f"Received: {vocab_size}. "
            "Lower vocab_size, or train on more text."
        )
    least = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
    if least:
        return ValueError(
            f"Expected a vocab_size of at least {least[1]}, one for every character of these "
            f"sentences. Received: {vocab_size}. "
            "Give a larger vocab_size."
        )
    return ValueError(
        "Expected sentences and settings that SentencePiece can learn from. Received from it: "
        f"{error}."
    )
