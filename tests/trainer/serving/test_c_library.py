import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2

CLIENT = Path(__file__).parent / "c_client.py"
LIBRARY = Path(tf.__file__).parent / "libtensorflow_cc.so.2"
KERNELS = Path(tensorflow_text.__file__).parent / "python/ops"
TEXT = [
    "The dog runs.",
    "",
    "house " * 100,
    "犬が走る 🎉",
    "\udcff\udcfe raw bytes \udc80",
    "On Sunday the woman arrives.",
]


def ask(path, calls):
    """Returns the C library's outputs by name, or its error, for each (signature, arguments)."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    signatures = model.meta_graphs[0].signature_def
    task = {
        "library": str(LIBRARY),
        "kernels": sorted(map(str, KERNELS.glob("*.so"))),
        "path": str(path),
        "calls": [],
    }
    for name, arguments in calls:
        inputs = {}
        for key, value in arguments.items():
            info = signatures[name].inputs[key]
            flat = np.ravel(value).tolist()
            inputs[info.name] = (info.dtype, np.shape(value), flat)
        outputs = {info.name: key for key, info in signatures[name].outputs.items()}
        task["calls"].append({"inputs": inputs, "outputs": list(outputs)})
    done = subprocess.run(
        [sys.executable, "-I", str(CLIENT)],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = []
    for (name, _), answer in zip(calls, json.loads(done.stdout), strict=True):
        by_tensor = {info.name: key for key, info in signatures[name].outputs.items()}
        if isinstance(answer, dict):
            answer = {
                by_tensor[tensor]: np.reshape(np.array(flat, object), shape)
                for tensor, (shape, flat) in answer.items()
            }
        answers.append(answer)
    return answers


@pytest.mark.slow
@pytest.mark.skipif(
    not LIBRARY.exists(), reason="this build of TensorFlow has no libtensorflow_cc.so.2"
)
def test_c_library_equals_python(exported_dir, loaded):
    options = {"beam_size": 5, "alpha": 0.25, "max_length": 23, "num_results": 3}
    calls = [
        ("serving_default", {"text": TEXT}),
        ("translate", {"text": TEXT} | options),
        ("score", {"text": TEXT, "translation": TEXT[::-1]}),
        ("tokenize", {"text": TEXT}),
        ("ids", {"text": TEXT}),
        ("detokenize", {"ids": [[5, 7, 11, 1, 5], [-3, 2000, 5, 0, 1]]}),
        ("serving_default", {"text": []}),
        ("translate", {"text": TEXT} | options | {"beam_size": 0}),
    ]
    *answers, refusal = ask(exported_dir / "1", calls)
    assert "Expected beam_size from 1 to 32, the maximum of this export. Received: 0." in refusal
    for (name, arguments), answer in zip(calls, answers):
        signature = loaded.signatures[name]
        expected = signature(
            **{key: _tensor(value, signature, key) for key, value in arguments.items()}
        )
        assert set(answer) == set(expected)
        for key, value in expected.items():
            assert answer[key].shape == value.shape, (name, key)
            if value.dtype == tf.float32:
                np.testing.assert_allclose(
                    answer[key].astype("float32"),
                    value,
                    atol=1e-4,
                    rtol=1e-4,
                    err_msg=f"{name} {key}",
                )
            elif value.dtype == tf.string:
                texts = [text.encode("utf-8", "surrogateescape") for text in answer[key].ravel()]
                assert texts == value.numpy().ravel().tolist(), (name, key)
            else:
                assert answer[key].tolist() == value.numpy().tolist(), (name, key)


def _tensor(value, signature, key):
    kind = signature.structured_input_signature[1][key].dtype
    if kind == tf.string:
        value = [text.encode("utf-8", "surrogateescape") for text in value]
    return tf.constant(value, kind)
