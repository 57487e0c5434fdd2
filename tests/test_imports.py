"""Tests in a new process that names are imported when used, and that saved models load."""

import tarfile
from pathlib import Path

from subprocesses import run_python

REFERENCE = Path(__file__).parent / "reference"

PROGRAM = """
import sys
import t2t_relpos
assert "keras" not in sys.modules and "t2t_relpos.layers" not in sys.modules
assert set(t2t_relpos.__all__) <= set(dir(t2t_relpos))
assert t2t_relpos.attend is t2t_relpos.attention.attend
assert "t2t_relpos.layers" not in sys.modules
try:
    t2t_relpos.unknown
except AttributeError as error:
    assert str(error) == "module 't2t_relpos' has no attribute 'unknown'"
from t2t_relpos import *
assert CausalLM is t2t_relpos.models.CausalLM and PRESETS is t2t_relpos.models.PRESETS
assert set(t2t_relpos.__all__) <= set(globals())

# Saved models load after an import of `t2t_relpos.models`.
import keras
keras.saving.load_model(sys.argv[1])
# Then as if only Keras had been imported: `import t2t_relpos` imports the layers.
for name in [name for name in sys.modules if name.split(".")[0] == "t2t_relpos"]:
    del sys.modules[name]
keras.saving.get_custom_objects().clear()
try:
    keras.saving.load_model(sys.argv[1])
except TypeError as error:
    assert "Could not locate class" in str(error), error
else:
    raise AssertionError("the classes are still registered")
import t2t_relpos
keras.saving.load_model(sys.argv[1])
"""


def test_names_are_imported_when_used_and_saved_models_load(tmp_path):
    with tarfile.open(REFERENCE / "saved_models_0_3.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (file,) = tmp_path.rglob("causal_lm.keras")
    run_python("-c", PROGRAM, file)
