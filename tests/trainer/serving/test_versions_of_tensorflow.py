"""Tests that other versions of TensorFlow run an export of this one. Run by `make test-serving`."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from signature_calls import as_tensors, assert_answer_equals, calls
from subprocesses import ROOT, environment

CLIENT = Path(__file__).with_name("client.py")
# The interpreters of environments with TensorFlow and TensorFlow Text.
PYTHONS = os.environ.get("SERVING_PYTHONS", "").split()
TEXT = [
    "The dog runs.",
    "",
    "house " * 100,
    "犬が走る 🎉",
    "\udcff raw \udc80",
    "On Sunday we stay.",
]


@pytest.mark.long
@pytest.mark.parametrize(
    "python",
    PYTHONS or [pytest.param("", marks=pytest.mark.skip(reason="run by make test-serving"))],
)
def test_export_runs_in_another_version(python, exported_dir, loaded):
    asked = [*calls(TEXT), ("serving_default", {"text": []})]
    done = subprocess.run(
        [python, CLIENT, exported_dir / "1"],
        env=environment(PYTHONPATH=f"{ROOT / 'tests/support'}:{ROOT}"),
        input=json.dumps(asked),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for (name, arguments), answer in zip(asked, result["answers"], strict=True):
        signature = loaded.signatures[name]
        tensors = as_tensors(arguments, signature.structured_input_signature[1])
        assert_answer_equals(answer, signature(**tensors), name)
    print(f"TensorFlow {result['tensorflow']}, {result['warmup_requests']} warm-up requests")
    assert result["warmup_requests"] in (None, 10)
