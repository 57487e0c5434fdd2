"""Tests that the pages of docs/ match the code.

API pages, the dispatch table, names of files, notebooks, versions and presets.
"""

import importlib
import re
from pathlib import Path

import keras
import pytest

import t2t_relpos

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def programs_of_the_site(monkeypatch):
    for folder in (DOCS, DOCS / "site_build"):
        monkeypatch.syspath_prepend(folder)


@pytest.fixture
def public_names(programs_of_the_site):
    return importlib.import_module("public_names")


INTEGRATIONS = "integrations.torch", "integrations.transformers"
PACKAGES = "layers", "models", "attention", "decoding", "t2t", *INTEGRATIONS


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_api_page(public_names, package):
    if package == "integrations.torch" and keras.backend.backend() != "torch":
        pytest.skip("requires the backend PyTorch")
    module = importlib.import_module(f"t2t_relpos.{package}")
    assert list(public_names.api_pages()[package]) == module.__all__
    for name in module.__all__:
        path, _, last = public_names.identifiers()[name].rpartition(".")
        assert getattr(importlib.import_module(path), last) is getattr(module, name)


def test_every_name_of_the_package_is_documented_in_a_subpackage(public_names):
    assert public_names.exported_names() == t2t_relpos.__all__
    assert set(t2t_relpos.__all__) <= set(public_names.identifiers())
    for statement in public_names.import_statements().values():
        if keras.backend.backend() == "torch" or "integrations" not in statement:
            exec(statement, {})


def test_dispatch_page_contains_its_tables():
    module = importlib.import_module("dispatch_table")
    page = (DOCS / "how_it_works" / "dispatch.md").read_text()
    assert module.table_as_markdown() in page
    assert len(module.REQUESTS) == 12 and module.requests_as_markdown() in page


def test_architecture_page_names_all_modules_and_existing_files():
    page = (DOCS / "dev" / "architecture.md").read_text()
    modules = [path for name in ("t2t_relpos", "trainer") for path in (ROOT / name).rglob("*.py")]
    # In the table, a file name without a folder is in the folder of the name before it.
    missing = [path for path in modules if not re.search(rf"[`/]{path.name}`", page)]
    assert {path.name for path in missing} <= {"__init__.py"}
    rows = re.findall(r"^\|([^|]+)\|([^|]+)\|$", page.split("## To change X")[1], re.MULTILINE)[2:]
    assert len(rows) >= 20
    for change, files in rows:
        folder = None
        for name in re.findall(r"`([^`]+\.py)`", files):
            is_full = name.split("/")[0] in ("t2t_relpos", "trainer", "tests")
            path = (ROOT if is_full else folder) / name
            assert path.is_file(), (change, name)
            folder = path.parent


def test_notebook_of_a_page():
    notebooks = importlib.import_module("notebooks")
    page = "# Title\n\nA [link](page.md).\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
    page += "```sh\nls\n```\n\n<!-- not run: slow -->\n```sh\nsleep 9\n```\n"
    cells = notebooks.make_notebook(page).cells
    assert [(cell.cell_type, cell.source) for cell in cells] == [
        ("markdown", "# Title\n\nA link."),
        ("code", "%cd ../.."),
        ("code", "print(1)"),
        ("code", "%%bash\nls"),
        ("markdown", "```sh\nsleep 9\n```"),
    ]


def test_citation_changelog_and_readme_have_the_version():
    version = t2t_relpos.__version__
    assert f"\nVersion {version}, " in (ROOT / "README.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(version)} ", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_table_of_presets_has_their_values():
    page = (DOCS / "guides/train_a_translator.md").read_text()
    table = page.split("| Preset | Layers | Width |")[1].split("\n\n")[0]
    found = {}
    for row in table.splitlines()[2:]:
        names, layers, widths = (
            re.findall(r"[\w,]*\w", column) for column in row.replace("`", "").split("|")[1:4]
        )
        names = [name for part in names for name in part.split(",") if name]
        numbers = [
            [int(x.replace(",", "")) for x in column] * (len(names) if len(column) == 1 else 1)
            for column in (layers, widths)
        ]
        found |= dict(zip(names, zip(*numbers, strict=True), strict=True))
    presets = {
        name: (preset["num_encoder_layers"], preset["hidden_dim"])
        for name, preset in t2t_relpos.PRESETS.items()
    }
    assert found == presets
