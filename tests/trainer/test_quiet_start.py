"""Tests that programs hide TensorFlow's start-up messages, unless start-up fails."""

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def stderr_of(*command, returncode):
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    result = subprocess.run(
        [sys.executable, *command],
        env=environment | {"PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
    )
    assert result.returncode == returncode, result.stderr
    return result.stderr


@pytest.mark.parametrize("program", ["export", "evaluate", "average"])
def test_errors_are_one_line_on_stderr(program, tmp_path):
    arguments = {
        "export": ["--model_dir", str(tmp_path)],
        "evaluate": ["--model_dir", str(tmp_path), f"--source={__file__}", f"--target={__file__}"],
        "average": ["--model_dir", str(tmp_path), "--last=2", f"--output_dir={tmp_path / 'x'}"],
    }
    text = stderr_of("-m", f"trainer.{program}", *arguments[program], returncode=1)
    assert text.startswith(f"trainer.{program}: Expected a model directory"), text
    assert text.count("\n") == 1


def test_messages_of_a_failed_start_are_printed():
    program = (
        "import os, sys\n"
        "from trainer import quiet_start\n"
        "with quiet_start._buffered_stderr():\n"
        "    os.write(2, b'a message of the runtime\\n')\n"
        "    raise ImportError('broken')\n"
    )
    text = stderr_of("-c", program, returncode=1)
    assert "a message of the runtime" in text and "ImportError: broken" in text


def test_messages_after_the_start_are_printed():
    program = (
        "import os, sys\n"
        "from trainer import quiet_start\n"
        "with quiet_start._buffered_stderr():\n"
        "    os.write(2, b'hidden\\n')\n"
        "os.write(2, b'shown\\n')\n"
    )
    assert stderr_of("-c", program, returncode=0) == "shown\n"


def test_errors_of_onednn_are_hidden_at_level_2(tmp_path):
    (tmp_path / "tensorflow.py").write_text("class config:\n    list_physical_devices = id\n")
    program = (
        "import os, sys\n"
        "from trainer.quiet_start import import_tensorflow\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "for level in '12':\n"
        "    os.environ['TF_CPP_MIN_LOG_LEVEL'] = level\n"
        "    sys.modules.pop('tensorflow', None)\n"
        "    import_tensorflow()\n"
        "    print(os.environ['TF_CPP_MIN_LOG_LEVEL'], file=sys.stderr)\n"
    )
    assert stderr_of("-c", program, returncode=0) == "1\n3\n"


def test_warnings_are_plain_lines():
    program = (
        "import sys\n"
        "from absl import app, logging\n"
        "from trainer.quiet_start import import_tensorflow\n"
        "sys.modules['tensorflow'] = None\n"
        "def main(argv):\n"
        "    import_tensorflow()\n"
        "    logging.warning('Ignoring the corrupt checkpoint %s', 'x')\n"
        "app.run(main)\n"
    )
    assert stderr_of("-c", program, returncode=0) == "WARNING: Ignoring the corrupt checkpoint x\n"
