"""One self-contained HTML page: no network, readable on a phone and in print."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from taser._files import write_atomically

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


SYMBOLS = str.maketrans({
    "\\": r"\textbackslash{}", "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$",
    "{": r"\{", "}": r"\}", "^": r"\^{}", "~": r"\~{}", "×": r"$\times$", "Δ": r"$\Delta$",
    "—": "--", "–": "--", "−": "$-$", "‖": r"$\|$", "∇": r"$\nabla$", "²": "$^2$",
    "ε": r"$\epsilon$", "λ": r"$\lambda$", "σ": r"$\sigma$", "…": r"\ldots{}", "·": r"$\cdot$",
})  # fmt: skip


def latex(table: Table) -> str:
    """The table with booktabs, its caption as a comment below."""
    columns = "ll" + "r" * (len(table.headings) - 2)
    lines = [" & ".join(map(_cell_latex, row)) + r" \\" for row in table.rows]
    head = " & ".join(map(_cell_latex, table.headings)) + r" \\"
    return "\n".join([
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule",
        r"\end{tabular}", f"% {table.caption}", "",
    ])  # fmt: skip


def _cell_latex(text: str) -> str:
    """What LaTeX reads as its own escaped, **bold** as in Markdown."""
    return BOLD.sub(r"\\textbf{\1}", text.translate(SYMBOLS))


STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
.summary { background: #f1f5f9; border-left: 4px solid #2563eb; padding: .8rem 1rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
.caption { color: #555; font-size: .92rem; margin-top: -.4rem; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; white-space: normal; min-width: 18rem; }
thead th { border-bottom: 2px solid #333; white-space: normal; vertical-align: bottom; }
figure { margin: 1.2rem 0; } img { max-width: 100%; height: auto; }
figcaption, footer { color: #555; font-size: .92rem; }
footer { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: .6rem; }
@media print { body { margin: 0; max-width: none; } figure, table { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Picture:
    """A PNG with its caption, which also describes it to a screen reader."""

    image: bytes
    caption: str

    def html(self) -> str:
        """The picture, embedded."""
        data = base64.b64encode(self.image).decode()
        caption = escape(self.caption)
        return (
            f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )


Block = str | Table | Picture


@dataclass(frozen=True)
class Page:
    """A title, a summary that comes first, and sections of paragraphs, tables and pictures."""

    title: str
    summary: Sequence[str]
    sections: Sequence[tuple[str, Sequence[Block]]]
    footer: str = ""

    def html(self) -> str:
        """The page as one string."""
        summary = "".join(f"<p>{escape(line)}</p>" for line in self.summary)
        sections = "".join(
            f"<h2>{escape(heading)}</h2>{''.join(map(_html, blocks))}"
            for heading, blocks in self.sections
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head><body>"
            f'<h1>{escape(self.title)}</h1><div class="summary">{summary}</div>'
            f"{sections}<footer>{escape(self.footer)}</footer></body></html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the page; whole or not at all."""
        return write_atomically(path, self.html())


def png(figure: Figure) -> bytes:
    """A figure's PNG, at a resolution fit for print."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    return buffer.getvalue()


def _html(block: Block) -> str:
    return f"<p>{escape(block)}</p>" if isinstance(block, str) else block.html()
