"""The README's picture, of the run tables of three pages: points over local training, with the
others and without them. On light and on dark ground."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import leaderboard, normalised, one_round, sensitivity
from benchmarks.results.page import Page, by_seed, difference, estimate, signed
from benchmarks.results.pretrained_federations import READS, ended, values
from benchmarks.results.pretrained_normalised import local_heads
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import style
from pfedlora_flwr.report.measures import Estimate

SAMPLES = "10"
"""Training images of a client: one of each of its classes."""
PRETRAINED = ("pfedlora_plus", "fedssa", "lg_fedavg", "fedrod", "fedgh", "fd")
COUNT = "at_best_validation"
NOTE = (
    "● with the others   ○ the same method without them   □ a local classifier, no federation"
    "   bars: 95 % intervals"
)


@dataclass(frozen=True)
class Theme:
    """The colours of a picture, after Okabe and Ito."""

    name: str
    ground: str
    text: str
    quiet: str
    method: str
    local: str


THEMES = (
    Theme("light", "#ffffff", "#1f2328", "#59636e", "#0072B2", "#6b7480"),
    Theme("dark", "#0d1117", "#e6edf3", "#9198a1", "#56B4E9", "#9aa4af"),
)


@dataclass(frozen=True)
class Line:
    """A method's lead over local training, and that of the same method without the others; None: a
    local classifier, of which there is nothing else."""

    name: str
    lead: Estimate
    without: float | None


def make(page: Page) -> None:
    """page: of the index of all results."""
    panels = {
        "Pretrained backbones, one image per class": (
            "100 clients, 3 backbones, CIFAR-100, 5 seeds, tuned",
            _sorted(pretrained(page)),
        ),
        "From scratch, 60 rounds": (
            "100 clients, 5 CNNs, CIFAR-100, 3 seeds, untuned",
            _sorted(from_scratch(page)),
        ),
    }
    for theme in THEMES:
        page.picture(f"found-{theme.name}.svg", partial(draw, panels, theme))


def _sorted(lines: Iterator[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: line.lead.mean)


def pretrained(page: Page) -> Iterator[Line]:
    """Each method on features or logits, on which it ends highest, over Standalone on the same; and
    the best local classifier, which reads features."""
    study = Page(page.folder / "pretrained")
    rows = ended(study, "runs.csv")
    here = [row for row in rows if row["partition.samples-per-client"] == SAMPLES]

    def of(reads: str, method: str, sharing: str = "mean") -> dict[str, float]:
        found = [row for row in here if row["representation"] == reads]
        return dict(values(found, method, sharing))

    for method in PRETRAINED:
        reads = max(READS, key=lambda reads: estimate(of(reads, method)).mean)
        alone = of(reads, "standalone")
        none = of(reads, method, "none") or alone
        name = f"{registry.title(method)} on {READS[reads]}"
        lead = difference(of(reads, method), alone)
        yield Line(name, lead, difference(none, alone).mean)
    closed = Page(page.folder / "one-round").rows(one_round.CLOSED)
    lda, itself = (one_round.chosen(closed, SAMPLES, sharing=kind) for kind in ("mean", "none"))
    alone = of(one_round.LOGITS, "standalone")
    yield Line("FedLDA, one round", difference(lda, alone), difference(itself, alone).mean)
    ridge = local_heads(study, rows)[SAMPLES]
    yield Line("ridge regression", difference(ridge, of("features", "standalone")), None)


def from_scratch(page: Page) -> Iterator[Line]:
    """The leaderboard's methods, pFedLoRA with two values of μ, and a local classifier."""
    runs = Page(page.folder / "leaderboard").rows("runs.csv")
    of = partial(by_seed, runs, COUNT)
    alone = of(method="standalone", sharing="mean")
    for method in leaderboard.METHODS[1:]:
        none = of(method=method, sharing="none") or alone
        name = registry.title(method) + (", μ = 0.5" if method == "pfedlora" else "")
        lead = difference(of(method=method, sharing="mean"), alone)
        yield Line(name, lead, difference(none, alone).mean)
    table = sensitivity.Table(Page(page.folder / "sensitivity").rows("points.csv"), runs)
    mean, none = (
        table.accuracies(COUNT, "pfedlora", kind, "60", "0.9", "60") for kind in ("mean", "none")
    )
    yield Line("pFedLoRA, μ = 0.9", difference(mean, alone), difference(none, alone).mean)
    yield Line("normalised features", normalised.lead_on_board(), None)


def draw(panels: Mapping[str, tuple[str, Sequence[Line]]], theme: Theme, folder: Path) -> Path:
    with style.drawing(1, len(panels), (8.6, 3.2)) as (figure, axes):
        figure.set_facecolor(theme.ground)
        for axis, (title, (told, lines)) in zip(axes[0], panels.items(), strict=True):
            _panel(axis, lines, theme)
            axis.set_title(f"{title}\n", loc="left", weight="bold", color=theme.text, fontsize=9)
            axis.text(0, 1.03, told, transform=axis.transAxes, color=theme.quiet, fontsize=7)
            axis.set_xlabel("points over local training", color=theme.quiet)
        figure.supxlabel(NOTE, color=theme.quiet, fontsize=7.5)
        path = folder / f"found-{theme.name}.svg"
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path


def _panel(axis: Any, lines: Sequence[Line], theme: Theme) -> None:
    axis.set_facecolor(theme.ground)
    axis.axvline(0, color=theme.text, linewidth=1)
    for at, line in enumerate(lines):
        mean, half = 100 * line.lead.mean, 100 * (line.lead.half or 0)
        local = line.without is None
        colour = theme.local if local else theme.method
        axis.errorbar(
            mean,
            at,
            xerr=half,
            color=colour,
            marker="s" if local else "o",
            markerfacecolor=theme.ground if local else colour,
            markersize=5,
            zorder=4,
        )
        ends = [mean - half, mean + half]
        if line.without is not None:
            none = 100 * line.without
            axis.plot([none, mean], [at, at], color=colour, alpha=0.3, linewidth=3.5)
            axis.plot(none, at, "o", color=colour, markerfacecolor=theme.ground, zorder=3)
            ends.append(none)
        left = mean < 0
        axis.annotate(
            signed(mean, 1),
            (min(ends) if left else max(ends), at),
            xytext=(-5 if left else 5, 0),
            textcoords="offset points",
            horizontalalignment="right" if left else "left",
            verticalalignment="center",
            color=theme.quiet,
            fontsize=7,
        )
    axis.set_yticks(range(len(lines)), [line.name for line in lines], color=theme.text)
    axis.tick_params(length=0, labelcolor=theme.text)
    axis.tick_params(axis="x", labelcolor=theme.quiet)
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.14)
    axis.set_ylim(-0.6, len(lines) - 0.4)
    for spine in axis.spines.values():
        spine.set_visible(False)
