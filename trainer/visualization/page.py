"""One HTML page that holds everything it needs: data, style and script."""

import base64
import hashlib
import html
import json
import re
from importlib import resources

SCRIPTS = ("elements.js", "heat_map.js", "line_chart.js", "sections.js", "page.js")


def page(data: dict) -> str:
    """The page for what `page_data` gives.

    No text of the data can become markup: as JSON it holds no `<`, `>` and `&`, the script only ever sets text, and the browser is
    told to run no other script and to load nothing.

    Example:

    >>> data = {"source": {"text": "</script>"}, "model": "runs/a&b"}
    >>> written = page(data)
    >>> embedded_json(data) in written, "</script>\\"" in written, "<title>&lt;/script&gt;" in written
    (True, False, True)
    """
    script = "\n".join(_file(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {
        "title": html.escape(data["source"]["text"]),
        "style": _file("page.css"),
        "script": script,
        "script_digest": digest,
        "data": embedded_json(data),
    }
    # In one pass: nothing that is filled in is looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _file("page.html"))


def embedded_json(data: dict) -> str:
    r"""JSON that can stand in a `<script>` element.

    Example:

    >>> embedded_json({"text": "</script><b>&"})
    '{"text":"\\u003c/script\\u003e\\u003cb\\u003e\\u0026"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _file(name):
    return (
        resources.files("trainer.visualization")
        .joinpath("assets", name)
        .read_text(encoding="utf-8")
    )
