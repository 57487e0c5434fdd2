import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from signature_calls import as_tensors, assert_answer_equals, calls, meta_graph
from subprocesses import run_python

from trainer.serving import saved_models

CLIENT = Path(__file__).parent / "python_client.py"
TEXT_OPS = {
    "SentencepieceOp",
    "SentencepieceTokenizeOp",
    "SentencepieceDetokenizeOp",
    "SentencepieceIdToStringOp",
}

# Imports TensorFlow Text, which registers the tokenizer's ops, and then runs saved_model_cli.
SAVED_MODEL_CLI = (
    "import tensorflow_text; from tensorflow.python.tools import saved_model_cli; "
    "saved_model_cli.main()"
)


def operations(graph):
    nodes = [
        *graph.graph_def.node,
        *(node for f in graph.graph_def.library.function for node in f.node_def),
    ]
    functions = {f.signature.name for f in graph.graph_def.library.function}
    return {node.op for node in nodes} - functions


def test_signatures_have_the_documented_inputs_and_outputs(exported_dir):
    signatures = meta_graph(exported_dir / "1").signature_def

    def described(tensors):
        return {
            name: (tf.as_dtype(t.dtype).name, [d.size for d in t.tensor_shape.dim])
            for name, t in tensors.items()
        }

    text = {"text": ("string", [-1])}
    lengths = {"lengths": ("int32", [-1])}
    expected = {
        "serving_default": (
            text,
            {
                "translations": ("string", [-1]),
                "scores": ("float32", [-1]),
                "truncated": ("bool", [-1]),
            },
        ),
        "translate": (
            text
            | {name: ("int32", []) for name in ("beam_size", "max_length", "num_results")}
            | {"alpha": ("float32", [])},
            {
                "translations": ("string", [-1, -1]),
                "scores": ("float32", [-1, -1]),
                "truncated": ("bool", [-1]),
            },
        ),
        "score": (
            text | {"translation": ("string", [-1])},
            lengths
            | {
                "scores": ("float32", [-1]),
                "token_scores": ("float32", [-1, -1]),
                "tokens": ("string", [-1, -1]),
                "source_tokens": ("string", [-1, -1]),
                "source_lengths": ("int32", [-1]),
                "alignments": ("float32", [-1, -1, -1]),
                "truncated": ("bool", [-1]),
            },
        ),
        "tokenize": (text, lengths | {"tokens": ("string", [-1, -1])}),
        "ids": (text, lengths | {"ids": ("int32", [-1, -1])}),
        "detokenize": ({"ids": ("int32", [-1, -1])}, {"text": ("string", [-1])}),
    }
    assert set(signatures) == {*expected, "__saved_model_init_op"}
    for name, (inputs, outputs) in expected.items():
        assert described(signatures[name].inputs) == inputs, name
        assert described(signatures[name].outputs) == outputs, name


def test_no_keras_object_is_saved(exported_dir):
    nodes = meta_graph(exported_dir / "1").object_graph_def.nodes
    identifiers = {
        node.user_object.identifier for node in nodes if node.WhichOneof("kind") == "user_object"
    }
    assert identifiers <= {
        "_generic_user_object",
        "trackable_dict_wrapper",
        "trackable_list_wrapper",
        "signature_map",
    }


@pytest.mark.slow
def test_every_signature_works_without_this_project(exported_dir, make_module, sentences):
    path, module = exported_dir / "1", make_module()
    graph = meta_graph(path)
    assert not [name for name in operations(graph) if "PyFunc" in name or "Xla" in name]
    # Such functions need XLA, which TensorFlow Serving links on demand only.
    assert not [f for f in graph.graph_def.library.function if f.attr["_XlaMustCompile"].b]
    asked = calls([*sentences[:5], "", "house " * 100])
    assert {name for name, _ in asked} == set(module.signatures)
    task = {"path": str(path), "calls": asked, "ops": sorted(operations(graph))}
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"input": json.dumps(task), "cwd": path, "env": without_path, "timeout": 300}
    told = json.loads(run_python("-I", CLIENT, **options).stdout)
    assert set(told["missing"]) == TEXT_OPS
    assert told["loaded"] == []
    for (name, arguments), answer in zip(asked, told["answers"], strict=True):
        specs = {spec.name: spec for spec in module.signatures[name].input_signature}
        expected = module.signatures[name](**as_tensors(arguments, specs))
        assert_answer_equals(answer, expected, name)


@pytest.mark.slow
def test_saved_model_cli_translates_strings(exported_dir, exported, sentences, tmp_path):
    text = [sentences[0], "", sentences[1]]
    flags = ["--dir", exported_dir / "1", "--tag_set", "serve", "--outdir", tmp_path]
    flags += ["--signature_def", "serving_default", "--input_exprs", f"text={text!r}"]
    run_python("-c", SAVED_MODEL_CLI, "run", *flags, timeout=300, cwd=tmp_path)
    answers = {
        name: np.load(tmp_path / f"{name}.npy", allow_pickle=True) for name in saved_models.OUTPUTS
    }
    expected = exported(text)
    assert answers["translations"].tolist() == [answer.text for answer in expected]
    assert answers["truncated"].tolist() == [False] * 3
    np.testing.assert_allclose(answers["scores"], [answer.score for answer in expected], atol=1e-4)


def make_versions(directory, *names):
    for name in names:
        (directory / name).mkdir(parents=True)
        (directory / name / "saved_model.pb").touch()


def test_latest_version_is_the_highest_number(tmp_path):
    make_versions(tmp_path, "2", "10", "9", ".writing-11-abc", "012", "0", "12a", "²")
    (tmp_path / "13").touch()
    assert saved_models.versions(tmp_path) == [2, 9, 10]
    assert saved_models.find(tmp_path) == tmp_path / "10"
    assert saved_models.find(tmp_path / "2") == tmp_path / "2"
    assert saved_models.versions(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("absent", "does not exist"),
        ("empty", "has none"),
        ("hollow", "has none"),
        ("file", "is a file"),
    ],
)
def test_path_without_a_saved_model_raises(tmp_path, name, state):
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow/3").mkdir(parents=True)
    (tmp_path / "file").touch()
    message = (
        f"Expected the directory of a SavedModel, .* Received: {re.escape(str(tmp_path / name))}, "
        f"which {state}. Write"
    )
    with pytest.raises(ValueError, match=message):
        saved_models.load(tmp_path / name)


def test_corrupt_saved_model_raises(tmp_path):
    make_versions(tmp_path, "1")
    (tmp_path / "1/saved_model.pb").write_bytes(b"no protocol buffer")
    with pytest.raises(
        ValueError,
        match=(
            r"Expected a SavedModel that TensorFlow can read. Received: .*/1 \(.*\). Write it "
            r"again"
        ),
    ):
        saved_models.load(tmp_path)


def test_saved_model_of_another_function_raises(tmp_path):
    class Doubler(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def double(self, x):
            return {"twice": 2.0 * x}

    module = Doubler()
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.double)
    with pytest.raises(
        ValueError,
        match="returns scores, translations, truncated. Received: .*/1, which returns twice. Write",
    ):
        saved_models.load(tmp_path)
    tf.saved_model.save(tf.Module(), str(tmp_path / "2"))
    with pytest.raises(ValueError, match="Received: .*/2, which returns nothing. Write"):
        saved_models.load(tmp_path)


def test_version_appears_when_it_is_complete(tmp_path):
    directory = tmp_path / "new/name"
    with saved_models.new_version(directory) as (aside, final):
        assert final == directory / "1" and not final.exists()
        assert aside.parent == directory and saved_models.versions(directory) == []
        (aside / "saved_model.pb").write_text("whole")
    assert (directory / "1/saved_model.pb").read_text() == "whole"
    assert sorted(entry.name for entry in directory.iterdir()) == ["1"]
    assert (directory / "1").stat().st_mode & 0o777 == 0o755


def test_new_version_is_the_given_or_the_next_number(tmp_path):
    for version, expected in ((None, "1"), (7, "7"), (None, "8"), (3, "3"), (None, "9")):
        with saved_models.new_version(tmp_path, version) as (_, final):
            assert final.name == expected


def test_failed_export_leaves_no_files(tmp_path):
    with (
        pytest.raises(RuntimeError, match="halfway"),
        saved_models.new_version(tmp_path) as (aside, _),
    ):
        (aside / "saved_model.pb").touch()
        raise RuntimeError("halfway")
    assert list(tmp_path.iterdir()) == []


def test_existing_version_is_never_overwritten(tmp_path):
    make_versions(tmp_path, "5")
    message = (
        "Expected a version that does not exist yet. Received: .*/5, which exists. Leave --version "
        "out"
    )
    with pytest.raises(ValueError, match=message), saved_models.new_version(tmp_path, 5):
        raise AssertionError("new_version did not raise")
    with pytest.raises(ValueError, match=message.replace("/5", "/6")):
        with saved_models.new_version(tmp_path) as (_, final):
            final.mkdir()  # as if another process had created this version
            (final / "theirs").touch()
    assert (tmp_path / "6/theirs").exists()


@pytest.mark.parametrize("version", [0, -1])
def test_version_below_1_raises(tmp_path, version):
    with pytest.raises(
        ValueError, match=f"Expected the version to be a positive integer. Received: {version}."
    ):
        with saved_models.new_version(tmp_path, version):
            pass


def test_unwritable_export_folder_raises(tmp_path):
    (tmp_path / "file").touch()
    message = (
        r"Expected an export folder that can be written. Received: .*/file/name \(Not a "
        r"directory\). Choose another one with"
    )
    with pytest.raises(ValueError, match=message), saved_models.new_version(tmp_path / "file/name"):
        pass


def test_full_disk_raises_and_leaves_no_files(tmp_path):
    message = "Expected an export folder that can be written. Received: .*No space left on device"
    with pytest.raises(ValueError, match=message):
        with saved_models.new_version(tmp_path / "name"):
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
    assert not list((tmp_path / "name").iterdir())


def test_loading_logs_no_warning(exported_dir, caplog):
    tf.saved_model.load(str(exported_dir / "1"))
    assert [record.getMessage() for record in caplog.records] == []
