"""Runs the code of guides and other pages, and compares the output with the pages.

All blocks of a page run in one empty folder, in the order of the page: `python` blocks in one
namespace of a new interpreter, `sh` blocks in bash. The `text` block after a block is its expected
standard output. In it, `...` stands for any text, white space for any white space, and numbers with
a decimal point may differ by 2 %. HTML comments before a block change this:

    <!-- not run: REASON -->    the block does not run
    <!-- tolerance: 0.1 -->     relative tolerance of the numbers in a `text` block
    <!-- output varies: REASON -->    only the number of lines of a `text` block is compared
    <!-- backend: torch -->    the block runs with the others of this backend, in an interpreter and
                               a folder of their own

To see all outputs of a page: `python tests/test_guides.py PAGE`, in an empty folder. A second
argument selects the blocks of a backend.
"""

import ast
import contextlib
import io
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / "docs" / name for name in ("index.md", "get_started.md", "how_it_works/dispatch.md")),
    *sorted((ROOT / "docs/guides").glob("*.md")),
]
# Packages that a page needs in addition to the extra `test`.
REQUIRED = {
    "exports torch": ("torch", "transformers", "onnxscript"),
    "jax": ("jax", "flax", "optax"),
    "music": ("mido", "music21"),
    "pytorch": ("torch", "peft"),
    "speech_models": ("torch", "transformers", "peft"),
    "streaming": ("torch",),
}
BLOCK = re.compile(
    r"(?:^<!-- (?P<option>not run|tolerance|output varies|backend): (?P<value>.*?) -->\n+)?"
    r"^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"-?\d+\.\d*(?:e[-+]?\d+)?")


def read_blocks(page, backend=None):
    """Returns the matches of `BLOCK` that run, and those of their expected outputs.

    Args:
        page: path of the page.
        backend: name of the backend of the comments `backend`. Default: blocks without it.
    """
    blocks, selected = [], backend is None
    for block in BLOCK.finditer(page.read_text()):
        if block["language"] in ("python", "sh"):
            selected = (block["value"] if block["option"] == "backend" else None) == backend
        if selected and block["option"] != "not run":
            blocks.append(block)
    return blocks


def backends(page):
    """Returns None and the names of the backends in the comments of a page."""
    blocks = BLOCK.finditer(page.read_text())
    return [None, *sorted({x["value"] for x in blocks if x["option"] == "backend"})]


def run_block(block, scope):
    """Returns the standard output of a `python` or `sh` block."""
    if block["language"] == "python":
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block["code"], "<page>", "exec"), scope)
        return output.getvalue()
    command = ["bash", "-euo", "pipefail", "-c", block["code"]]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def output_matches(expected, output, tolerance):
    """Returns whether an output matches the expected one, by the rules of the module docstring."""
    pattern, numbers, end = "", [], 0
    for match in re.finditer(rf"\.\.\.|\s+|{NUMBER.pattern}", expected.strip()):
        pattern += re.escape(expected.strip()[end : match.start()])
        end = match.end()
        if match[0] == "...":
            pattern += ".*?"
        elif match[0].isspace():
            pattern += r"\s+"
        else:
            numbers.append(float(match[0]))
            pattern += f"({NUMBER.pattern})"
    pattern += re.escape(expected.strip()[end:])
    found = re.fullmatch(pattern, output.strip(), re.DOTALL)
    return found is not None and all(
        math.isclose(float(number), expected_number, rel_tol=tolerance, abs_tol=1e-6)
        for number, expected_number in zip(found.groups(), numbers, strict=True)
    )


def block_matches(block, output):
    """Returns whether an output matches its `text` block."""
    if block["option"] == "output varies":
        return len(output.splitlines()) == len(block["code"].splitlines())
    return output_matches(block["code"], output, float(block["value"] or 0.02))


def run_page(page, backend=None):
    """Runs the blocks of a page in this folder, prints their outputs, and compares them."""
    output, scope = "", {"__name__": "__main__"}
    for block in read_blocks(page, backend):
        if block["language"] in ("python", "sh"):
            output = run_block(block, scope)
            print(f"{block['code']}--- output:\n{output}", flush=True)
        elif block["language"] == "text":
            if not block_matches(block, output):
                sys.exit(f"Expected the output:\n{block['code']}")


def _parameter(page, backend):
    is_guide = any(block["language"] == "sh" for block in read_blocks(page, backend))
    marks = pytest.mark.guide if is_guide else pytest.mark.slow
    name = f"{page.stem} {backend}" if backend else page.stem
    return pytest.param(page, backend, name, marks=marks, id=name)


@pytest.mark.parametrize(
    ("page", "backend", "name"), [_parameter(page, x) for page in PAGES for x in backends(page)]
)
def test_code_of_page_prints_the_documented_output(page, backend, name, tmp_path):
    required = REQUIRED.get(name, ())
    for package in required:
        pytest.importorskip(package)
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join(paths)}
    if "torch" in required:
        del environment["KERAS_BACKEND"]  # The page needs no environment variable.
    run = subprocess.run(
        [sys.executable, __file__, page, *([backend] if backend else [])],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-8000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_page_compiles_and_its_imports_of_this_project_exist(page):
    if "torch" in REQUIRED.get(page.stem, ()) and os.environ["KERAS_BACKEND"] != "torch":
        pytest.skip("requires the backend PyTorch")
    backend = os.environ["KERAS_BACKEND"]
    blocks = read_blocks(page) + (read_blocks(page, backend) if backend in backends(page) else [])
    for block in blocks:
        if block["language"] == "python":
            for statement in map(ast.unparse, ast.parse(block["code"]).body):
                if re.match(r"(import|from) (t2t_relpos|trainer|examples)\b", statement):
                    exec(statement, {})


@pytest.mark.parametrize(
    ("expected", "output", "tolerance", "matches"),
    [
        ("a ...\nb", "a 1\n2\nb\n", 0.02, True),
        ("loss 1.00", "loss  1.01", 0.02, True),
        ("loss 1.00", "loss 1.10", 0.02, False),
        ("loss 1.00", "loss 1.10", 0.2, True),
        ("(2, 5)", "(2, 6)", 0.02, False),
        ("[0. 1.]", "[0. 1.]", 0.0, True),
        ("a", "a b", 0.02, False),
    ],
)
def test_output_matches(expected, output, tolerance, matches):
    assert output_matches(expected, output, tolerance) is matches


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), *sys.argv[2:])
