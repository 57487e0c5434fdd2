"""Tests of exported models: signatures, versions, options of `load`, and other clients."""

import functools
import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf
from signature_calls import as_tensors, assert_answer_equals, calls, meta_graph
from subprocesses import run_python

from trainer.serving import model_versions
from trainer.serving.translator import NO_OUTPUT_SCORE

# Translates a text without this project and packages that only training requires. Prints the names
# of ops that are missing before TensorFlow Text is imported, and the translation.
CLIENT = """
import importlib.abc, json, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("t2t_relpos", "trainer", "sentencepiece", "sacrebleu"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

path, text, *ops = sys.argv[1:]
missing = [name for name in ops if op_def_registry.get(name) is None]
import tensorflow_text

answer = tf.saved_model.load(path).signatures["serving_default"](text=tf.constant([text]))
print(json.dumps([missing, answer["translations"].numpy()[0].decode()]))
"""
TEXT_OPS = {
    "SentencepieceOp",
    "SentencepieceTokenizeOp",
    "SentencepieceDetokenizeOp",
    "SentencepieceIdToStringOp",
}


def operations(graph):
    nodes = [
        *graph.graph_def.node,
        *(node for f in graph.graph_def.library.function for node in f.node_def),
    ]
    functions = {f.signature.name for f in graph.graph_def.library.function}
    return {node.op for node in nodes} - functions


# The inputs and outputs of each signature as NAME:DTYPE/RANK. All dimensions are unknown.
SIGNATURES = {
    "serving_default": (
        "text:string/1",
        "complete:bool/1 scores:float32/1 translations:string/1 truncated:bool/1",
    ),
    "translate": (
        "alpha:float32/0 beam_size:int32/0 max_length:int32/0 num_results:int32/0 text:string/1",
        "complete:bool/2 scores:float32/2 translations:string/2 truncated:bool/1",
    ),
    "score": (
        "text:string/1 translation:string/1",
        "alignments:float32/3 lengths:int32/1 scores:float32/1 source_lengths:int32/1 "
        "source_tokens:string/2 token_scores:float32/2 tokens:string/2 truncated:bool/1",
    ),
    "tokenize": ("text:string/1", "lengths:int32/1 tokens:string/2"),
    "ids": ("text:string/1", "ids:int32/2 lengths:int32/1"),
    "detokenize": ("ids:int32/2", "text:string/1"),
}


def test_signatures_have_the_documented_inputs_and_outputs(exported_dir):
    signatures = meta_graph(exported_dir / "1").signature_def

    def described(tensors):
        assert all(dim.size == -1 for each in tensors.values() for dim in each.tensor_shape.dim)
        return " ".join(
            f"{name}:{tf.as_dtype(tensor.dtype).name}/{len(tensor.tensor_shape.dim)}"
            for name, tensor in sorted(tensors.items())
        )

    assert set(signatures) == {*SIGNATURES, "__saved_model_init_op"}
    for name, expected in SIGNATURES.items():
        assert (described(signatures[name].inputs), described(signatures[name].outputs)) == expected


def test_export_contains_no_objects_of_keras_and_no_operations_of_python_or_xla(exported_dir):
    graph = meta_graph(exported_dir / "1")
    identifiers = {
        node.user_object.identifier
        for node in graph.object_graph_def.nodes
        if node.WhichOneof("kind") == "user_object"
    }
    allowed = "_generic_user_object trackable_dict_wrapper trackable_list_wrapper signature_map"
    assert identifiers <= set(allowed.split())
    assert not [name for name in operations(graph) if "PyFunc" in name or "Xla" in name]
    # Such functions need XLA, which TensorFlow Serving links on demand only.
    assert not [f for f in graph.graph_def.library.function if f.attr["_XlaMustCompile"].b]


@pytest.mark.slow
def test_model_translates_without_this_project(exported_dir, exported, sentences):
    path = exported_dir / "1"
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = "-I", "-c", CLIENT, path, sentences[0], *sorted(operations(meta_graph(path)))
    done = run_python(*command, cwd=path, env=without_path)
    missing, translation = json.loads(done.stdout)
    assert set(missing) == TEXT_OPS
    assert "WARNING:" not in done.stderr.replace("WARNING: All log messages before absl", "")
    assert translation == exported(sentences[:1])[0].text.decode()


@pytest.mark.slow
def test_session_equals_the_loaded_model(exported_dir, loaded):
    # TensorFlow Serving also loads a model into a session, and feeds and fetches tensors by name.
    text = ["The dog runs.", "", "house " * 100, "犬が走る 🎉", "\udcff\udcfe raw bytes \udc80"]
    definitions = meta_graph(exported_dir / "1").signature_def

    def ask(session, name, arguments):
        inputs, outputs = definitions[name].inputs, definitions[name].outputs
        feeds = {inputs[key].name: value.numpy() for key, value in arguments.items()}
        return session.run({key: info.name for key, info in outputs.items()}, feeds)

    asked = [*calls(text), ("serving_default", {"text": []})]
    asked = [(name, as_tensors(arguments, definitions[name].inputs)) for name, arguments in asked]
    (translate,) = (arguments for name, arguments in asked if name == "translate")
    refused = translate | {"beam_size": tf.constant(0)}
    unknown_ids = {"ids": tf.constant([[-3, 2000, 5, 0, 1]])}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], str(exported_dir / "1"))
        answers = [ask(session, *call) for call in asked]
        message = r"beam_size from 1 to 32, the maximum of this export \(--max_beam_size of .*: 0."
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ask(session, "translate", refused)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Expected ids from 0 to"):
            ask(session, "detokenize", unknown_ids)
    for (name, arguments), answer in zip(asked, answers, strict=True):
        assert_answer_equals(answer, loaded.signatures[name](**arguments), name)


@pytest.fixture
def load(exported_dir, loaded, monkeypatch):
    """Returns `load(**options)`: `model_versions.load` of the exported model, read once."""
    monkeypatch.setattr(model_versions, "_load", lambda directory: loaded)
    return functools.partial(model_versions.load, exported_dir)


def test_load_passes_options_to_the_graph(load, loaded, sentences):
    options = {"beam_size": 3, "alpha": 1.5, "max_length": 7}
    lists = load(**options, nbest=2).n_best(sentences)
    expected = loaded.translate(text=tf.constant(sentences), num_results=2, **options)
    for best, texts, scores in zip(
        lists, expected["translations"].numpy(), expected["scores"].numpy(), strict=True
    ):
        # If only one translation ends within 7 ids, the second one is missing.
        filled = scores > NO_OUTPUT_SCORE
        assert [each.text for each in best] == texts[filled].tolist()
        np.testing.assert_allclose([each.score for each in best], scores[filled], atol=1e-5)
        assert (np.diff(scores) < 0).all()


@pytest.mark.parametrize("name, value", [("beam_size", 1), ("max_length", 3)])
def test_omitted_options_default_to_the_exported_ones(name, value, load, loaded, sentences):
    (best,) = zip(*load(**{name: value}).n_best(sentences))
    expected = loaded.translate(text=tf.constant(sentences), **(loaded.defaults() | {name: value}))
    assert [each.text for each in best] == expected["translations"].numpy()[:, 0].tolist()
    scores = [each.score for each in best]
    np.testing.assert_allclose(scores, expected["scores"][:, 0], atol=1e-4)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"Expected beam_size from 1 to 32, .* Received: 1000\.", {"beam_size": 1000}),
        (r"Expected --nbest to be at most the beam size, 2\.", {"nbest": 3, "beam_size": 2}),
        (r"Expected --nbest to be at most the beam size, 4\. Received: 5\. .*", {"nbest": 5}),
    ],
)
def test_options_above_the_limits_of_the_model_raise_single_lines(load, message, options):
    with pytest.raises(ValueError) as caught:
        load(**options).n_best([b"a"])
    assert re.match(message, str(caught.value)) and "\n" not in str(caught.value)


def make_versions(directory, *names):
    for name in names:
        (directory / name).mkdir(parents=True)
        (directory / name / "saved_model.pb").touch()


def test_latest_version_is_the_highest_number(tmp_path):
    make_versions(tmp_path, "2", "10", "9", ".writing-11-abc", "012", "0", "12a", "²")
    (tmp_path / "13").touch()
    assert model_versions.versions(tmp_path) == [2, 9, 10]
    assert model_versions.find(tmp_path) == tmp_path / "10"
    assert model_versions.find(tmp_path / "2") == tmp_path / "2"
    assert model_versions.versions(tmp_path / "absent") == []


def test_path_without_a_saved_model_raises(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow/3").mkdir(parents=True)
    (tmp_path / "file").touch()
    states = {"absent": "does not exist", "empty": "has none", "hollow": "has none"}
    for name, state in (states | {"file": "is a file"}).items():
        message = f"Expected the directory of a SavedModel, .* Received: .*/{name}, which {state}."
        with pytest.raises(ValueError, match=message):
            model_versions.load(tmp_path / name)


def test_other_saved_models_raise(tmp_path):
    make_versions(tmp_path, "1")
    (tmp_path / "1/saved_model.pb").write_bytes(b"no protocol buffer")
    tf.saved_model.save(tf.Module(), str(tmp_path / "2"))
    module = tf.Module()
    module.double = tf.function(lambda x: {"twice": 2.0 * x}, [tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(module, str(tmp_path / "3"), signatures=module.double)
    returns = "returns scores, translations, truncated. Received: "
    for version, message in {
        1: r"that TensorFlow can read. Received: .*/1 \(.*\). Write it again",
        2: f"whose serving_default {returns}.*/2, which returns nothing. Write",
        3: f"whose serving_default {returns}.*/3, which returns twice. Write",
    }.items():
        with pytest.raises(ValueError, match=f"Expected a SavedModel {message}"):
            model_versions.load(tmp_path / str(version))


def test_version_appears_when_it_is_complete(tmp_path):
    directory = tmp_path / "new/name"
    with model_versions.new_version(directory) as (aside, final):
        assert final == directory / "1" and not final.exists()
        assert aside.is_dir() and model_versions.versions(directory) == []
        (aside / "saved_model.pb").write_text("whole")
    assert (directory / "1/saved_model.pb").read_text() == "whole"
    assert sorted(entry.name for entry in directory.iterdir()) == ["1"]
    assert (directory / "1").stat().st_mode & 0o777 == 0o755
    for version, expected in ((7, "7"), (None, "8"), (3, "3"), (None, "9")):
        with model_versions.new_version(directory, version) as (_, final):
            assert final.name == expected


def test_full_disk_names_the_version_and_leaves_no_files(tmp_path):
    with pytest.raises(OSError, match="No space left on device: '.*/name/1'"):
        with model_versions.new_version(tmp_path / "name") as (aside, _):
            (aside / "saved_model.pb").touch()
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
    assert list((tmp_path / "name").iterdir()) == []


def test_existing_or_invalid_version_raises(tmp_path):
    message = "Expected the version to be a positive integer. Received: 0."
    with pytest.raises(ValueError, match=message), model_versions.new_version(tmp_path, 0):
        raise AssertionError("new_version did not raise")
    assert list(tmp_path.iterdir()) == []
    make_versions(tmp_path, "5")
    message = (
        "Expected a version that does not exist yet. Received: .*/5, which exists. Leave --version "
        "out"
    )
    with pytest.raises(ValueError, match=message), model_versions.new_version(tmp_path, 5):
        raise AssertionError("new_version did not raise")
    with pytest.raises(ValueError, match=message.replace("/5", "/6")):
        with model_versions.new_version(tmp_path) as (_, final):
            final.mkdir()  # as if another process had created this version
            (final / "theirs").touch()
    assert (tmp_path / "6/theirs").exists()
