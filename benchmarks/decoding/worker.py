"""Translates with one system of the decoding benchmark in its own process.

Started by `benchmarks.decoding` with settings as JSON. A message is a list of batches of strings,
and the result has their translations. The packages of a system are imported only in its worker.
"""

import os

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

    def translate(texts):
        pieces = processor.encode(texts, out_type=str)
        results = translator.translate_batch(pieces, **settings["options"])
        return processor.decode([result.hypotheses[0] for result in results])

    return translate, translator


def start(settings):
    """Returns the function that answers messages."""
    loaders = {"saved_model": load_saved_model, "ctranslate2": load_ctranslate2}
    # Keep a reference to the model, because its signature does not keep it alive.
    translate, model = loaders[settings["kind"]](settings)
    return lambda batches, _=model: lambda: [text for each in batches for text in translate(each)]


if __name__ == "__main__":
    answer_all(start)
