"""Certified ℓ2 accuracy: an untouched network, a denoiser in front, Gaussian augmentation, TASER.

    python experiments/certified.py digits fashion-mnist cifar10 --out out/certified

For each data set, σ and seed four smoothed classifiers are certified: the network of the recipe
<data>/standard; the same with the shipped denoiser in front; that of <data>/gaussian; and that with
TASER (form "noised"), whose λ is chosen on the validation split with the first seed. Killed and
started again, it resumes; several processes may share the folder.
"""

import argparse
import json
import lzma
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

import taser
from taser._files import write_atomically
from taser.data import Dataset
from taser.evaluation import Certificates, attack_smoothed, read_certificates
from taser.evaluation._statistics import (
    Interval,
    accuracy_interval,
    difference_interval,
    retrained_interval,
)
from taser.training import load_trained, read_recipe, train

ROWS = ("plain", "plain + denoiser", "augmentation", "augmentation + TASER")
SEEDED = ROWS[2:]  # certified for each seed; the others for the first


ATTACK: dict[str, Any] = {"steps": 10, "gradient_draws": 8, "draws": 1000}
CHEAP: dict[str, Any] = {"steps": 5, "gradient_draws": 4, "draws": 400}


@dataclass(frozen=True)
class Study:
    """What is done on a data set; keys: of its recipes, taser: of those with TASER."""

    sigmas: tuple[float, ...]
    radii: tuple[float, ...]
    weights: tuple[float, ...]
    seeds: int = 1
    draws: int = 10_000
    keys: tuple[str, ...] = ()
    taser: tuple[str, ...] = ()
    attack: dict[str, Any] = field(default_factory=lambda: dict(ATTACK))


STUDIES = {
    "digits": Study((0.25, 0.5), (0.25, 0.5, 0.75, 1.0), (0.003, 0.01, 0.03, 0.1), seeds=3),
    "fashion-mnist": Study(
        (0.25,), (0.25, 0.5, 0.75, 1.0), (0.01,), draws=1000,
        keys=("data.examples=20000",), taser=("regulariser.every=2",), attack=CHEAP,
    ),
    "cifar10": Study(
        (0.12, 0.25), (0.125, 0.25, 0.375, 0.5), (0.01,), draws=1000,
        keys=("model.width=8", "data.examples=5000"), taser=("regulariser.every=4",),
        attack=CHEAP,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Networks:
    """Trains the networks of a data set, or reads those that are trained."""

    data: str
    study: Study
    folder: Path
    override: tuple[str, ...]

    def get(self, recipe: str, name: str, seed: int, *keys: str) -> nn.Module:
        more = (
            "data.validation=0.1",
            f"loop.seed={seed}",
            "loop.threads=1",
            *self.study.keys,
            *keys,
        )
        config = read_recipe(f"{self.data}/{recipe}", [*more, *self.override])
        train(config, self.folder / f"{name}-seed{seed}")
        return load_trained(self.folder / f"{name}-seed{seed}").cpu().eval()

    def plain(self, seed: int) -> nn.Module:
        return self.get("standard", "plain", seed)

    def augmented(self, sigma: float, seed: int) -> nn.Module:
        return self.get("gaussian", f"augmented-{sigma:g}", seed, f"objective.sigma={sigma}")

    def with_taser(self, sigma: float, weight: float, seed: int) -> nn.Module:
        keys = (
            f"objective.sigma={sigma}", f"regulariser.sigma={sigma}", "regulariser.name=taser",
            f"regulariser.weight={weight}", *self.study.taser,
        )  # fmt: skip
        return self.get("gaussian", f"taser-{sigma:g}-{weight:g}", seed, *keys)

    def weight(self, sigma: float, dataset: Dataset) -> float:
        """The λ with the most vote on the validation split, over the first seed's networks."""
        path = self.folder / f"weights-{sigma:g}.json"
        if not path.exists():
            found = {
                str(weight): validated(self.with_taser(sigma, weight, 0), sigma, dataset)
                for weight in self.study.weights
            }
            found["0"] = validated(self.augmented(sigma, 0), sigma, dataset)  # for the record
            write_atomically(path, json.dumps(found) + "\n")
        found = json.loads(path.read_text())
        print(f"{self.data}, σ = {sigma:g}, validation: {found}", flush=True)
        return max(self.study.weights, key=lambda weight: found[str(weight)])


@torch.no_grad()
def validated(model: nn.Module, sigma: float, dataset: Dataset, draws: int = 64) -> float:
    """Mean over radii σ/2, σ, 3σ/2 of the share whose right class has Φ(radius/σ) of the draws."""
    x, y = dataset.validation.x[:1000], dataset.validation.y[:1000]
    generator = torch.Generator().manual_seed(0)
    right = torch.zeros(len(y))
    for _ in range(draws):
        z = torch.randn(x.shape, generator=generator)
        noisy = (x + sigma * z).split(250)
        right += (torch.cat([model(part) for part in noisy]).argmax(1) == y).float()
    wanted = [NormalDist().cdf(radius) for radius in (0.5, 1.0, 1.5)]
    return round(sum(float((right / draws >= p).float().mean()) for p in wanted) / 3, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", choices=STUDIES)
    parser.add_argument("--out", type=Path, default=Path("out/certified"))
    parser.add_argument("-n", type=int, default=300, help="test examples")
    parser.add_argument("--draws", type=int, help="at most, of noise for each example")
    parser.add_argument("--override", nargs="+", default=[], help="keys of the recipes")
    parser.add_argument("--train-only", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for data in options.data:
        study_data(data, options)
    if not options.train_only:
        write(options.out, options.data)


def study_data(data: str, options: argparse.Namespace) -> None:
    """Train, certify and attack the four rows at each σ."""
    study, folder = STUDIES[data], options.out / data
    networks = Networks(data, study, folder, tuple(options.override))
    dataset = taser.data.load(data, validation=0.1)
    for seed in range(study.seeds):
        for sigma in study.sigmas:
            weight = networks.weight(sigma, dataset)
            plain = networks.plain(seed)
            models = (plain, plain, networks.augmented(sigma, seed),
                      networks.with_taser(sigma, weight, seed))  # fmt: skip
            for row, model in zip(ROWS, () if options.train_only else models, strict=False):
                if seed and row not in SEEDED:
                    continue
                found = certify(
                    row,
                    model,
                    sigma,
                    study,
                    dataset,
                    data,
                    options,
                    folder / f"certificates-{sigma:g}-{ROWS.index(row)}-seed{seed}",
                )
                print(f"{data}, σ = {sigma:g}, seed {seed}, {row}: {found!r}", flush=True)


def certify(
    row: str, model: nn.Module, sigma: float, study: Study, dataset: Dataset, data: str,
    options: argparse.Namespace, out: Path,
) -> Certificates:  # fmt: skip
    """The certificates of one row, and next to them accuracy under attack."""
    denoiser = taser.scores.pretrained(data) if "denoiser" in row else None
    x, y = dataset.test.x, dataset.test.y
    found = taser.certify(
        model, x, y, sigma=sigma, denoiser=denoiser, n=options.n, radii=study.radii, out=out,
        draws=options.draws or study.draws,
    )  # fmt: skip
    path = out / "attacked.json"
    if not path.exists():
        bounds = attack_smoothed(model, x, found, study.radii, denoiser=denoiser, **study.attack)
        numbers = {str(radius): right.int().tolist() for radius, right in bounds.items()}
        write_atomically(path, json.dumps(numbers) + "\n")
    return found


def write(out: Path, names: list[str]) -> None:
    """table.md, figures.json, records.jsonl.xz and a picture of each data set."""
    figures: dict[str, Any] = {}
    text = ["# Certified ℓ2 accuracy", ""]
    with lzma.open(out / "records.jsonl.xz", "wt", encoding="utf-8") as file:
        for data in names:
            study = STUDIES[data]
            text.append(f"## {data}\n")
            figures[data] = {}
            for sigma in study.sigmas:
                found = {row: read_row(out / data, sigma, row, study.seeds) for row in ROWS}
                for row, runs in found.items():
                    for seed, (record, attacked) in enumerate(runs):
                        entry: dict[str, Any] = {
                            "run": f"{data} {sigma:g} {row} {seed}",
                            "dataset": data,
                            "row": row,
                        }
                        entry |= {"network": seed, **record.numbers()}
                        file.write(json.dumps({**entry, "attacked": attacked}) + "\n")
                weights = json.loads((out / data / f"weights-{sigma:g}.json").read_text())
                figures[data][f"{sigma:g}"] = of_sigma(found, study, weights)
                text.append(table(sigma, figures[data][f"{sigma:g}"], study))
            text.append(settings_of(found[ROWS[0]][0][0], study))
            picture(figures[data], study).savefig(out / f"{data}.png", dpi=150)
    (out / "table.md").write_text("\n".join(text))
    (out / "figures.json").write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")
    print("\n".join(text))


Run = tuple[Certificates, dict[str, list[int]]]


def read_row(folder: Path, sigma: float, row: str, seeds: int) -> list[Run]:
    """For each seed its certificates, and at each radius which examples the attack leaves right."""
    runs = []
    for seed in range(seeds if row in SEEDED else 1):
        out = folder / f"certificates-{sigma:g}-{ROWS.index(row)}-seed{seed}"
        runs.append((read_certificates(out), json.loads((out / "attacked.json").read_text())))
    return runs


def of_sigma(
    found: dict[str, list[Run]], study: Study, weights: dict[str, float]
) -> dict[str, Any]:
    """Intervals of each row at each radius, and of TASER's gain over augmentation alone."""
    columns = (0.0, *study.radii)
    rows: dict[str, Any] = {}
    verdicts = {
        row: {r: [record.certified(r) for record, _ in runs] for r in columns}
        for row, runs in found.items()
    }
    for row, runs in found.items():
        rows[row] = {
            "certified": [numbers(accuracy_interval(torch.stack(verdicts[row][r])))
                          for r in columns],
            "attacked": [
                numbers(accuracy_interval(torch.tensor([a[str(r)] for _, a in runs]).bool()))
                for r in columns
            ],
            "abstained": [record.abstained for record, _ in runs],
            "draws": [float(record.drawn.double().mean()) for record, _ in runs],
        }  # fmt: skip
    gains = []
    for r in columns:
        first, second = (verdicts[row][r] for row in (ROWS[3], ROWS[2]))
        between = (
            retrained_interval if len(first) > 1 else lambda a, b: difference_interval(a[0], b[0])
        )
        gains.append(numbers(between(first, second)))
    weight = max(study.weights, key=lambda weight: weights[str(weight)])
    return {"classifiers": rows, "gain": gains, "weight": weight, "validation": weights}


def numbers(found: Interval) -> list[float]:
    return [found.value, found.low, found.high]


def percent(found: list[float], sign: str = "") -> str:
    value, low, high = (100 * number for number in found)
    return f"{value:{sign}.1f} [{low:.1f}, {high:.1f}]"


def table(sigma: float, found: dict[str, Any], study: Study) -> str:
    """Certified accuracy with its interval, and in parentheses what the attack leaves."""
    heads = [f"σ = {sigma:g}", "right", *(f"radius {radius:g}" for radius in study.radii)]
    lines = [f"| {' | '.join(heads)} |", "|:--|" + "--:|" * (len(heads) - 1)]
    for row, entry in found["classifiers"].items():
        pairs = zip(entry["certified"], entry["attacked"], strict=True)
        cells = [f"{percent(low)} ({100 * high[0]:.1f})" for low, high in pairs]
        weight = f", λ = {found['weight']:g}" if row == ROWS[3] else ""
        lines.append(f"| {row}{weight} | {' | '.join(cells)} |")
    gains = [percent(gain, "+") for gain in found["gain"]]
    lines.append(f"| TASER's gain | {' | '.join(gains)} |")
    return "\n".join(lines) + "\n"


def settings_of(record: Certificates, study: Study) -> str:
    settings, seeds = record.settings, "one seed" if study.seeds == 1 else f"{study.seeds} seeds"
    gain = (
        "over other examples and other seeds" if study.seeds > 1 else "paired, over other examples"
    )
    return (
        f"n = {len(record.y)} test images, augmentation with {seeds}, at most "
        f"{settings['draws']:,} draws, α = {settings['alpha']:g}. Per cent that is right and "
        "certified at each ℓ2 radius, with its 95 % interval; in parentheses what an ℓ2 attack on "
        "the smoothed classifier leaves, the bound from above. TASER's gain: in points over "
        f"augmentation, {gain}.\n"
    )


def picture(found: dict[str, Any], study: Study) -> Figure:
    """For each σ the two bounds of each row over the radius."""
    figure = Figure(figsize=(4 * len(found), 4), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (sigma, entry) in zip(panels, found.items(), strict=True):
        at = [0.0, *study.radii]
        for number, (row, of_row) in enumerate(entry["classifiers"].items()):
            low, high = (100 * torch.tensor(of_row[k])[:, 0] for k in ("certified", "attacked"))
            axes.plot(at, low, "o-", color=f"C{number}", markersize=4, label=row)
            axes.plot(at, high, "v--", color=f"C{number}", markersize=4, alpha=0.6)
        axes.set(title=f"σ = {sigma}", xlabel="ℓ2 radius", ylabel="right (%)", ylim=(0, 102))
    panels[0].legend(frameon=False, fontsize="small")
    return figure


if __name__ == "__main__":
    main()
