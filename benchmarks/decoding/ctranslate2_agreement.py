"""Whether CTranslate2 translates a text as this project does: share of sentences alike, and BLEU, for every search.

    python benchmarks/same_translations.py --model_dir=runs/mine --source=test.en --target=test.de

Exports the model for CTranslate2 in float32 and int8 to a folder that is removed again, and compares with the model's own search in
this process. Both have the same limit for all sentences, and an end of sentence may come first. Searches:

    greedy       greedy_search; beam_size=1
    beam         beam_search with alpha=0; beam_size=4, length_penalty=0: nothing is normalized
    normalized   beam_search with --alpha; length_penalty=alpha * L / (5 + L), L being the mean length of our translations, the nearest
                 that CTranslate2 has
    rescored     beam_search with --alpha; of CTranslate2's finished hypotheses, --patience times beam_size of them, the best by our
                 formula

Of the 2k candidates of a step ours, as tensor2tensor's, finishes all that end, and CTranslate2 those among the best k. With --ends=k
ours finishes no others either.
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

from benchmarks.common.tables import print_cells, print_header
from t2t_relpos.decoding import beam_search, greedy_search
from trainer import metrics
from trainer.data.text_files import read_text
from trainer.data.tokenizers import EOS_ID, PAD_ID
from trainer.model_dir import ModelDirectory
from trainer.serving import ctranslate2_model

FLAGS = flags.FLAGS
SEARCHES = ("greedy", "beam", "normalized", "rescored")
flags.DEFINE_string(
    "model_dir",
    None,
    "Directory of a trained model with a SentencePiece vocabulary.",
    required=True,
)
flags.DEFINE_string(
    "source", None, "Text to translate, one sentence a line; may be .gz.", required=True
)
flags.DEFINE_string("target", None, "Its translation.", required=True)
flags.DEFINE_multi_enum("search", SEARCHES, SEARCHES, "Searches.")
flags.DEFINE_integer("beam_size", 4, "Of all but greedy.", lower_bound=1)
flags.DEFINE_float("alpha", 0.6, "Exponent of our length penalty.", lower_bound=0.0)
flags.DEFINE_integer("patience", 4, "Of the search that is rescored.", lower_bound=1)
flags.DEFINE_enum(
    "ends", "2k", ["k", "2k"], "Among how many candidates of a step our search looks for ends."
)
flags.DEFINE_integer("max_length", 100, "Most ids of a translation.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Sentences.", lower_bound=1)


def penalty(length, alpha):
    """What our log-probabilities are divided by."""
    return ((5 + length) / 6) ** alpha


class EndsAmongBest:
    """A step function that lets an output end only where that is among the best k candidates of all beams.

    The probability of other ends goes to padding, which is never chosen, so that no other candidate's changes.
    """

    def __init__(self, step, beam_size):
        self.inner, self.beam_size = step, beam_size

    def start(self, state, vocab_size):
        """The state that the steps take, `[B, ...]`: the model's, each beam's log-probability, and those of its next ids."""
        rows = tf.shape(state["position"])[0]
        return state | {"log_prob": tf.zeros([rows]), "next": tf.zeros([rows, vocab_size])}

    def step(self, ids, state):
        model_state = {
            name: value for name, value in state.items() if name not in ("log_prob", "next")
        }
        log_prob = state["log_prob"] + tf.gather(state["next"], ids, batch_dims=1)
        # At first all beams but one are copies.
        is_copy = (ids == PAD_ID) & (tf.range(tf.size(ids)) % self.beam_size > 0)
        log_prob = tf.where(is_copy, -1e7, log_prob)
        logits, model_state = self.inner(ids, model_state)
        following = tf.nn.log_softmax(logits)
        totals = tf.where(
            tf.range(following.shape[1]) == PAD_ID, -1e9, following + log_prob[:, None]
        )
        best = tf.math.top_k(
            tf.reshape(totals, [-1, self.beam_size * following.shape[1]]), self.beam_size
        ).values[:, -1]
        may_end = totals[:, EOS_ID] >= tf.repeat(best, self.beam_size)
        moved = tf.reduce_logsumexp(tf.gather(following, [PAD_ID, EOS_ID], axis=1), axis=1)
        pad = tf.where(may_end, following[:, PAD_ID], moved)
        end = tf.where(may_end, following[:, EOS_ID], -1e9)
        scores = tf.concat([pad[:, None], end[:, None], following[:, EOS_ID + 1 :]], axis=1)
        return scores, model_state | {"log_prob": log_prob, "next": scores}


class Ours:
    """The model of a directory, with this project's searches."""

    def __init__(self, directory):
        self.model = ModelDirectory.open(directory).load_model()
        self.found = {}

    def __call__(self, sources, search):
        """Lists of source ids, EOS included -> a list of ids, EOS included, for each."""
        alpha = FLAGS.alpha if search in ("normalized", "rescored") else 0.0
        if (search == "greedy", alpha) not in self.found:
            self.found[search == "greedy", alpha] = self.search(sources, search == "greedy", alpha)
        return self.found[search == "greedy", alpha]

    def search(self, sources, greedy, alpha):
        signature = [tf.TensorSpec([None, None], tf.int32)]
        function = tf.function(lambda ids: self.find(ids, greedy, alpha), input_signature=signature)
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        found = [None] * len(sources)
        for start in range(0, len(order), FLAGS.batch_size):
            rows = order[start : start + FLAGS.batch_size]
            ids = tf.ragged.constant([sources[i] for i in rows], dtype=tf.int32).to_tensor()
            result, lengths = (part.numpy() for part in function(ids))
            for i, row, length in zip(rows, result, lengths):
                found[i] = row[:length].tolist()
        return found

    def find(self, ids, greedy, alpha):
        step, state = self.model.step, self.model.encode(ids, FLAGS.max_length)
        if FLAGS.ends == "k" and not greedy:
            ends = EndsAmongBest(step, FLAGS.beam_size)
            step, state = ends.step, ends.start(state, self.model.config.vocab_size)
        sizes = tf.shape(ids)[0], FLAGS.max_length
        if greedy:
            result = greedy_search(step, state, *sizes)
        else:
            result = beam_search(step, state, *sizes, beam_size=FLAGS.beam_size, alpha=alpha)
        return result.ids[:, 0], result.lengths[:, 0]


class Peer:
    """The model in CTranslate2."""

    def __init__(self, directory, pieces):
        self.translator = ctranslate2.Translator(str(directory), device="cpu")
        self.pieces = pieces

    def __call__(self, sources, search, length):
        """Lists of source ids -> a list of ids for each; `length` is the mean length of translations."""
        options = {
            "max_decoding_length": FLAGS.max_length,
            "min_decoding_length": 0,
            "return_end_token": True,
            "return_scores": True,
        }
        options |= {"beam_size": 1 if search == "greedy" else FLAGS.beam_size, "length_penalty": 0}
        if search in ("normalized", "rescored"):
            options["length_penalty"] = FLAGS.alpha * length / (5 + length)
        if search == "rescored":
            options |= {
                "patience": FLAGS.patience,
                "num_hypotheses": FLAGS.patience * FLAGS.beam_size,
            }
        tokens = [[self.pieces.id_to_piece(i) for i in ids[:-1]] for ids in sources]
        results = self.translator.translate_batch(
            tokens, max_batch_size=FLAGS.batch_size, **options
        )
        return [
            self.pieces.piece_to_id(self.best(result, search, options["length_penalty"]))
            for result in results
        ]

    def best(self, result, search, length_penalty):
        if search != "rescored":
            return result.hypotheses[0]
        lengths = np.array([len(hypothesis) for hypothesis in result.hypotheses])
        log_probs = np.array(result.scores) * lengths**length_penalty
        return result.hypotheses[np.argmax(log_probs / penalty(lengths, FLAGS.alpha))]


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    tf.get_logger().setLevel("ERROR")
    pieces = sentencepiece.SentencePieceProcessor(
        model_file=str(ModelDirectory.open(FLAGS.model_dir).vocabulary_file())
    )
    texts, references = zip(*read_text(FLAGS.source, FLAGS.target))
    sources = pieces.encode(list(texts), add_eos=True)
    ours = Ours(FLAGS.model_dir)
    peers = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, quantization in (("float32", "none"), ("int8", "int8")):
            ctranslate2_model.write(FLAGS.model_dir, Path(folder) / kind, quantization)
            peers[kind] = Peer(Path(folder) / kind, pieces)
    columns = "search", "BLEU", "length_penalty", "float32: same", "BLEU", "int8: same", "BLEU"
    print_header(columns)
    for search in FLAGS.search:
        print_row(search, sources, list(references), ours, peers, pieces)


def print_row(search, sources, references, ours, peers, pieces):
    """A line of the table."""
    found = ours(sources, search)
    length = np.mean([len(ids) for ids in found])
    strings = pieces.decode(found)
    cells = [search, f"{metrics.sacrebleu(strings, references).value:.2f}"]
    cells.append(
        f"{FLAGS.alpha * length / (5 + length):.3f}"
        if search in ("normalized", "rescored")
        else "0"
    )
    for peer in peers.values():
        others = pieces.decode(peer(sources, search, length))
        share = np.mean([one == other for one, other in zip(strings, others)])
        cells += [f"{100 * share:.1f} %", f"{metrics.sacrebleu(others, references).value:.2f}"]
    print_cells(cells)


if __name__ == "__main__":
    app.run(main)
