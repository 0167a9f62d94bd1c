"""One self-contained HTML page: no network, readable on a phone and in print."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from taser.files import write_atomically

from .table import Table

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
