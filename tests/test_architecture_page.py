"""Tests that docs has the current dispatch table, and that docs/dev/architecture.md names files."""

import re
from pathlib import Path

from t2t_relpos.attention.explanation import table_as_markdown

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "dev" / "architecture.md").read_text()
DISPATCH_PAGE = (ROOT / "docs" / "how_it_works" / "dispatch.md").read_text()


def test_dispatch_page_contains_the_dispatch_table():
    assert table_as_markdown() in DISPATCH_PAGE


def test_architecture_page_names_existing_files():
    rows = re.findall(r"^\|([^|]+)\|([^|]+)\|$", PAGE.split("## To change X")[1], re.MULTILINE)[2:]
    assert len(rows) >= 20
    for change, files in rows:
        folder = None
        for name in re.findall(r"`([^`]+\.py)`", files):
            path = ROOT / name if name.split("/")[0] in ("t2t_relpos", "trainer") else folder / name
            assert path.is_file(), (change, name)
            folder = path.parent
