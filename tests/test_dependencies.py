"""Which part may import which: what docs/architecture.md says, checked on the source itself."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FRAMEWORKS = {"tensorflow", "tensorflow_text", "tensorflow_datasets", "jax", "torch"}
STANDARD = {
    *"abc argparse ast collections contextlib copy dataclasses difflib functools hashlib".split(),
    *"inspect io itertools json logging math numbers os pathlib re string struct tempfile".split(),
    *"contextvars time typing unicodedata warnings zlib".split(),
}
ENTRY_POINTS = (
    "train",
    "average",
    "evaluate",
    "export",
    "export_ctranslate2",
    "translate",
    "import_t2t",
    "visualize",
)
# Folder of the library -> folders of the library that it may import.
MAY_IMPORT = {
    "attention": {"attention"},
    "layers": {"attention", "layers"},
    "models": {"attention", "decoding", "layers", "models"},
    "decoding": {"decoding"},
    "t2t": {"models", "t2t"},
}


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


def imports(path):
    """Dotted names of everything that a file imports, at any depth."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def roots(path):
    return {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", modules("t2t_relpos"), ids=str)
def test_library_knows_no_framework_and_no_trainer(path):
    allowed = STANDARD | {"keras", "numpy", "t2t_relpos"}
    if path.stem.startswith(("_tensorflow", "_jax")) or path.parent.name == "tensorflow":
        allowed |= FRAMEWORKS
    assert roots(path) <= allowed


@pytest.mark.parametrize("path", modules("t2t_relpos"), ids=str)
def test_library_imports_point_one_way(path):
    parts = path.relative_to(ROOT / "t2t_relpos").parts
    if len(parts) == 1:
        return
    names = [name.split(".") for name in imports(path)]
    used = {name[1] for name in names if name[0] == "t2t_relpos" and len(name) > 1}
    assert used <= MAY_IMPORT[parts[0]] | {"_backend", "_jax_compile", "_tensorflow_compile"}


@pytest.mark.parametrize("path", modules("trainer"), ids=str)
def test_no_module_imports_an_entry_point(path):
    assert not imports(path) & {f"trainer.{name}" for name in ENTRY_POINTS}


def test_translating_needs_tensorflow_and_tensorflow_text_alone():
    assert (ROOT / "trainer/__init__.py").read_text() == ""
    seen, waiting = set(), [ROOT / "trainer/translate.py"]
    while waiting:
        path = waiting.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        used = roots(path)
        assert not used & {"keras", "t2t_relpos", "sacrebleu", "sentencepiece"}, path
        for name in imports(path):
            if name.startswith("trainer."):
                waiting.append(ROOT / (name.replace(".", "/") + ".py"))
                waiting.append(ROOT / name.replace(".", "/") / "__init__.py")


def test_synthetic_corpus_needs_the_standard_library_alone():
    for path in (ROOT / "trainer/data").rglob("synthetic*"):
        for file in [path] if path.is_file() else path.glob("*.py"):
            if file.suffix == ".py":
                assert roots(file) <= STANDARD | {"random", "trainer", "enum"}, file
