"""Writes two guides as notebooks: python docs/notebooks.py [FOLDER]

FOLDER (default: build/notebooks) gets layers.ipynb and translation.ipynb, without outputs. Text
becomes Markdown cells, and `python` and `sh` blocks become code cells, except for blocks that the
page marks with `<!-- not run: REASON -->`. `text` blocks, the expected outputs, are left out.
"""

import os
import re
import sys
from pathlib import Path

import nbformat
from nbformat import v4

DOCS = Path(__file__).parent
NOTEBOOKS = {
    "layers": DOCS / "guides" / "relative_attention.md",
    "translation": DOCS / "guides" / "train_a_translator.md",
}
BLOCK = re.compile(
    r"(?P<not_run>^<!-- not run:.*?-->\n)?^```(?P<language>python|sh|text)\n(?P<code>.*?)^```$\n?",
    re.DOTALL | re.MULTILINE,
)
COMMENT = re.compile(r"^<!--(?! not run:).*?-->\n", re.DOTALL | re.MULTILINE)
PAGE_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)")
IMAGE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n", re.MULTILINE)


def make_notebook(page: str, checkout: str = "../..") -> nbformat.NotebookNode:
    """Returns a notebook with the text and the code of a page.

    Args:
        page: text of the page.
        checkout: path of the checkout from the folder of the notebook. Code runs there.
    """
    # Links and images are relative to the page.
    page = PAGE_LINK.sub(r"\1", IMAGE.sub("", COMMENT.sub("", page)))
    cells, end = [], 0
    for match in BLOCK.finditer(page):
        cells += text_cells(page[end : match.start()])
        if match["not_run"]:
            cells += text_cells(match[0].removeprefix(match["not_run"]))
        else:
            cells += code_cells(match["language"], match["code"])
        end = match.end()
    cells += text_cells(page[end:])
    cells.insert(1, v4.new_code_cell(f"%cd {checkout}"))
    for number, cell in enumerate(cells):
        # nbformat draws random ids; with these, the same page gives the same file.
        cell["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def text_cells(text: str) -> list[nbformat.NotebookNode]:
    """Returns a Markdown cell, or no cell for white space."""
    return [v4.new_markdown_cell(text.strip())] if text.strip() else []


def code_cells(language: str, code: str) -> list[nbformat.NotebookNode]:
    """Returns the code cell of a block, or no cell for an expected output."""
    if language == "text":
        return []
    code = code.rstrip("\n")
    return [v4.new_code_cell(f"%%bash\n{code}" if language == "sh" else code)]


def main(folder: str = "build/notebooks"):
    """Writes all notebooks to a folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, page in NOTEBOOKS.items():
        notebook = make_notebook(page.read_text(), os.path.relpath(DOCS.parent, folder))
        nbformat.validate(notebook)
        nbformat.write(notebook, Path(folder) / f"{name}.ipynb")
        print(f"{folder}/{name}.ipynb: {len(notebook.cells)} cells")


if __name__ == "__main__":
    main(*sys.argv[1:])
