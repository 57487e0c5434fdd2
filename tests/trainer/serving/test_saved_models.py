import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from trainer.serving import saved_models

ROOT = Path(__file__).parents[3]
TEXT_OPS = {
    "SentencepieceOp",
    "SentencepieceTokenizeOp",
    "SentencepieceDetokenizeOp",
    "SentencepieceIdToStringOp",
}

# A client that can't import this project. It reports the ops that are not registered before
# TensorFlow Text is imported, and the results of all calls.
CLIENT = """
import importlib.abc, json, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("t2t_relpos", "trainer", "sentencepiece", "sacrebleu"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
task = json.load(sys.stdin)
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
missing = [name for name in task["ops"] if op_def_registry.get(name) is None]
import tensorflow_text
model = tf.saved_model.load(task["path"])
loaded = sorted(name for name in sys.modules if name.split(".")[0] in ("t2t_relpos", "trainer"))

def plain(tensor):
    values = tensor.numpy().tolist()
    return json.loads(json.dumps(values, default=bytes.decode))

answers = []
for name, arguments in task["calls"]:
    kinds = model.signatures[name].structured_input_signature[1]
    tensors = {key: tf.constant(value, kinds[key].dtype) for key, value in arguments.items()}
    answer = model.signatures[name](**tensors)
    answers.append({key: plain(value) for key, value in answer.items()})
json.dump({"missing": missing, "loaded": loaded, "answers": answers}, sys.stdout)
"""


# Imports TensorFlow Text, which registers the tokenizer's ops, and then runs saved_model_cli.
SAVED_MODEL_CLI = (
    "import tensorflow_text; from tensorflow.python.tools import saved_model_cli; "
    "saved_model_cli.main()"
)


def meta_graph(path):
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    return model.meta_graphs[0]


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


def calls(text):
    """Returns a call of each signature: its name and arguments."""
    return [
        ("serving_default", {"text": text}),
        (
            "translate",
            {"text": text, "beam_size": 5, "alpha": 0.25, "max_length": 23, "num_results": 3},
        ),
        ("score", {"text": text, "translation": text[::-1]}),
        ("tokenize", {"text": text}),
        ("ids", {"text": text}),
        ("detokenize", {"ids": [[5, 7, 11, 1, 5], [-3, 2000, 5, 0, 1]]}),
    ]


def assert_all_signatures_work_without_this_project(path, module, text, others):
    """Asserts that an export runs without this project and gives the results of `module`.

    The export may use TensorFlow's ops and those in `others`.
    """
    graph = meta_graph(path)
    asked = calls(text)
    assert {name for name, _ in asked} == set(module.signatures)
    task = {"path": str(path), "calls": asked, "ops": sorted(operations(graph))}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-I", "-c", CLIENT]
    settings = {
        "capture_output": True,
        "text": True,
        "cwd": path,
        "env": environment,
        "timeout": 300,
    }
    done = subprocess.run(command, input=json.dumps(task), **settings)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["missing"]) == others
    assert told["loaded"] == []
    for (name, arguments), answer in zip(asked, told["answers"], strict=True):
        specs = {spec.name: spec for spec in module.signatures[name].input_signature}
        expected = module.signatures[name](
            **{key: tf.constant(value, specs[key].dtype) for key, value in arguments.items()}
        )
        assert set(answer) == set(expected), name
        for key, value in expected.items():
            if value.dtype.is_floating:
                np.testing.assert_allclose(
                    answer[key], value, atol=1e-4, rtol=1e-4, err_msg=f"{name} {key}"
                )
            elif value.dtype == tf.string:
                assert (
                    np.char.encode(np.array(answer[key]), "utf-8").tolist()
                    == value.numpy().tolist()
                ), (name, key)
            else:
                assert answer[key] == value.numpy().tolist(), (name, key)


@pytest.mark.slow
def test_every_signature_works_without_this_project(exported_dir, make_module, sentences):
    graph = meta_graph(exported_dir / "1")
    assert not [name for name in operations(graph) if "PyFunc" in name or "Xla" in name]
    # Such functions need XLA, which TensorFlow Serving links on demand only.
    assert not [f for f in graph.graph_def.library.function if f.attr["_XlaMustCompile"].b]
    text = [*sentences[:5], "", "house " * 100]
    assert_all_signatures_work_without_this_project(
        exported_dir / "1", make_module(), text, TEXT_OPS
    )


@pytest.mark.slow
def test_saved_model_cli_translates_strings(exported_dir, exported, sentences, tmp_path):
    text = [sentences[0], "", sentences[1]]
    command = [
        sys.executable,
        "-c",
        SAVED_MODEL_CLI,
        "run",
        "--dir",
        str(exported_dir / "1"),
        "--tag_set",
        "serve",
    ]
    command += [
        "--signature_def",
        "serving_default",
        "--input_exprs",
        f"text={text!r}",
        "--outdir",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
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
