"""The study of pretrained backbones on normalised representations: normalised.csv, the run table of
a comparison by `benchmarks/pretrained-normalised.yaml` (`benchmarks.results.pretrained` writes it),
beside the study's own runs. And classifiers in closed form, in which no other client has a part:
local-heads.csv, by `python -m benchmarks.local_heads`."""

from __future__ import annotations

from benchmarks.results.page import (
    BySeed,
    Page,
    Row,
    difference,
    estimate,
    percent,
    points,
)
from benchmarks.results.pretrained_federations import READS, ended, line, values
from pfedlora_flwr.methods import registry

FILE = "normalised.csv"
SAMPLES = "partition.samples-per-client"
HEADS = "local-heads.csv"
CHOOSES = "0"
"""The seed whose validation chooses, as in the study."""
KINDS = [(head, norm) for norm in ("none", "layer") for head in ("nearest class mean", "ridge")]
"""By its head and representation-norm."""


def normalised(page: Page, study: list[Row], alone_best: dict[str, BySeed]) -> None:
    """A line for each number of images, what the head sees, and each method; beside it the study's
    line of the same method.

    study: its rows, whose representations are as they are. alone_best: by the number of images what
    the best closed form reaches."""
    rows = ended(page, FILE)
    lines = []
    over = dict[str, list[str]]()
    for samples in sorted({row[SAMPLES] for row in rows}, key=int):
        for reads, title in READS.items():
            here, there = (seen_by(of, samples, reads) for of in (rows, study))
            alone = values(here, "standalone", "mean")
            for method in registry.ordered({row["method"] for row in there}):
                if plain := values(there, method, "mean"):
                    page.says(difference(plain, alone))  # what a lead of the study leaves
            for method in registry.ordered({row["method"] for row in here}):
                ours, plain = (values(of, method, "mean") for of in (here, there))
                beside = difference(ours, plain), difference(ours, alone_best[samples])
                page.says(estimate(ours), *beside)
                cells = [*line(page, here, method, alone), *map(points, beside)]
                lines.append([samples, title, registry.title(method), *cells])
                if reads == "pretrained-logits" and method != "fd":
                    over.setdefault(registry.title(method), []).append(points(beside[1]))
        best = [
            values(seen_by(rows, samples, reads), method, "mean")
            for reads, method in (
                ("pretrained-logits", "fedssa"),
                ("features", "pfedlora_plus"),
                ("pretrained-logits", "pfedlora_plus"),
                ("pretrained-logits", "lg_fedavg"),
                ("pretrained-logits", "fedrod"),
            )
        ]
        page.says(*(difference(best[0], other) for other in best[1:] if best[0] and other))
    header = ("with sharing", "`sharing=none`", "gain from sharing", "− Standalone")
    first = ("images", "the head sees", "method", "rate")
    counts = ("one image of each class", "three", "five")
    page.table("over-ridge", ("− ridge", *counts), ([name, *cells] for name, cells in over.items()))
    page.whole("normalised", (*first, *header, "− not normalised", "− ridge"), lines)


def seen_by(rows: list[Row], samples: str, reads: str) -> list[Row]:
    """The rows with so many images a client whose heads see `reads`."""
    return [row for row in rows if row[SAMPLES] == samples and row["representation"] == reads]


def local_heads(page: Page, study: list[Row]) -> dict[str, BySeed]:
    """What closed forms reach alone, and what the study's methods lead the best of them by: that
    one, by the number of images."""
    rows = page.rows(HEADS)
    counts = sorted({row["samples"] for row in rows}, key=int)
    shown, best = [], dict[str, tuple[float, BySeed, str]]()
    for samples in counts:
        for reads, title in READS.items():
            plain = values(seen_by(study, samples, reads), "standalone", "mean")
            cells = [percent(estimate(plain))]
            for head, norm in KINDS:
                where = {"samples": samples, "representation": reads, "head": head, "norm": norm}
                validation, found = _chosen([row for row in rows if where.items() <= row.items()])
                page.says(estimate(found), difference(found, plain))
                cells.append(percent(estimate(found)))
                one = validation, found, f"{reads}, {named(head, norm)}"
                best[samples] = max(best.get(samples, one), one, key=lambda each: each[0])
            shown.append([samples, title, *cells])
    assert {name for _, _, name in best.values()} == {"features, ridge, normalised"}, "page says so"
    methods = registry.ordered({row["method"] for row in study} - {"standalone"})
    leads = []
    for reads, title in READS.items():
        for method in methods:
            over = [
                difference(values(seen_by(study, samples, reads), method, "mean"), best[samples][1])
                for samples in counts
            ]
            page.says(*over)
            leads.append([title, registry.title(method), *map(points, over)])
    header = [named(*kind) for kind in KINDS]
    page.whole("local-heads", ("images", "the head sees", "Standalone", *header), shown)
    page.whole("left", ("the head sees", "method", *(f"{n} images" for n in counts)), leads)
    return {samples: found for samples, (_, found, _) in best.items()}


def named(head: str, norm: str) -> str:
    return f"{head}, normalised" if norm == "layer" else head


def _chosen(rows: list[Row]) -> tuple[float, BySeed]:
    """Of a head's candidates the best validation accuracy, and the accuracies by seed."""
    best = max(
        (row for row in rows if row["seed"] == CHOOSES), key=lambda row: float(row["validation"])
    )
    same = [row for row in rows if row["alpha"] == best["alpha"]]
    return float(best["validation"]), {row["seed"]: float(row["accuracy"]) for row in same}
