"""Tokenizer for SentencePiece vocabularies, as TensorFlow ops."""

import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece
import tensorflow as tf
import tensorflow_text
from sentencepiece import sentencepiece_model_pb2

from .text_report import squeeze
from .tokenizer import EOS_ID, PAD_ID, UNK_ID, Tokenizer

NORMALIZATIONS = ("nmt_nfkc", "nfkc", "identity")
# Fraction of the text's characters that the vocabulary covers. Rarer characters become unk, or
# bytes with byte_fallback.
_CHARACTER_COVERAGE = 0.99999
# SentencePiece skips longer lines, unless it is given a larger limit, and fails for words of more
# than 65,535 characters.
_MAX_LINE_BYTES = 4192
# SentencePiece marks rare characters with it, and skips all lines that contain it.
_RESERVED = "\u2585"


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece tokenizer as TensorFlow ops, with pad 0, eos 1, unk 2 and no bos.

    An exported graph requires only `tensorflow_text`.

    Args:
        content: the serialized SentencePiece model, bytes.

    Raises:
        ValueError: if the bytes are not a SentencePiece model, or its ids of pad, eos, unk and bos
            differ.

    Example:

    >>> import tensorflow as tf
    >>> from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
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
    kind = "sentencepiece"
    file_kind = "a SentencePiece model"

    def __init__(self, content: bytes):
        super().__init__(content)
        self.names, self.byte_ids = _read_names(content)
        model = sentencepiece_model_pb2.ModelProto.FromString(content)
        self.normalization = model.normalizer_spec.name
        # In a SavedModel that Python loads, ops of all functions share a resource if they have the
        # same name, even if their vocabularies differ.
        self._op_name = f"vocabulary_{self.fingerprint[:8]}"
        self._normalizer = sentencepiece.SentencePieceNormalizer(
            model_proto=content,
            add_dummy_prefix=False,
            escape_whitespaces=False,
            remove_extra_whitespaces=False,
        )

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        vocab_size: int,
        max_sentences: int = 5_000_000,
        *,
        normalization: str = NORMALIZATIONS[0],
        byte_fallback: bool = False,
    ) -> "SentencePieceTokenizer":
        """Trains a BPE vocabulary. The same sentences give the same vocabulary.

        Args:
            sentences: iterable of str, read once. For a joint vocabulary it has sentences of both
                languages. The character U+2585 is read as a space, because SentencePiece reserves
                it.
            vocab_size: number of pieces, including pad, eos and unk.
            max_sentences: maximum number of sentences that training holds in memory. If there are
                more, a sample is drawn with a fixed seed.
            normalization: rule of SentencePiece that replaces characters: one of
                `NORMALIZATIONS`.
            byte_fallback: whether characters outside the vocabulary are split into bytes, for
                which the vocabulary has 256 pieces. Otherwise they are unknown.

        Raises:
            ValueError: if there is no sentence, or `vocab_size` is too large or too small for the
                sentences.
        """
        lines = _trainable_lines(sentences)
        first = next((line for line in lines if line.strip()), None)
        if first is None:
            raise ValueError(
                "Expected sentences to train a vocabulary on. Received: only blank sentences. Use "
                "a file with text."
            )
        model = io.BytesIO()
        sentencepiece.set_random_generator_seed(1)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=itertools.chain([first], lines),
                model_writer=model,
                vocab_size=vocab_size,
                model_type="bpe",
                character_coverage=_CHARACTER_COVERAGE,
                normalization_rule_name=normalization,
                byte_fallback=byte_fallback,
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
            raise _training_error(error, vocab_size, byte_fallback) from error
        return cls(model.getvalue())

    def tokenize(self, strings: tf.Tensor) -> tf.RaggedTensor:
        strings = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
        return self._op().tokenize(strings)

    def detokenize(self, ids: tf.RaggedTensor | tf.Tensor) -> tf.Tensor:
        return self._op().detokenize(tf.ragged.boolean_mask(*self._split_text(ids)))

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        is_piece = self._is_known(ids) & (ids != PAD_ID)
        return tf.where(is_piece, self._op().id_to_string(tf.where(is_piece, ids, UNK_ID)), "")

    def count_normalized(self, texts: Sequence[str]) -> int:
        normalize = self._normalizer.Normalize
        pairs = ((text, normalize(text)) for text in texts)
        return sum(
            text != other and squeeze(text.encode()) != squeeze(other.encode())
            for text, other in pairs
        )

    def _op(self):
        # Not cached: tensorflow_text's resource belongs to the kernel that created it, and
        # tf.random.set_seed deletes all kernels that ran eagerly.
        return tensorflow_text.SentencepieceTokenizer(
            model=self._content, out_type=tf.int32, add_eos=True, name=self._op_name
        )


def _trainable_lines(sentences) -> Iterator[str]:
    """Yields sentences in a form that SentencePiece does not skip.

    Long ones are split at spaces, which makes no difference: BPE counts the pairs inside words.
    """
    for sentence in sentences:
        sentence = sentence.replace(_RESERVED, " ")
        # A character has at most 4 bytes in UTF-8.
        most = _MAX_LINE_BYTES if sentence.isascii() else _MAX_LINE_BYTES // 4
        if len(sentence) <= most or len(sentence.encode()) <= _MAX_LINE_BYTES:
            yield sentence
            continue
        start = 0
        while start < len(sentence):
            end = start + most
            if end < len(sentence):
                space = sentence.rfind(" ", start + 1, end)
                end = end if space < 0 else space
            yield sentence[start:end]
            start = end


def _read_names(content):
    """Returns the names of all ids, and the ids that stand for a byte."""
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
    ids = range(processor.get_piece_size())
    byte_ids = [i for i in ids if processor.is_byte(i)]
    # Byte pieces are consecutive.
    names = [processor.id_to_piece(i) for i in ids]
    return names, range(byte_ids[0], byte_ids[-1] + 1) if byte_ids else range(0)


def _training_error(error, vocab_size, byte_fallback):
    """Converts an error of SentencePiece's training to a ValueError that names the setting."""
    most = re.search(r"Vocabulary size too high .*<= (\d+)", str(error))
    if most:
        return ValueError(
            f"Expected a vocab_size of at most {most[1]}, the maximum for these sentences. "
            f"Received: {vocab_size}. Lower vocab_size, or train on more text."
        )
    least = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
    if least:
        characters = "characters in these sentences"
        counted = f"256 bytes and the {characters}" if byte_fallback else characters
        return ValueError(
            f"Expected a vocab_size of at least {least[1]}, the number of {counted}. Received: "
            f"{vocab_size}. Raise vocab_size."
        )
    if "all_chars_count" in str(error) or "sentences_.empty()" in str(error):
        return ValueError(
            "Expected sentences to train a vocabulary on. Received: only characters that "
            "normalization removes. Use a file with text, or normalization='identity'."
        )
    return ValueError(
        f"SentencePiece could not train a vocabulary of {vocab_size} pieces: {error}."
    )
