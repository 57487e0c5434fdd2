import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from signature_calls import as_tensors, assert_answer_equals, calls, meta_graph
from subprocesses import run_python

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


def ask(path, asked):
    """Returns the C library's outputs by name, or its error, for each (signature, arguments)."""
    signatures = meta_graph(path).signature_def
    task = {
        "library": str(LIBRARY),
        "kernels": sorted(map(str, KERNELS.glob("*.so"))),
        "path": str(path),
        "calls": [],
    }
    for name, arguments in asked:
        inputs = {}
        for key, value in arguments.items():
            info = signatures[name].inputs[key]
            flat = np.ravel(value).tolist()
            inputs[info.name] = (info.dtype, np.shape(value), flat)
        outputs = {info.name: key for key, info in signatures[name].outputs.items()}
        task["calls"].append({"inputs": inputs, "outputs": list(outputs)})
    done = run_python("-I", CLIENT, input=json.dumps(task), timeout=600)
    answers = []
    for (name, _), answer in zip(asked, json.loads(done.stdout), strict=True):
        by_tensor = {info.name: key for key, info in signatures[name].outputs.items()}
        if isinstance(answer, dict):
            answer = {
                by_tensor[tensor]: np.reshape(np.array(flat, object), shape)
                for tensor, (shape, flat) in answer.items()
            }
        answers.append(answer)
    return answers


@pytest.mark.long
@pytest.mark.skipif(
    not LIBRARY.exists(), reason="this build of TensorFlow has no libtensorflow_cc.so.2"
)
def test_c_library_equals_python(exported_dir, loaded):
    asked = [*calls(TEXT), ("serving_default", {"text": []})]
    (translate,) = (arguments for name, arguments in asked if name == "translate")
    refused = ("translate", translate | {"beam_size": 0})
    *answers, refusal = ask(exported_dir / "1", [*asked, refused])
    assert "Expected beam_size from 1 to 32, the maximum of this export. Received: 0." in refusal
    for (name, arguments), answer in zip(asked, answers, strict=True):
        signature = loaded.signatures[name]
        specs = signature.structured_input_signature[1]
        assert_answer_equals(answer, signature(**as_tensors(arguments, specs)), name)
