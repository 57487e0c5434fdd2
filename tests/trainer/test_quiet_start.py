"""Tests that programs hide TensorFlow's start-up messages, unless start-up fails."""

import pytest
from subprocesses import environment, run_python


def stderr_of(*arguments, returncode):
    variables = environment()
    del variables["TF_CPP_MIN_LOG_LEVEL"]
    return run_python(*arguments, returncode=returncode, env=variables).stderr


@pytest.mark.parametrize(
    ("program", "directory_flag", "expected"),
    [
        ("export", "model_dir", "a model directory"),
        ("evaluate", "model_dir", "a model directory"),
        ("average", "model_dir", "a model directory"),
        ("translate", "saved_model", "the directory of a SavedModel"),
    ],
)
def test_errors_are_one_line_on_stderr(program, directory_flag, expected, tmp_path):
    others = {
        "evaluate": [f"--source={__file__}", f"--target={__file__}"],
        "average": ["--last=2", f"--output_dir={tmp_path / 'x'}"],
        "translate": [f"--input={__file__}"],
    }.get(program, [])
    flags = f"--{directory_flag}={tmp_path}", *others
    text = stderr_of("-m", f"trainer.{program}", *flags, returncode=1)
    assert text.startswith(f"trainer.{program}: Expected {expected}"), text
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
