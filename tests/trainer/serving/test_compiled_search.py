"""Compares exports with and without `jit_compile`."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from trainer.export import export
from trainer.serving import search, warmup
from trainer.serving.translation_settings import TranslationSettings

SETTINGS = {"max_input_length": 21, "extra_length": 5, "beam_size": 3}
LOAD_AND_TRANSLATE = """
import sys
import tensorflow as tf
import tensorflow_text
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
sys.stdout.buffer.write(serve(text=tf.constant(sys.argv[2:]))["translations"].numpy()[0])
"""


@pytest.fixture
def searched_sizes(monkeypatch):
    """Returns the sizes of the searches that are traced for XLA."""
    sizes, search_compiled = [], search._search_compiled

    def record(transformer, settings, source, length_limit):
        sizes.append(tuple(source.shape))
        return search_compiled(transformer, settings, source, length_limit)

    monkeypatch.setattr(search, "_search_compiled", record)
    return sizes


@pytest.mark.parametrize("early_stopping", [False, True])
def test_compiled_search_equals_the_search_without_xla(
    make_module, sentences, searched_sizes, early_stopping
):
    settings = SETTINGS | {"early_stopping": early_stopping}
    plain, compiled = make_module(**settings), make_module(jit_compile=True, **settings)
    texts = ["", *sentences, " ".join(sentences)]
    # Blank sentences need no search. Five sentences are more than the largest compiled batch.
    for batch in (texts[:2], texts[1:3], texts[1:5], texts[-3:], texts[1:6]):
        answer, expected = compiled.serve(batch), plain.serve(batch)
        for name in ("translations", "truncated"):
            assert answer[name].numpy().tolist() == expected[name].numpy().tolist()
        np.testing.assert_allclose(answer["scores"], expected["scores"], atol=1e-5)
    assert set(searched_sizes) == {(batch, length) for batch in (1, 2, 4) for length in (16, 21)}


def test_compiled_lengths_end_with_the_maximum_input_length():
    assert search.compiled_lengths(256) == [16, 32, 64]
    assert search.compiled_lengths(40) == [16, 32, 40]
    assert search.compiled_lengths(5) == [5]


def test_warmup_requests_have_all_compiled_sizes(tokenizer):
    settings = TranslationSettings(max_input_length=40, jit_compile=True)
    found = set()
    for signature, inputs in warmup.warmup_requests(tokenizer, settings):
        if signature == "serving_default":
            ids = tokenizer.tokenize(inputs["text"]).to_tensor()
            found.add((len(ids), next((n for n in (16, 32, 40) if n >= ids.shape[1]), 40)))
    assert {(batch, length) for batch in (1, 2, 4) for length in (16, 32, 40)} <= found


@pytest.mark.slow
def test_exported_compiled_search_runs_with_tensorflow_only(make_module, sentences, tmp_path):
    module = make_module(jit_compile=True, **SETTINGS)
    version = export(module, tmp_path / "compiled")
    command = [sys.executable, "-c", LOAD_AND_TRANSLATE, str(version), sentences[0]]
    found = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path).stdout
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
