"""Tests of the HTML page: sections, escaping, and absence of external resources."""

import functools
import re
from html.parser import HTMLParser

import pytest

from t2t_relpos.models.attention_maps import read_table_norms, record_attention_maps
from trainer.attention_page import SentencePair, render_page

MARKUP = "</script><script>alert(1)</script><!-- & \u2028 '\"> <img src=x onerror=alert(2)>"
NAMES = [f"{MARKUP}{i}" for i in range(23)]
PAIR = SentencePair(MARKUP, MARKUP, [5, 7, 9, 1], [3, 1, 1], True)


class PageParser(HTMLParser):
    """Parser that collects the tags, the visible text and the scripts of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.scripts = [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts.append(data)
        elif self.cdata_elem is None:
            self.text += data


@pytest.fixture(scope="module")
def render(make_transformer):
    """Returns `render(variant, is_given)`, which returns the parsed page of a model."""

    @functools.cache
    def render_variant(variant, is_given):
        transformer = make_transformer(variant)
        maps = record_attention_maps(transformer, PAIR.source_ids, PAIR.target_ids)
        norms = read_table_norms(transformer)
        pair = PAIR._replace(is_given=is_given)
        return PageParser(render_page(transformer.config, pair, [NAMES, NAMES], maps, norms))

    return render_variant


@pytest.fixture
def page(render):
    return render("relative cross-attention", True)


@pytest.mark.parametrize(
    "variant, is_given, num_figures, num_unpositioned",
    [
        ("relative cross-attention", True, 15, 0),
        # Self-attention has a table of values only, and cross-attention has none.
        ("a^V only", False, 8, 3),
    ],
)
def test_page_has_figures_of_all_tables(render, variant, is_given, num_figures, num_unpositioned):
    page = render(variant, is_given)
    figures = [script for script in page.scripts if "Plotly.newPlot" in script]
    # The script of the Plotly library, which is longer, also contains Plotly.newPlot.
    assert len([script for script in figures if len(script) < 1e6]) == num_figures
    for title in ("Encoder self-attention", "Decoder self-attention", "Cross-attention"):
        assert title in page.text
    assert page.text.count("no position part") == num_unpositioned
    assert ("(given translation)" in page.text) == is_given
    assert ("(translation by the model)" in page.text) != is_given
    assert "num_heads=2" in page.text


def test_page_escapes_text(page):
    assert page.text.count(MARKUP) == 3, "title, source and target"
    assert {tag for tag, _ in page.tags} == {
        *("html", "head", "meta", "title", "style", "script", "body", "div"),
        *("h1", "h2", "h3", "p", "b", "sup", "details", "summary"),
    }
    figures = [script for script in page.scripts[1:] if "Plotly.newPlot" in script]
    assert figures and not any(re.search("</?script|<img", script) for script in figures)
    # Plotly interprets HTML in labels, so tokens are escaped for it as well.
    assert all("&lt;" in script for script in figures if "ticktext" in script)


def test_page_loads_no_external_resources(page):
    assert not any({"src", "href"} & attributes.keys() for _, attributes in page.tags)
    (policy,) = (a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; ") and "http" not in policy
    own_scripts = [script for script in page.scripts if len(script) < 1e6]
    assert not any("http" in script for script in own_scripts)
