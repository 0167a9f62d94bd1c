"""Certified ℓ2 accuracy: an untouched network, a denoiser in front, Gaussian augmentation, TASER.

    python experiments/certified.py digits fashion-mnist cifar10 --out out/certified

For each data set four smoothed classifiers are certified with the same noise: the network of the
recipe <data>/standard; the same with the shipped denoiser in front; that of <data>/gaussian; and
that with TASER (form "noised"), whose λ has the highest accuracy under noise on the validation
split. Killed and started again, it resumes.
"""

import argparse
import json
import lzma
from pathlib import Path
from typing import Any

import torch
from torch import nn

import taser
from taser.data import Dataset
from taser.evaluation import Interval, attack_smoothed
from taser.training import load_trained, read_recipe, train

SIGMA = 0.25
RADII = (0.125, 0.25, 0.375, 0.5)
WEIGHTS = (0.03, 0.1, 0.3, 1.0)
ROWS = ("plain", "plain + denoiser", "augmentation", "augmentation + TASER")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("out/certified"))
    parser.add_argument("-n", type=int, default=300, help="test examples")
    parser.add_argument("--draws", type=int, default=1000, help="of noise for each example")
    parser.add_argument("--weights", type=float, nargs="+", default=WEIGHTS, help="λ to try")
    parser.add_argument("--override", nargs="+", default=[], help="keys of the recipes")
    options = parser.parse_args()
    for data in options.data:
        certify_all(data, options)
    write(options.out, options.data)


def certify_all(data: str, options: argparse.Namespace) -> None:
    """The four rows of a data set, each with an attack from above, in out/<data>/rows.json."""
    folder = options.out / data
    dataset = taser.data.load(data, validation=0.1)

    def trained(name: str, recipe: str, *more: str) -> nn.Module:
        config = read_recipe(f"{data}/{recipe}", ["data.validation=0.1", *options.override, *more])
        train(config, folder / name)
        return load_trained(folder / name)

    plain, augmented = trained("plain", "standard"), trained("augmentation", "gaussian")
    taser_on = ("regulariser.name=taser", f"regulariser.sigma={SIGMA}")
    tried = {
        weight: trained(f"taser-{weight:g}", "gaussian", *taser_on, f"regulariser.weight={weight}")
        for weight in options.weights
    }
    noisy = {weight: noisy_accuracy(model, dataset) for weight, model in tried.items()}
    weight = max(noisy, key=noisy.__getitem__)
    print(f"{data}: accuracy under noise on the validation split {noisy}: λ = {weight:g}")
    denoiser = taser.scores.pretrained(data)
    rows = {}
    for row, model, front in zip(
        ROWS, (plain, plain, augmented, tried[weight]), (None, denoiser, None, None), strict=True
    ):
        found = taser.certify(
            model, dataset.test.x, dataset.test.y, sigma=SIGMA, denoiser=front, n=options.n,
            draws=options.draws, out=folder / f"certificates-{ROWS.index(row)}",
        )  # fmt: skip
        path = folder / f"attacked-{ROWS.index(row)}.json"
        if not path.exists():
            bounds = attack_smoothed(
                model, dataset.test.x, found, RADII, denoiser=front, draws=options.draws
            )
            text = json.dumps([[b.value, b.low, b.high] for b in bounds.values()])
            path.write_text(text)
        print(f"{data}, {row}: {found!r}")
        rows[row] = {
            "certified": [interval(found.accuracy(radius)) for radius in (0.0, *RADII)],
            "attacked": json.loads(path.read_text()),
            "weight": weight if "TASER" in row else None, "records": found.numbers(),
        }  # fmt: skip
    (folder / "rows.json").write_text(json.dumps(rows))


@torch.no_grad()
def noisy_accuracy(model: nn.Module, dataset: Dataset, draws: int = 16) -> float:
    """Accuracy at x + σz on the validation split, over several draws of z."""
    x, y = dataset.validation.x[:1000], dataset.validation.y[:1000]
    generator = torch.Generator().manual_seed(0)
    model = model.cpu().eval()
    right = [
        (model(x + SIGMA * torch.randn(x.shape, generator=generator)).argmax(1) == y).float().mean()
        for _ in range(draws)
    ]
    return round(float(torch.stack(right).mean()), 4)


def interval(found: Interval) -> list[float]:
    return [found.value, found.low, found.high]


def write(out: Path, names: list[str]) -> None:
    """table.md, figures.json and records.jsonl.xz of the data sets, and the table on the screen."""
    figures: dict[str, Any] = {"radii": [0.0, *RADII]}
    tables, records = [], []
    for data in names:
        rows = json.loads((out / data / "rows.json").read_text())
        settings = rows["plain"]["records"]
        tables.append(table(data, rows, settings))
        figures[data] = {
            row: {key: value for key, value in entry.items() if key != "records"}
            for row, entry in rows.items()
        }
        records += [{"data": data, "row": row, **entry["records"]} for row, entry in rows.items()]
    text = "# Certified ℓ2 accuracy\n\n" + "\n".join(tables)
    (out / "table.md").write_text(text)
    (out / "figures.json").write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")
    with lzma.open(out / "records.jsonl.xz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    print(text)


def table(data: str, rows: dict[str, Any], settings: dict[str, Any]) -> str:
    """Certified accuracy with its interval, and in brackets what the attack leaves."""
    heads = ["smoothed classifier", "right", *(f"radius {radius:g}" for radius in RADII)]
    lines = [f"| {' | '.join(heads)} |", "|:--|" + "--:|" * (len(heads) - 1)]
    for row, entry in rows.items():
        cells = [f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
                 for value, low, high in entry["certified"]]  # fmt: skip
        attacked = ["", *(f" ({100 * value:.1f})" for value, _, _ in entry["attacked"])]
        weight = f", λ = {entry['weight']:g}" if entry["weight"] else ""
        cells = [cell + above for cell, above in zip(cells, attacked, strict=True)]
        lines.append(f"| {row}{weight} | {' | '.join(cells)} |")
    return (
        f"## {data}\n\n" + "\n".join(lines) + f"\n\nσ = {settings['sigma']:g}, "
        f"n = {len(settings['y'])}, {settings['draws']} draws, α = {settings['alpha']:g}. Per cent "
        "that is right and certified at each ℓ2 radius, with its 95 % interval; in parentheses "
        "what is right under an attack of that size.\n"
    )


if __name__ == "__main__":
    main()
