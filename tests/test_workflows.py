"""Tests that workflows pin their actions, and run all targets that docs/dev/testing.md lists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}
TARGETS = r"\b(lint|docs|package|test(?:-[a-z0-9.-]+)?)\b"


def targets(text):
    return set(re.findall(rf"(?:make|target:|^ +-) {TARGETS}", text, re.MULTILINE))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_permissions_are_given(name):
    text = WORKFLOWS[name]
    assert re.search(r"^permissions:\n  contents: read\n", text, re.MULTILINE)
    assert text.count("timeout-minutes:") == text.count("runs-on:")
    for action in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action)


def test_workflows_run_the_targets_that_the_page_lists():
    page = (ROOT / "docs/dev/testing.md").read_text()
    rows = re.findall(r"^\| `make ([\w.-]+)`(.*?) \|.*\| (.*?) \|$", page, re.MULTILINE)
    listed = {"yes": set(), "nightly": set()}
    for target, others, when in rows:
        backends = re.findall(r"`-(\w+)`", others)
        names = {target} | {target.rpartition("-")[0] + f"-{each}" for each in backends}
        listed.setdefault(when, set()).update(names)
    run = (ROOT / ".ci/run").read_text()
    assert listed["yes"] == set(re.search(r"for target in (.*);", run)[1].split())
    assert targets(WORKFLOWS["ci"]) == listed["yes"] - {"test-slow"}
    assert targets(WORKFLOWS["nightly"]) == listed["nightly"] | {"test-slow", "package"}
