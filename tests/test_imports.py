"""Tests in new processes that names are imported when used, and that saved models load."""

import tarfile
from pathlib import Path

import pytest
from subprocesses import run_python

VERSIONS = "0_2", "0_3"
REFERENCE = Path(__file__).parent / "reference"

LAZY = """
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
"""


def test_names_are_imported_when_they_are_used():
    run_python("-c", LAZY)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns the names of recorded .keras files of both versions."""
    path = tmp_path_factory.mktemp("saved")
    for version in VERSIONS:
        with tarfile.open(REFERENCE / f"saved_models_{version}.tar.xz") as archive:
            archive.extractall(path / version, filter="data")
    names = "layers.keras", "causal_lm.keras"
    return [str(next((path / version).rglob(name))) for version in VERSIONS for name in names]


@pytest.mark.parametrize(
    "imports",
    [
        "import keras, t2t_relpos",
        pytest.param("import t2t_relpos, keras, t2t_relpos.models", marks=pytest.mark.slow),
        pytest.param("import t2t_relpos.models, keras", marks=pytest.mark.slow),
    ],
)
def test_saved_models_load(imports, files):
    code = f"{imports}, sys; [keras.saving.load_model(file) for file in sys.argv[1:]]"
    run_python("-c", code, *files)
