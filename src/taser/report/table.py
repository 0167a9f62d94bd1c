"""A table, once, for the terminal, Markdown and HTML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LONG = 32  # characters: longer cells are text
BOLD = re.compile(r"\*\*(.+?)\*\*")


@dataclass(frozen=True)
class Table:
    """Column headings and rows of strings; the first column names the row."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"{len(self.headings)} headings, but a row of {len(row)}: {row}")

    def markdown(self) -> str:
        """A Markdown table, numbers to the right."""
        lines = [
            "| " + " | ".join(self.headings) + " |",
            "|" + "|".join([":--"] + ["--:"] * (len(self.headings) - 1)) + "|",
            *("| " + " | ".join(row) + " |" for row in self.rows),
        ]
        return "\n".join(lines) + (f"\n\n{self.caption}\n" if self.caption else "\n")

    def html(self) -> str:
        """An HTML table that scrolls by itself on a narrow screen, its caption below."""
        head = "".join(f"<th>{_inline(heading)}</th>" for heading in self.headings)
        body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in self.rows)
        caption = f'<p class="caption">{_inline(self.caption)}</p>' if self.caption else ""
        return (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>{caption}"
        )


def _cell(text: str) -> str:
    """A number keeps to its line and to the right; a sentence wraps and reads from the left."""
    kind = ' class="text"' if len(text) > LONG else ""
    return f"<td{kind}>{_inline(text)}</td>"


def _inline(text: str) -> str:
    """Escaped, with **bold** as in Markdown."""
    return BOLD.sub(r"<b>\1</b>", escape(text))
