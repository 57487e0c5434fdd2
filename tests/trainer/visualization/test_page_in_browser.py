"""The page in a real browser: what it shows after its scripts ran."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from trainer.visualization.attention_maps import attention_maps
from trainer.visualization.logit_parts import logit_parts
from trainer.visualization.page import page
from trainer.visualization.page_data import page_data
from trainer.visualization.sentence_pair import SentencePair
from trainer.visualization.table_statistics import mean_logits, row_norms

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium: apt-get install chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --disable-dev-shm-usage --enable-logging=stderr"
).split()
HOSTILE = "</script><script>alert(1)</script><b>{{data}}</b> &lt;"
NAMES = ["<pad>", "</s>", *(f"n{i}" for i in range(2, 23))]
NAMES[5], NAMES[3] = (
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=alert(1)>",
)
PAIR = SentencePair(HOSTILE, HOSTILE, [5, 7, 9, 4, 1], [3, 11, 1], False)


class Shown:
    """A page after its scripts ran."""

    def __init__(self, file, folder, address=""):
        profile = f"--user-data-dir={folder / 'profile'}"
        command = [BROWSER, *FLAGS, profile, "--dump-dom", f"file://{file}{address}"]
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=120,
            check=True,
        )
        shutil.rmtree(folder / "profile", ignore_errors=True)
        self.dom = done.stdout
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def text(self, id):
        """Of the innermost element with an id."""
        return html.unescape(re.search(rf'<[^>]*\bid="{id}"[^>]*>([^<]*)<', self.dom)[1])

    def map(self, name):
        """The numbers of a heat map, nan where a pair is hidden."""
        (svg,) = re.findall(rf'<svg[^>]*data-map="{name}".*?</svg>', self.dom, re.DOTALL)
        cells = {}
        for rect in re.findall("<rect[^>]*data-query[^>]*>", svg):
            found = dict(re.findall(r'data-(\w+)="([^"]*)"', rect))
            cells[int(found["query"]), int(found["key"])] = float(found.get("value", "nan"))
        rows, columns = (max(place) + 1 for place in zip(*cells))
        return np.array([[cells[i, j] for j in range(columns)] for i in range(rows)])

    def lines(self, name):
        """The numbers of a chart, a row for every layer."""
        (svg,) = re.findall(rf'<svg[^>]*data-chart="{name}".*?</svg>', self.dom, re.DOTALL)
        found = re.findall(r'data-layer="(\d+)" data-values="([^"]*)"', svg)
        return np.array([json.loads(values) for _, values in sorted(found)])

    def grid(self, id):
        """Texts of a table of heads."""
        table = re.search(rf'<table id="{id}".*?</table>', self.dom, re.DOTALL)[0]
        return [re.findall("<b>(.*?)</b>", row) for row in table.split("<tr>")[2:]]

    def is_hidden(self, pattern):
        return " hidden" in re.search(pattern, self.dom)[0]


@pytest.fixture
def show(tmp_path):
    """`show(text, address="")`: a page, `Shown`."""

    def run(text, address=""):
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        return Shown(file, tmp_path, address)

    return run


def with_script(text, script):
    """A page that may run one more script, at its end."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return text.replace("script-src ", f"script-src 'sha256-{digest}' ").replace(
        "</body>", f"<script>{script}</script></body>"
    )


def page_of(transformer):
    maps = attention_maps(transformer, PAIR.source_ids, PAIR.target_ids)
    return maps, page(page_data(transformer.config, PAIR, NAMES, maps, "runs/x"))


def near(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=5.001e-4)


def percents(numbers):
    return [[f"{np.floor(100 * float(f'{x:.4g}') + 0.5):.0f} %" for x in row] for row in numbers]


def test_first_view(make_transformer, show):
    maps, text = page_of(make_transformer("shared tables"))
    shown = show(text)
    assert shown.console == []
    near(shown.map("weights"), maps["encoder"][0].weights[0])
    assert shown.text("source") == shown.text("target") == HOSTILE
    assert (
        shown.text("model")
        == "runs/x · the model's own translation · 5 source pieces, 3 target pieces"
    )
    # Hostile text stayed text: no element came of it, and no script ran.
    body = shown.dom.split("<body>")[1]
    assert body.count("<script") == 2 and "<img" not in body
    assert html.unescape(re.search("<title>(.*?)</title>", shown.dom)[1]) == HOSTILE
    assert len(re.findall("<canvas", body)) == 2 * 2


def test_chosen_layer_and_head_of_the_decoder(make_transformer, show):
    maps, text = page_of(make_transformer("tables per head"))
    shown = show(text, "#part=decoder&layer=3&head=2")
    layer = maps["decoder"][2]
    hidden = np.where(layer.visible, 0.0, np.nan)
    near(shown.map("weights"), layer.weights[1] + hidden)
    near(shown.map("content"), layer.content[1] + hidden)
    near(shown.map("position"), layer.position[1] + hidden)
    np.testing.assert_allclose(
        shown.map("logit"), layer.content[1] + layer.position[1] + hidden, rtol=5e-3, atol=1e-3
    )
    assert "Decoder self-attention, layer 3, head 2" in shown.dom
    parts = [logit_parts(layer) for layer in maps["decoder"]]
    assert shown.grid("shares") == percents([[head.share for head in layer] for layer in parts])
    assert shown.grid("moved") == percents([[head.moved for head in layer] for layer in parts])
    summary = shown.text("parts-of-head")
    assert summary.startswith(
        f"Layer 3, head 2: share of position {shown.grid('shares')[2][1]}; spread of content "
    )
    near(
        float(re.search("spread of content ([0-9.]+)", summary)[1]),
        float(f"{parts[2][1].content:.3g}"),
    )
    near(shown.lines("keyNorms"), [row_norms(layer.key_table)[1] for layer in maps["decoder"]])
    near(shown.lines("valueNorms"), [row_norms(layer.value_table)[1] for layer in maps["decoder"]])
    near(shown.lines("meanLogits"), [mean_logits(layer)[1] for layer in maps["decoder"]])
    assert "these are head 2's" in shown.text("sharing-note") and not shown.is_hidden(
        '<span id="unused-note"[^>]*>'
    )
    assert shown.console == []


def test_rows_means_subtracted(make_transformer, show):
    maps, text = page_of(make_transformer("shared tables"))
    shown = show(text, "#part=encoder&layer=2&head=1&centred&own")
    for name in ("content", "position"):
        part = getattr(maps["encoder"][1], name)[0]
        np.testing.assert_allclose(
            shown.map(name), part - part.mean(-1, keepdims=True), rtol=5e-3, atol=2e-3
        )
    assert shown.console == []


PRESS = """
for (const [choice, n] of [["part", 2], ["layer", 1], ["head", 1]]) document.querySelectorAll(`#${choice}-choice button`)[n].click();
"""
POINT = """
const pair = document.querySelector('#map [data-query="1"][data-key="3"]');
pair.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 50, clientY: 60 }));
console.error("heard");
"""


def test_buttons(make_transformer, show):
    maps, text = page_of(make_transformer("shared tables"))
    shown = show(with_script(text, PRESS))
    near(shown.map("weights"), maps["cross"][1].weights[1])
    pressed = re.findall(
        '<button type="button" aria-pressed="true">([^<]*)</button>', shown.dom.split("<main>")[0]
    )
    assert pressed == ["Decoder to encoder", "2", "2"] and shown.console == []


def test_what_lies_under_the_pointer(make_transformer, show):
    maps, text = page_of(make_transformer("relative cross-attention"))
    shown = show(with_script(text, POINT), "#part=cross&layer=2&head=2")
    layer = maps["cross"][1]
    lines = shown.text("tip").split("\n")
    assert lines[0] == "about to write n11 (1), source n4 (3)"
    values = {
        name: float(number.replace("−", "-"))
        for name, number in re.findall(r"(\w+)  (−?[0-9.]+)", "\n".join(lines[1:]))
    }
    near(values["attention"], layer.weights[1, 1, 3])
    near(values["content"], layer.content[1, 1, 3])
    near(values["position"], layer.position[1, 1, 3])
    np.testing.assert_allclose(
        values["logit"], layer.content[1, 1, 3] + layer.position[1, 1, 3], rtol=5e-3, atol=1e-3
    )
    assert "(distance 2)" in lines[3]
    assert shown.dom.count(' pointed"') == 4
    # Errors would be seen: this one is.
    assert len(shown.console) == 1 and "heard" in shown.console[0]


@pytest.mark.parametrize(
    "kind, reason",
    [
        (
            "learned",
            "This model has position=learned: no tables of relative positions, and logits that are content alone.",
        ),
        (
            "no tables",
            "This model has neither a^K nor a^V (both tables are off): its logits are content alone.",
        ),
    ],
)
def test_models_without_tables_say_why(make_transformer, show, kind, reason):
    maps, text = page_of(make_transformer(kind))
    shown = show(text, "#part=decoder&layer=2")
    near(
        shown.map("weights"),
        maps["decoder"][1].weights[0] + np.where(maps["decoder"][1].visible, 0.0, np.nan),
    )
    assert re.findall('<p class="reason">([^<]*)</p>', shown.dom) == [reason, reason]
    assert shown.dom.count('<div class="body" hidden="">') == 2 and shown.console == []


@pytest.mark.parametrize("kind, charts", [("K = 0", 3), ("a^V alone", 1), ("a^K alone", 2)])
def test_other_tables(make_transformer, show, kind, charts):
    maps, text = page_of(make_transformer(kind))
    shown = show(text, "#part=encoder&layer=nonsense&head=99")
    near(shown.map("weights"), maps["encoder"][0].weights[1])
    assert len(re.findall("data-chart=", shown.dom)) == charts
    name, column = (
        ("valueNorms", "value_table") if kind == "a^V alone" else ("keyNorms", "key_table")
    )
    near(shown.lines(name), [row_norms(getattr(layer, column))[0] for layer in maps["encoder"]])
    assert shown.console == []
