"""A table for a paper."""

from .table import BOLD, Table

SYMBOLS = str.maketrans({
    "\\": r"\textbackslash{}", "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$",
    "{": r"\{", "}": r"\}", "^": r"\^{}", "~": r"\~{}", "×": r"$\times$", "Δ": r"$\Delta$",
    "—": "--", "–": "--", "−": "$-$", "‖": r"$\|$", "∇": r"$\nabla$", "²": "$^2$",
    "ε": r"$\epsilon$", "λ": r"$\lambda$", "σ": r"$\sigma$", "…": r"\ldots{}", "·": r"$\cdot$",
})  # fmt: skip


def latex(table: Table) -> str:
    """The table with booktabs, its caption as a comment below."""
    columns = "ll" + "r" * (len(table.headings) - 2)
    lines = [" & ".join(map(_cell, row)) + r" \\" for row in table.rows]
    head = " & ".join(map(_cell, table.headings)) + r" \\"
    return "\n".join([
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule",
        r"\end{tabular}", f"% {table.caption}", "",
    ])  # fmt: skip


def _cell(text: str) -> str:
    """What LaTeX reads as its own escaped, **bold** as in Markdown."""
    return BOLD.sub(r"\\textbf{\1}", text.translate(SYMBOLS))
