"""A translator in a process of its own, for benchmarks/decode.py, which starts it: not run by hand.

    python decode_worker.py '{"kind": "ours", "path": ..., "beam_size": 4, "threads": 1, ...}'

Reads lines of JSON. A list of batches of strings is translated; the answer holds the seconds that each batch took and the
translations, and the most memory held meanwhile. Imports what its kind needs alone, since each has an environment of its own.
"""

import json
import os
import sys
import time

from benchmarks.common import memory
from benchmarks.common.worker_protocol import answer_all, redirect_stdout, tensorflow_with_threads


def ours(settings):
    """Our SavedModel: strings in, strings out."""
    tf = tensorflow_with_threads(settings["threads"])
    import tensorflow_text  # noqa: F401  (registers operations)

    loaded = tf.saved_model.load(settings["path"])
    serve = loaded.signatures["serving_default"]

    def translate(texts):
        return [
            text.decode()
            for text in serve(text=tf.constant(texts))["translations"].numpy().tolist()
        ]

    return translate, loaded


def ctranslate2(settings):
    """A CTranslate2 model, with SentencePiece around it."""
    import ctranslate2
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(
        model_file=os.path.join(settings["path"], "vocab.model")
    )
    translator = ctranslate2.Translator(
        settings["path"], device="cpu", inter_threads=1, intra_threads=settings["threads"]
    )
    options = {"beam_size": settings["beam_size"], "max_decoding_length": settings["max_length"]}
    options["length_penalty"] = settings["length_penalty"]

    def translate(texts):
        results = translator.translate_batch(pieces.encode(texts, out_type=str), **options)
        return pieces.decode([result.hypotheses[0] for result in results])

    return translate, translator


def opennmt(settings):
    """A SavedModel of OpenNMT-tf, with its own tokenizer around it."""
    tf = tensorflow_with_threads(settings["threads"])
    import opennmt  # noqa: F401  (registers operations)
    import pyonmttok

    tokenizer = pyonmttok.Tokenizer(
        "none", sp_model_path=settings["vocabulary"], no_substitution=True
    )
    loaded = tf.saved_model.load(settings["path"])
    serve = loaded.signatures["serving_default"]

    def translate(texts):
        tokens = [tokenizer(text) for text in texts]
        longest = max(map(len, tokens))
        padded = tf.constant([row + [""] * (longest - len(row)) for row in tokens])
        answer = serve(tokens=padded, length=tf.constant([len(row) for row in tokens], tf.int32))
        found, lengths = answer["tokens"].numpy()[:, 0], answer["length"].numpy()[:, 0]
        return [
            tokenizer.detokenize([t.decode() for t in row[:n]]) for row, n in zip(found, lengths)
        ]

    return translate, loaded


def main(settings):
    answers = redirect_stdout()
    # Whatever the translator's module holds has to outlive it.
    translate, _owner = {"ours": ours, "ctranslate2": ctranslate2, "opennmt": opennmt}[
        settings["kind"]
    ](settings)

    def reply(batches):
        memory.reset_peak()
        seconds, translations = [], []
        for batch in batches:
            start = time.perf_counter()
            translations += translate(batch)
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "translations": translations, "megabytes": memory.peak()}

    answer_all(answers, reply)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
