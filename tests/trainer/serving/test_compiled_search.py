"""Compares searches and exports with and without `jit_compile`."""

import gzip

import numpy as np
import pytest
import tensorflow as tf
from subprocesses import run_python

from t2t_relpos.models import TransformerConfig
from trainer.data.tokenizer import Tokenizers
from trainer.export import export
from trainer.serving import search
from trainer.serving.translation_module import TranslationModule, TranslationSettings

SETTINGS = {"max_input_length": 21, "extra_length": 5, "beam_size": 3}
LOAD_AND_TRANSLATE = """
import sys
import tensorflow as tf
import tensorflow_text
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
sys.stdout.buffer.write(serve(text=tf.constant(sys.argv[2:]))["translations"].numpy()[0])
"""


class RandomModel:
    """A model whose next id depends on the previous id and on the ids of the source."""

    def __init__(self, vocab_size):
        self.config = TransformerConfig(vocab_size=vocab_size)
        tables = np.random.default_rng(7).normal(size=[2, vocab_size, vocab_size])
        tables[0, :, 1] += 2.0  # so that most translations end
        self.by_previous, self.by_source = tf.constant(tables, tf.float32)

    def start_search(self, source, max_length, beam_size, growing=True):
        real = tf.cast(source != 0, tf.float32)
        rows = tf.gather(self.by_source, source)
        return {"source": tf.einsum("bsv,bs->bv", rows, real) / 3.0}, self.step

    def step(self, ids, state):
        return tf.gather(self.by_previous, ids) + state["source"], state


@pytest.fixture
def searched_sizes(monkeypatch):
    """Returns the sizes of the searches that are traced for XLA."""
    sizes, n_best = [], search.n_best

    def record(transformer, source, *limits, **settings):
        sizes.append(tuple(source.shape))
        return n_best(transformer, source, *limits, **settings)

    monkeypatch.setattr(search, "n_best", record)
    return sizes


@pytest.fixture
def random_module(tokenizer):
    """Returns `random_module(**settings)`: a `TranslationModule` of a `RandomModel`."""
    model, tokenizers = RandomModel(tokenizer.vocab_size), Tokenizers.shared(tokenizer)
    return lambda **settings: TranslationModule(model, tokenizers, TranslationSettings(**settings))


def assert_same(answer, expected):
    for name in ("translations", "truncated", "complete"):
        assert answer[name].numpy().tolist() == expected[name].numpy().tolist()
    np.testing.assert_allclose(answer["scores"], expected["scores"], atol=1e-5)


def test_compiled_search_equals_the_search_without_xla(
    random_module, sentences, searched_sizes, monkeypatch
):
    monkeypatch.setattr(search, "COMPILED_BATCH_SIZES", (1, 3))
    plain, compiled = random_module(**SETTINGS), random_module(jit_compile=True, **SETTINGS)
    texts = ["", *sentences, " ".join(sentences)]
    # Blank sentences need no search. Four sentences are more than the largest compiled batch.
    for batch in (texts[:2], texts[1:3], texts[-3:], texts[1:5]):
        assert_same(compiled.serve(batch), plain.serve(batch))
    assert set(searched_sizes) == {(batch, length) for batch in (1, 3) for length in (16, 21)}


def test_compiled_search_stops_early(random_module, sentences, monkeypatch):
    monkeypatch.setattr(search, "COMPILED_BATCH_SIZES", (11,))
    # A large exponent prefers long translations, which are not found if the search stops early.
    settings = SETTINGS | {"max_input_length": 9, "beam_size": 2, "alpha": 4.0}
    modules = [random_module(early_stopping=early, **settings) for early in (False, True)]
    compiled = random_module(early_stopping=True, jit_compile=True, **settings)
    complete, early = (module.serve(sentences) for module in modules)
    assert_same(compiled.serve(sentences), early)
    assert early["translations"].numpy().tolist() != complete["translations"].numpy().tolist()


def test_compiled_lengths_end_with_the_maximum_input_length():
    assert search.compiled_lengths(256) == [16, 32, 64]
    assert search.compiled_lengths(40) == [16, 32, 40]
    assert search.compiled_lengths(5) == [5]


@pytest.mark.long
def test_exported_compiled_search_runs_with_tensorflow_only(make_module, sentences, tmp_path):
    module = make_module(jit_compile=True, **SETTINGS)
    version = export(module, tmp_path / "compiled")
    command = "-c", LOAD_AND_TRANSLATE, version, sentences[0]
    found = run_python(*command, cwd=tmp_path, env=None, text=False).stdout
    plain = make_module(**SETTINGS)  # its functions have only weak references to it
    assert found == plain.serve(sentences[:1])["translations"].numpy()[0]


@pytest.mark.long
def test_compiled_search_translates_a_test_set_identically(make_module, real_text):
    settings = {"max_input_length": 64, "extra_length": 10}
    plain, compiled = make_module(**settings), make_module(jit_compile=True, **settings)
    with gzip.open(real_text("multi30k") / "test_2016_flickr.en.gz", "rt") as file:
        lines = file.read().splitlines()
    assert len(lines) == 1000
    different = []
    for start in range(0, len(lines), 4):
        batch = tf.constant(lines[start : start + 4])
        found, expected = (module.serve(batch)["translations"] for module in (compiled, plain))
        scores = [_scores(plain, batch, texts) for texts in (found, expected)]
        equal = (found == expected).numpy() | (abs(scores[0] - scores[1]) < 1e-4)
        different += [start + i for i in np.flatnonzero(~equal)]
    assert not different


def _scores(module, text, translation):
    """Returns the length-penalized scores of translations, computed without XLA."""
    answer = module.score(text, translation)
    return answer["scores"].numpy() / ((5 + answer["lengths"].numpy()) / 6) ** 0.6
