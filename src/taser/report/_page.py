"""Tables as Markdown, HTML and LaTeX, and a self-contained HTML page for screen and print."""

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from taser._files import write_atomically
from taser.evaluation import Interval

LONG = 32  # characters: a longer cell is text, which wraps and is aligned left
BOLD = re.compile(r"\*\*(.+?)\*\*")
LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$",
    "{": r"\{", "}": r"\}", "^": r"\^{}", "~": r"\~{}", "×": r"$\times$", "Δ": r"$\Delta$",
    "—": "--", "–": "--", "−": "$-$", "‖": r"$\|$", "∇": r"$\nabla$", "²": "$^2$",
    "ε": r"$\epsilon$", "λ": r"$\lambda$", "σ": r"$\sigma$", "…": r"\ldots{}", "·": r"$\cdot$",
})  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Column headings and rows of strings, **bold** as in Markdown; the first column is a name."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"{len(self.headings)} headings, but a row of {len(row)}: {row}")

    def markdown(self) -> str:
        """A Markdown table, numbers aligned right."""
        lines = [
            "| " + " | ".join(self.headings) + " |",
            "|" + "|".join([":--"] + ["--:"] * (len(self.headings) - 1)) + "|",
            *("| " + " | ".join(row) + " |" for row in self.rows),
        ]
        return "\n".join(lines) + (f"\n\n{self.caption}\n" if self.caption else "\n")

    def html(self) -> str:
        """An HTML table that scrolls by itself on a narrow screen, its caption below."""

        def cell(text: str) -> str:
            kind = ' class="text"' if len(text) > LONG else ""
            return f"<td{kind}>{_inline(text)}</td>"

        head = "".join(f"<th>{_inline(heading)}</th>" for heading in self.headings)
        body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in self.rows)
        caption = f'<p class="caption">{_inline(self.caption)}</p>' if self.caption else ""
        return (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>{caption}"
        )

    def latex(self) -> str:
        """The table with booktabs, its caption as a comment below."""

        def line(cells: Sequence[str]) -> str:
            escaped = (BOLD.sub(r"\\textbf{\1}", text.translate(LATEX)) for text in cells)
            return " & ".join(escaped) + r" \\"

        columns = "ll" + "r" * (len(self.headings) - 2)
        return "\n".join([
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule", line(self.headings), r"\midrule",
            *map(line, self.rows), r"\bottomrule", r"\end{tabular}", f"% {self.caption}", "",
        ])  # fmt: skip


def _inline(text: str) -> str:
    return BOLD.sub(r"<b>\1</b>", escape(text))


STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
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
@media (max-width: 600px) { body { font-size: 15px; margin: 1rem auto; padding: 0 .7rem; }
       table { font-size: .74rem; } th, td { white-space: normal; padding: .25rem .3rem; }
       td.text { min-width: 12rem; } }
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


def with_bounds(interval: Interval, scale: float = 100, form: str = ".1f") -> str:
    """84.4 [81.0, 87.7]: in per cent unless `scale` says otherwise."""
    value, low, high = (scale * number for number in (interval.value, interval.low, interval.high))
    return f"{value:{form}} [{low:{form.lstrip('+')}}, {high:{form.lstrip('+')}}]"


def show_image(axes: Axes, image: Tensor, colours: str = "gray") -> None:
    """Draw an image, (C, H, W) in [0, 1], in colour if it has three or four channels."""
    image = image.detach().cpu().clamp(0, 1)
    pixels = image.permute(1, 2, 0) if len(image) in (3, 4) else image.mean(0)
    axes.imshow(pixels.numpy(), cmap=colours, vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[], frame_on=False)


def png(figure: Figure) -> bytes:
    """A figure as PNG, at a resolution fit for print."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    return buffer.getvalue()


Block = str | Table | Picture
"""A paragraph, a table or a picture."""


@dataclass(frozen=True)
class Page:
    """A title, a summary that comes first, and sections of paragraphs, tables and pictures."""

    title: str
    summary: Sequence[str]
    sections: Sequence[tuple[str, Sequence[Block]]]
    footer: str = ""

    def html(self) -> str:
        """The page as one string."""

        def block(b: Block) -> str:
            return f"<p>{escape(b)}</p>" if isinstance(b, str) else b.html()

        sections = "".join(
            f"<h2>{escape(heading)}</h2>{''.join(map(block, blocks))}"
            for heading, blocks in self.sections
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head><body>"
            f'<h1>{escape(self.title)}</h1><div class="summary">{"".join(map(block, self.summary))}'
            f"</div>{sections}<footer>{escape(self.footer)}</footer></body></html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the page; whole or not at all."""
        return write_atomically(path, self.html())

    def write_report(self, out: Path, numbers: Any) -> Path:
        """report.html, the tables in table.md, `numbers` in results.json; the page's path."""
        tables = [b for _, blocks in self.sections for b in blocks if isinstance(b, Table)]
        write_atomically(out / "results.json", json.dumps(numbers, indent=1) + "\n")
        write_atomically(out / "table.md", "\n".join(table.markdown() for table in tables))
        return self.write(out / "report.html")
