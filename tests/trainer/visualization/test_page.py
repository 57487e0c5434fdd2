"""The page's text: nothing in it becomes markup, and it refers to nothing outside itself."""

import base64
import configparser
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trainer.visualization.page import SCRIPTS, page

ROOT = Path(__file__).parents[3]
HOSTILE = (
    "</script><script>alert(1)</script><!-- {{script}} & \u2028 '\"> <img src=x onerror=alert(2)>"
)


class Elements(HTMLParser):
    """Names and attributes of a page's elements, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def written():
    return page({"source": {"text": HOSTILE}, "target": {"text": HOSTILE}, "model": "{{title}}"})


def test_hostile_text_comes_back_as_data(written):
    elements = Elements(written)
    assert [attributes.get("type") for tag, attributes in elements.found if tag == "script"] == [
        "application/json",
        None,
    ]
    data = json.loads(elements.scripts[0])
    assert data == {"source": {"text": HOSTILE}, "target": {"text": HOSTILE}, "model": "{{title}}"}
    assert "<script>alert" not in written and "<img" not in written


def test_only_the_pages_own_script_may_run(written):
    digest = base64.b64encode(
        hashlib.sha256(Elements(written).scripts[1].encode()).digest()
    ).decode()
    policies = [
        attributes["content"]
        for tag, attributes in Elements(written).found
        if tag == "meta" and "http-equiv" in attributes
    ]
    assert policies == [
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    ]


def test_refers_to_nothing_outside(written):
    own = written.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttpRequest|innerHTML", own)
    assert not {"link", "img", "iframe"} & {tag for tag, _ in Elements(written).found}
    assert not any({"src", "href"} & attributes.keys() for _, attributes in Elements(written).found)


def test_assets_are_installed():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options.package_data"]["trainer.visualization"].split() == ["assets/*"]
    present = {path.name for path in (ROOT / "trainer/visualization/assets").iterdir()}
    assert present == {*SCRIPTS, "page.html", "page.css"}
