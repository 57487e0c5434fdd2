"""Tokenizer for SentencePiece vocabularies, as TensorFlow ops."""

import io
import itertools
import re
from collections.abc import Iterable

import sentencepiece
import tensorflow as tf
import tensorflow_text

from trainer.data.token_ids import EOS_ID, PAD_ID, UNK_ID
from trainer.data.tokenizer import Tokenizer

# Fraction of the text's characters that the vocabulary covers. Rarer characters become unk.
_CHARACTER_COVERAGE = 0.99999


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece tokenizer as TensorFlow ops, with pad 0, eos 1, unk 2 and no bos.

    An exported graph requires only `tensorflow_text`.

    Args:
        content: the serialized SentencePiece model, bytes.

    Raises:
        ValueError: if the bytes are not a SentencePiece model, or its ids of pad, eos, unk and bos
            differ.

    Example:

    >>> lines = ["to be or not to be", "that is the question"]
    >>> tokenizer = SentencePieceTokenizer.train(lines, vocab_size=32)
    >>> ids = tokenizer.tokenize(tf.constant(["to be", "the question"]))
    >>> [row[-1] for row in ids.to_list()]
    [1, 1]
    >>> tokenizer.detokenize(ids).numpy().tolist()
    [b'to be', b'the question']
    >>> [piece.decode() for piece in tokenizer.pieces(ids[0]).numpy()]
    ['▁to', '▁be', '</s>']
    """

    unk_id = UNK_ID
    file_kind = "a SentencePiece model"

    def __init__(self, content: bytes):
        super().__init__(content)
        self.names = _read_names(content)

    @classmethod
    def train(
        cls, sentences: Iterable[str], vocab_size: int, max_sentences: int = 5_000_000
    ) -> "SentencePieceTokenizer":
        """Trains a BPE vocabulary. The same sentences give the same vocabulary.

        Args:
            sentences: iterable of str, read once. For a joint vocabulary it has sentences of both
                languages.
            vocab_size: number of pieces, including pad, eos and unk.
            max_sentences: maximum number of sentences that training holds in memory. If there are
                more, a sample is drawn with a fixed seed.

        Raises:
            ValueError: if there is no sentence, or `vocab_size` is too large or too small for the
                sentences.
        """
        sentences = iter(sentences)
        first = next((sentence for sentence in sentences if sentence.strip()), None)
        if first is None:
            raise ValueError(
                "Expected sentences to train a vocabulary on. Received: only blank sentences. Use "
                "a file with text."
            )
        model = io.BytesIO()
        sentencepiece.set_random_generator_seed(1)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=itertools.chain([first], sentences),
                model_writer=model,
                vocab_size=vocab_size,
                model_type="bpe",
                character_coverage=_CHARACTER_COVERAGE,
                input_sentence_size=max_sentences,
                shuffle_input_sentence=True,
                pad_id=PAD_ID,
                eos_id=EOS_ID,
                unk_id=UNK_ID,
                bos_id=-1,
                # The result depends on the number of threads.
                num_threads=8,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise _training_error(error, vocab_size) from error
        return cls(model.getvalue())

    def tokenize(self, strings: tf.Tensor) -> tf.RaggedTensor:
        strings = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
        return self._op().tokenize(strings)

    def detokenize(self, ids: tf.RaggedTensor | tf.Tensor) -> tf.Tensor:
        return self._op().detokenize(tf.ragged.boolean_mask(*self._split_text(ids)))

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        is_piece = self._is_known(ids) & (ids != PAD_ID)
        return tf.where(is_piece, self._op().id_to_string(tf.where(is_piece, ids, UNK_ID)), "")

    def _op(self):
        # Not cached: tensorflow_text's resource belongs to the kernel that created it, and
        # tf.random.set_seed deletes all kernels that ran eagerly.
        return tensorflow_text.SentencepieceTokenizer(
            model=self._content, out_type=tf.int32, add_eos=True
        )


def _read_names(content):
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
    except RuntimeError as error:
        raise ValueError(
            f"Expected a serialized SentencePiece model. Received: {len(content)} bytes of another "
            "format. Train a model with SentencePieceTokenizer.train."
        ) from error
    ids = processor.pad_id(), processor.eos_id(), processor.unk_id(), processor.bos_id()
    if ids != (PAD_ID, EOS_ID, UNK_ID, -1):
        raise ValueError(
            f"Expected a SentencePiece model with pad {PAD_ID}, eos {EOS_ID}, unk {UNK_ID} and no "
            "bos (-1). Received: pad {}, eos {}, unk {}, bos {}. ".format(*ids)
            + "Train it with --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1."
        )
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def _training_error(error, vocab_size):
    """Converts an error of SentencePiece's training to a ValueError that names the setting."""
    most = re.search(r"Vocabulary size too high .*<= (\d+)", str(error))
    if most:
        return ValueError(
            f"Expected a vocab_size of at most {most[1]}, the maximum for these sentences. "
            f"Received: {vocab_size}. Lower vocab_size, or train on more text."
        )
    least = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
    if least:
        return ValueError(
            f"Expected a vocab_size of at least {least[1]}, the number of characters in these "
            f"sentences. Received: {vocab_size}. Raise vocab_size."
        )
    return ValueError(
        f"SentencePiece could not train a vocabulary of {vocab_size} pieces: {error}."
    )
