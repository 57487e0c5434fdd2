"""MkDocs hook: converts TeX to MathML, which browsers show without a script."""

import html
import re

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content, **kwargs):
    """Converts the TeX that pymdownx.arithmatex has marked."""
    content = INLINE.sub(lambda match: convert(html.unescape(match[1])), content)
    return BLOCK.sub(_block, content)


def _block(match):
    return f'<div class="equation">{convert(html.unescape(match[1]), display="block")}</div>'
