"""How Sphinx builds the pages as a site (`make docs-html`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "pybroker"
extensions = ["sphinx.ext.autodoc"]
exclude_patterns = ["__pycache__"]
html_theme = "furo"
html_title = "pybroker"
html_static_path: list[str] = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
default_role = "literal"
highlight_language = "none"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
# Quotation marks only: "--format" stays as it is typed.
smartquotes_action = "q"
suppress_warnings = ["misc.highlighting_failure"]

PAGES_ELSEWHERE: Final = {
    "pybroker/ARCHITECTURE.rst": "architecture",
    "CHANGELOG.rst": "changelog",
    "README.rst": "index",
}
PLAIN_NAME: Final = re.compile(r"docs/(\w+)\.rst")
EXAMPLE: Final = re.compile(r"(?:import|from) [\w.]+(?: import \w|$)|(?:async )?with \w+\(")
PROGRAM: Final = re.compile(rf"(?m)^(?:{EXAMPLE.pattern})")


class LinkPages(SphinxTransform):
    """Makes a link of each name of a page's file, such as `docs/client.rst`."""

    default_priority = 5

    def apply(self) -> None:
        for literal in list(self.document.findall(nodes.literal)):
            page = page_of(literal.astext())
            if page is not None and not isinstance(literal.parent, nodes.title):
                literal.replace_self(link_to(page, literal, self.env.docname))


def page_of(text: str) -> str | None:
    """Return the page that a file name stands for; None if it is not the file of a page."""
    found = PLAIN_NAME.fullmatch(text)
    return found[1] if found else PAGES_ELSEWHERE.get(text)


def link_to(page: str, literal: nodes.literal, origin: str) -> pending_xref:
    """Return a reference to the page. Sphinx inserts the page's title as the text."""
    link = pending_xref(
        literal.rawsource,
        nodes.inline(literal.rawsource, page, classes=["doc"]),
        refdomain="std",
        reftype="doc",
        reftarget=page,
        refexplicit=False,
        refwarn=True,
        refdoc=origin,
    )
    link.source, link.line = literal.source, literal.line
    return link


class ColourPrograms(SphinxTransform):
    """Marks blocks with an import as Python programs."""

    default_priority = 5

    def apply(self) -> None:
        for block in self.document.findall(nodes.literal_block):
            if PROGRAM.search(block.astext()):
                block["language"] = "python"


def frame_examples(
    app: Sphinx, what: str, name: str, docstring_of: object, options: object, lines: list[str]
) -> None:
    """Mark the programs in a docstring: indented lines, or lines from an import or a `with` up to
    the next sentence."""
    marked: list[str] = []
    is_program = is_flush = False
    for line in lines:
        if line and not line.startswith(" "):
            is_flush = EXAMPLE.match(line) is not None or (is_flush and not line[0].isupper())
            is_program = is_program and is_flush
        if (is_flush or line.startswith("    ")) and not is_program:
            is_announced = any(text.endswith("::") for text in marked[-2:])
            marked += [] if is_announced else ["", "::", ""]
            is_program = True
        marked.append(f"    {line}" if is_flush and line else line)
    lines[:] = marked


def skip_fields(
    app: Sphinx, what: str, name: str, member: object, is_skipped: bool, options: object
) -> bool | None:
    """Leave out the fields of named tuples, which the signature of the class shows already."""
    return True if (member.__doc__ or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", frame_examples)
    app.add_transform(LinkPages)
    app.add_transform(ColourPrograms)
