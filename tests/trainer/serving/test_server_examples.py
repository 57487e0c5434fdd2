"""Tests of examples/serving: requests of all signatures, and the load test with batches."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
from signature_calls import as_tensors
from subprocesses import ROOT

from examples.serving import load_test
from t2t_relpos.models import CausalLM, TransformerConfig
from trainer.serving.generation_settings import GenerationSettings
from trainer.serving.language_module import LanguageModule

FOLDER = ROOT / "examples/serving"
BATCHING = (FOLDER / "batching.config").read_text()


def bodies(kind):
    """Returns the bodies of the requests in a folder by the name of the file."""
    files = (FOLDER / kind).glob("*.json")
    return {file.stem: json.loads(file.read_text()) for file in files}


def test_a_request_of_each_signature_is_answered(loaded):
    requests = bodies("translation")
    assert {*requests} == {*loaded.signatures}
    for name, body in requests.items():
        assert body.keys() == {"signature_name", "inputs"} and body["signature_name"] == name
        signature = loaded.signatures[name]
        specs = signature.structured_input_signature[1]
        assert body["inputs"].keys() == specs.keys()
        for key, value in body["inputs"].items():
            assert (
                np.asarray(value).dtype.kind
                == {"string": "U", "int32": "i", "float32": "f"}[specs[key].dtype.name]
            )
        answer = signature(**as_tensors(body["inputs"], specs))
        assert {value.shape[0] for value in answer.values()} == {2}


@pytest.mark.usefixtures("eager_functions")
def test_a_request_of_each_signature_of_a_language_model_is_answered(make_module):
    tokenizer = make_module().tokenizers.source
    sizes = {"num_decoder_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
    config = TransformerConfig(vocab_size=tokenizer.vocab_size, **sizes)
    settings = GenerationSettings(max_length=12)
    module = LanguageModule(CausalLM(config=config), tokenizer, settings)
    requests = bodies("language_model")
    assert {*requests} == {*module.signatures}
    for name, body in requests.items():
        assert body["signature_name"] == name
        specs = module.signatures[name].input_signature
        specs = {spec.name: spec for spec in specs}
        assert body["inputs"].keys() == specs.keys()
        answer = module.signatures[name](**as_tensors(body["inputs"], specs))
        assert {value.shape[0] for value in answer.values()} == {2}


@pytest.fixture
def upper():
    """Returns a signature that stands for `serving_default`."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def upper(text):
        lengths = tf.strings.length(text)
        return {"translations": tf.strings.upper(text), "scores": tf.cast(lengths, tf.float32)}

    return upper.get_concrete_function()


def test_load_test_counts_answers_and_errors(upper, sentences):
    requests = [sentences[:2], sentences[2:3]]
    found = load_test.load_test(upper, requests, seconds=0.3, threads=8)
    count = len(found["latencies"])
    assert count >= 8 and found["errors"] == []
    assert 1.4 * count <= found["sentences"] <= 1.6 * count
    assert found["cpu"] > 0 and found["seconds"] >= 0.3

    def fail(text):
        raise tf.errors.UnavailableError(None, None, "The queue is full.\nMore.")

    lines = load_test.describe(load_test.load_test(fail, requests, seconds=0.01, threads=1))
    assert lines[0].startswith("requests     0 in 0.") and lines[-1] == "  The queue is full."


def test_batched_requests_have_equal_answers_up_to_the_largest_request(upper, sentences):
    batched = load_test.batched(upper, BATCHING)
    text = tf.constant((sentences * 24)[:256])
    answer, expected = batched(text=text), upper(text=text)
    assert answer["translations"].numpy().tolist() == expected["translations"].numpy().tolist()
    np.testing.assert_array_equal(answer["scores"], expected["scores"])
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        batched(text=tf.fill([257], "A dog runs."))
    assert re.search("size 257 is larger than maximum input batch size 256", raised.value.message)
