"""A table, once, for the terminal, Markdown and HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


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
        """An HTML table that scrolls by itself on a narrow screen."""
        head = "".join(f"<th>{escape(heading)}</th>" for heading in self.headings)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        return (
            f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )
