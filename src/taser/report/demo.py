"""The demonstration's pictures and its conclusion in plain words."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from taser.studies.demo import Demo
from taser.studies.table_rows import Row

from .audit import table as audit_table
from .method_table import percent
from .page import Block, Picture, png

NEXT = (
    "Where to look next: README.md for two lines in your own loop, docs/training.md to train and "
    "fine-tune, docs/audit.md to judge a model that you were handed."
)
IMAGES = (
    "Eight digits; what breaks the plain network; the difference; the score field s(x), which "
    "points from where an image is to where images are."
)
RESIDUALS = (
    "The residual σ s·∇m on test digits, without and with TASER: what the penalty narrows is how "
    "much the margin changes along directions off the data."
)


def sections(demo: Demo) -> list[tuple[str, Sequence[Block]]]:
    """Images, residuals and audits."""
    audits: list[Block] = []
    for name, audit in demo.audits.items():
        failed = ", ".join(check.name for check in audit.failed) or "no check failed"
        audits += [f"{name}: {audit.verdict} ({failed}).", audit_table(audit)]
    return [
        ("What is attacked", [Picture(png(_images(demo)), IMAGES)]),
        ("Stein residuals", [Picture(png(_residuals(demo)), RESIDUALS)]),
        ("Can the figures be believed?", audits),
    ]


def conclusion(rows: Sequence[Row], demo: Demo) -> list[str]:
    """What happened, for someone who has read nothing yet."""
    found = {(row.method, row.variant): row for row in rows}
    plain, ours = found["standard", "off"], found["standard", "taser"]
    trusted = all(audit.verdict == "trust" for audit in demo.audits.values())
    clean, broken = (percent(plain.accuracy[m].value) for m in ("clean", "worst"))
    kept, standing = (percent(ours.accuracy[m].value) for m in ("clean", "worst"))
    return [
        f"A network trained in the ordinary way reads {clean} % of the test digits, and {broken} % "
        f"once an attacker may move every pixel a little; trained with TASER it reads {kept} % and "
        f"{standing} % (n = {ours.n['worst']}).",
        "The audit found nothing that says these figures come from hidden gradients."
        if trusted
        else "The audit found checks that fail: do not believe these figures before reading it.",
        NEXT,
    ]


def _images(demo: Demo) -> Figure:
    change = demo.attacked - demo.x
    size = float(demo.scores.abs().max())
    lines = [
        (demo.x, 0.0, 1.0, "gray"), (demo.attacked, 0.0, 1.0, "gray"),
        (change, -float(change.abs().max()), float(change.abs().max()), "RdBu"),
        (demo.scores, -size, size, "RdBu"),
    ]  # fmt: skip
    figure = Figure(figsize=(1.1 * len(demo.x), 4.6), layout="constrained")
    grid = figure.subplots(len(lines), len(demo.x))
    for axes, (images, low, high, colours) in zip(grid, lines, strict=True):
        for place, image in zip(axes, images, strict=True):
            place.imshow(image.mean(0).numpy(), cmap=colours, vmin=low, vmax=high)
            place.set_xticks([])
            place.set_yticks([])
    for axes, name in zip(grid[:, 0], ("digit", "attacked", "change", "score"), strict=True):
        axes.set_ylabel(name)
    return figure


def _residuals(demo: Demo) -> Figure:
    methods = list(dict.fromkeys(name.split(", ")[0] for name in demo.residuals))
    figure = Figure(figsize=(4.2 * len(methods), 2.8), layout="constrained")
    for axes, method in zip(
        figure.subplots(1, len(methods), squeeze=False)[0], methods, strict=True
    ):
        pair = {
            name.split(", ")[1]: r for name, r in demo.residuals.items() if name.startswith(method)
        }
        widest = max(float(r.abs().quantile(0.99)) for r in pair.values())
        for variant, r in pair.items():
            axes.hist(
                r.numpy(), bins=60, range=(-widest, widest), alpha=0.6,
                label=f"{variant}: std {float(r.std()):.2g}",
            )  # fmt: skip
        axes.set(title=method, xlabel="residual", ylabel="test digits")
        axes.legend(frameon=False, fontsize=8)
    return figure
