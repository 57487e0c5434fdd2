"""Translates with one system of the decoding benchmark in its own process.

Started by `benchmarks.decoding` with settings as JSON. A message is a list of batches of strings;
the answer has the "seconds" of all, the "translations", and the peak memory in "megabytes".
The packages of a system are imported only in its worker, because OpenNMT-tf has its own
environment.
"""

import os
import time

from benchmarks import memory
from benchmarks.workers import answer_all, tensorflow_with_threads


def load_saved_model(settings):
    """Returns (a function that translates strings, an object to keep alive while it is used)."""
    tf = tensorflow_with_threads(settings["threads"])
    import tensorflow_text  # noqa: F401  (registers ops)

    loaded = tf.saved_model.load(settings["path"])
    serve = loaded.signatures["serving_default"]

    def translate(texts):
        translations = serve(text=tf.constant(texts))["translations"]
        return [text.decode() for text in translations.numpy().tolist()]

    return translate, loaded


def load_ctranslate2(settings):
    """Returns (a function that translates strings, an object to keep alive while it is used)."""
    import ctranslate2
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(
        model_file=os.path.join(settings["path"], "vocab.model")
    )
    translator = ctranslate2.Translator(
        settings["path"], device="cpu", inter_threads=1, intra_threads=settings["threads"]
    )
    options = {"beam_size": settings["beam_size"], "max_decoding_length": settings["max_length"]}
    options["length_penalty"] = settings["length_penalty"]

    def translate(texts):
        results = translator.translate_batch(processor.encode(texts, out_type=str), **options)
        return processor.decode([result.hypotheses[0] for result in results])

    return translate, translator


def load_opennmt(settings):
    """Returns (a function that translates strings, an object to keep alive while it is used)."""
    tf = tensorflow_with_threads(settings["threads"])
    import opennmt  # noqa: F401  (registers ops)
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
        outputs, lengths = answer["tokens"].numpy()[:, 0], answer["length"].numpy()[:, 0]
        return [
            tokenizer.detokenize([token.decode() for token in row[:length]])
            for row, length in zip(outputs, lengths)
        ]

    return translate, loaded


LOADERS = {
    "saved_model": load_saved_model,
    "ctranslate2": load_ctranslate2,
    "opennmt": load_opennmt,
}


def make_reply(settings):
    """Returns the function that answers messages."""
    # Keep a reference to the model, because its signature does not keep it alive.
    translate, _model = LOADERS[settings["kind"]](settings)

    def reply(batches):
        memory.reset_peak()
        start = time.perf_counter()
        translations = [text for batch in batches for text in translate(batch)]
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "translations": translations, "megabytes": memory.peak()}

    return reply


if __name__ == "__main__":
    answer_all(make_reply)
