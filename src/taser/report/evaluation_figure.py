"""Pictures of an evaluation: what broke the model, and how accuracy falls with ε."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from taser.evaluation import Evaluation
from taser.evaluation.curve import Curve

SHOWN = 8


def draw_examples(evaluation: Evaluation, x: Tensor, answers: Tensor) -> Figure | None:
    """The first examples that were broken: clean, attacked, difference; None if none was.

    x: (n, C, H, W), clean; answers: (n,), the model's answers to the attacked inputs.
    """
    broken = (evaluation.clean & ~evaluation.standing).nonzero()[:SHOWN, 0]
    if evaluation.attacked is None or len(broken) == 0:
        return None
    figure = Figure(figsize=(1.2 * SHOWN, 4.2), layout="constrained")
    grid = figure.subplots(3, SHOWN, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for column, row in zip(grid.T, broken.tolist(), strict=False):
        clean, attacked = x[row].cpu(), evaluation.attacked[row]
        change = centred((attacked - clean)[None])[0]
        column[0].set_title(str(int(evaluation.y[row])), fontsize=10)
        for axes, image in zip(column, (clean, attacked, change), strict=True):
            _show(axes, image)
        column[1].set_title(str(int(answers[row])), fontsize=10)
        distance = float(evaluation.threat.distance(attacked[None], clean[None]))
        column[2].set_title(f"{distance:.3g}", fontsize=10)
    return figure


def centred(field: Tensor) -> Tensor:
    """Signed fields as images, zero at 0.5 and each as bright as it can be shown: (B, C, H, W)."""
    size = field.abs().flatten(1).amax(1).clamp_min(1e-12).view(-1, 1, 1, 1)
    return 0.5 + field / (2 * size)


def _show(axes: Axes, image: Tensor) -> None:
    channels = image.clamp(0, 1).permute(1, 2, 0)
    gray = channels.shape[2] not in (3, 4)
    axes.imshow((channels.mean(2) if gray else channels).numpy(), cmap="gray", vmin=0, vmax=1)


def draw_curve(curve: Curve, evaluation: Evaluation) -> Figure:
    """Accuracy over ε, with the figures of the evaluation at its own ε."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve.epsilons, [100 * a for a in curve.accuracies], "o-", label=curve.attack)
    at = evaluation.threat.epsilon
    axes.axvline(at, color="0.5", linestyle="--")
    for name, verdicts in evaluation.attacks.items():
        axes.plot([at], [100 * verdicts.accuracy], "*", markersize=11, label=name)
    axes.set(xlabel="ε", ylabel="accuracy, %", ylim=(-2, 102))
    axes.legend(frameon=False)
    return figure
