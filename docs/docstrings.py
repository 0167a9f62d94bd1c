"""The docstrings of taser as Markdown: they are written to be read as plain text first."""

import re
import textwrap
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)>>> .*\n?(?:\1\S.*\n?)*", re.MULTILINE)
OPTION = re.compile(r"^(\w+(?:, \w+)*)\n((?:    .+\n?)+)", re.MULTILINE)
ROLE = re.compile(r":\w+:`~?([^`]+)`")
LITERAL = re.compile(r"`[^`]*`|>>> .*|\*(?=\w*\))|(?<=\])\[")  # (B, *) and a[i][j], outside code


def as_markdown(text: str) -> str:
    """Examples become blocks of code, described options a definition list, roles plain code."""
    text = ROLE.sub(r"`\1`", text)
    text = LITERAL.sub(lambda m: f"\\{m[0]}" if len(m[0]) == 1 else m[0], text)
    text = OPTION.sub(lambda m: f"\n`{m[1]}`\n:   {m[2].lstrip()}", text)
    return DOCTEST.sub(lambda m: f"```pycon\n{textwrap.dedent(m[0]).rstrip()}\n```\n", text)


class PlainDocstrings(griffe.Extension):
    """Applied to everything that mkdocstrings shows."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Rewrite the docstring in place, once."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
