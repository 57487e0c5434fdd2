"""Compares the translations of CTranslate2 with those of this project, for each kind of search.

    python -m benchmarks.decoding.ctranslate2_agreement --model_dir=runs/mine --source=test.en \
        --target=test.de

Exports the model to CTranslate2 in float32 and int8. Prints the share of equal translations and the
BLEU of both. All sentences have the same maximum length, and a translation may be empty. Searches:

    greedy       greedy_search; beam_size=1
    beam         beam_search with alpha=0; length_penalty=0
    normalized   beam_search with --alpha; length_penalty=alpha * L / (5 + L), the most similar one,
                 where L is the mean length of this project's translations
    rescored     beam_search with --alpha; the best of CTranslate2's --patience * beam_size finished
                 hypotheses by this project's score

In each step this project considers the best 2k candidates for finished hypotheses, as tensor2tensor
does, and CTranslate2 the best k. --finish_among=k makes this project consider only k.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import ctranslate2
import numpy as np
import sentencepiece
import tensorflow as tf
from absl import app, flags

from benchmarks.common.flag_checks import check_no_arguments
from benchmarks.common.tables import print_cells, print_header
from benchmarks.decoding.finish_among_best import FinishAmongBestK
from t2t_relpos.decoding import beam_search, greedy_search
from trainer import export_ctranslate2, metrics
from trainer.data.text_files import read_text
from trainer.model_dir import ModelDirectory

FLAGS = flags.FLAGS
SEARCHES = ("greedy", "beam", "normalized", "rescored")
flags.DEFINE_string(
    "model_dir",
    None,
    "Directory of a trained model with a SentencePiece vocabulary.",
    required=True,
)
flags.DEFINE_string(
    "source", None, "Text to translate, one sentence per line; may be .gz.", required=True
)
flags.DEFINE_string("target", None, "Reference translation.", required=True)
flags.DEFINE_multi_enum("search", SEARCHES, SEARCHES, "Searches to compare.")
flags.DEFINE_integer("beam_size", 4, "Beam size, except for greedy.", lower_bound=1)
flags.DEFINE_float("alpha", 0.6, "Exponent of the length penalty.", lower_bound=0.0)
flags.DEFINE_integer(
    "patience", 4, "Finished hypotheses per beam in CTranslate2, for rescored.", lower_bound=1
)
flags.DEFINE_enum(
    "finish_among", "2k", ["k", "2k"], "Candidates of a step that may finish a hypothesis."
)
flags.DEFINE_integer("max_length", 100, "Maximum ids of a translation.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Sentences per batch.", lower_bound=1)

HEADER = ("search", "BLEU", "length_penalty")
HEADER += ("float32: same", "float32: BLEU", "int8: same", "int8: BLEU")


class ThisProject:
    """Translates with the model of a directory and caches the results.

    Args:
        directory: the model directory.
    """

    def __init__(self, directory):
        self.model = ModelDirectory.open(directory).load_model()
        self.results = {}

    def translate(self, sources: list[list[int]], search: str) -> list[list[int]]:
        """Returns the ids of each translation, including EOS."""
        alpha = FLAGS.alpha if search in ("normalized", "rescored") else 0.0
        key = search == "greedy", alpha
        if key not in self.results:
            self.results[key] = self._translate(sources, search == "greedy", alpha)
        return self.results[key]

    def _translate(self, sources, greedy, alpha):
        signature = [tf.TensorSpec([None, None], tf.int32)]
        search = tf.function(
            lambda ids: self._search(ids, greedy, alpha), input_signature=signature
        )
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        translations = [None] * len(sources)
        for start in range(0, len(order), FLAGS.batch_size):
            batch = order[start : start + FLAGS.batch_size]
            ids = tf.ragged.constant([sources[i] for i in batch], dtype=tf.int32).to_tensor()
            outputs, lengths = (tensor.numpy() for tensor in search(ids))
            for i, output, length in zip(batch, outputs, lengths):
                translations[i] = output[:length].tolist()
        return translations

    def _search(self, ids, greedy, alpha):
        step, state = self.model.step, self.model.encode(ids, FLAGS.max_length)
        sizes = tf.shape(ids)[0], FLAGS.max_length
        if greedy:
            result = greedy_search(step, state, *sizes)
        else:
            if FLAGS.finish_among == "k":
                limited = FinishAmongBestK(step, FLAGS.beam_size)
                step, state = limited.step, limited.start(state, self.model.config.vocab_size)
            result = beam_search(step, state, *sizes, beam_size=FLAGS.beam_size, alpha=alpha)
        return result.ids[:, 0], result.lengths[:, 0]


class CTranslate2:
    """Translates with an exported model.

    Args:
        directory: CTranslate2's model.
        processor: the SentencePieceProcessor.
    """

    def __init__(self, directory, processor):
        self.translator = ctranslate2.Translator(str(directory), device="cpu")
        self.processor = processor

    def translate(self, sources: list[list[int]], search: str, penalty: float) -> list[list[int]]:
        """Returns the ids of each translation, including EOS; `penalty` is the length_penalty."""
        options = {
            "max_decoding_length": FLAGS.max_length,
            "min_decoding_length": 0,
            "return_end_token": True,
            "return_scores": True,
            "beam_size": 1 if search == "greedy" else FLAGS.beam_size,
            "length_penalty": penalty,
        }
        if search == "rescored":
            options["patience"] = FLAGS.patience
            options["num_hypotheses"] = FLAGS.patience * FLAGS.beam_size
        tokens = [[self.processor.id_to_piece(i) for i in ids[:-1]] for ids in sources]
        results = self.translator.translate_batch(
            tokens, max_batch_size=FLAGS.batch_size, **options
        )
        choose = rescore if search == "rescored" else lambda result, _: result.hypotheses[0]
        return [self.processor.piece_to_id(choose(result, penalty)) for result in results]


def rescore(result, length_penalty):
    """Returns the hypothesis with the best score by tensor2tensor's length penalty."""
    lengths = np.array([len(hypothesis) for hypothesis in result.hypotheses])
    log_probs = np.array(result.scores) * lengths**length_penalty
    return result.hypotheses[np.argmax(log_probs / ((5 + lengths) / 6) ** FLAGS.alpha)]


def print_row(search, corpus, this_project, others, processor):
    """Prints a row of the table.

    Args:
        search: a name in SEARCHES.
        corpus: source ids and reference translations.
        this_project: a `ThisProject`.
        others: list of `CTranslate2`.
        processor: the SentencePieceProcessor.
    """
    sources, references = corpus
    ids = this_project.translate(sources, search)
    translations = processor.decode(ids)
    mean_length = np.mean([len(each) for each in ids])
    normalized = search in ("normalized", "rescored")
    penalty = FLAGS.alpha * mean_length / (5 + mean_length) if normalized else 0
    cells = [search, f"{metrics.sacrebleu(translations, references).value:.2f}", f"{penalty:.3f}"]
    for other in others:
        found = processor.decode(other.translate(sources, search, penalty))
        same = np.mean([a == b for a, b in zip(translations, found, strict=True)])
        cells += [f"{same:.1%}", f"{metrics.sacrebleu(found, references).value:.2f}"]
    print_cells(cells)


def main(argv):
    check_no_arguments(argv)
    tf.get_logger().setLevel("ERROR")
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(ModelDirectory.open(FLAGS.model_dir).vocabulary_file())
    )
    texts, references = zip(*read_text(FLAGS.source, FLAGS.target))
    corpus = processor.encode(list(texts), add_eos=True), list(references)
    this_project, others = ThisProject(FLAGS.model_dir), []
    with tempfile.TemporaryDirectory() as folder:
        for quantization in ("none", "int8"):
            export_ctranslate2.export(FLAGS.model_dir, Path(folder) / quantization, quantization)
            others.append(CTranslate2(Path(folder) / quantization, processor))
    print_header(HEADER)
    for search in FLAGS.search:
        print_row(search, corpus, this_project, others, processor)


if __name__ == "__main__":
    app.run(main)
