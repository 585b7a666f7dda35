"""Pretrained backbones in other federations: federations.csv, the run table of a comparison by
`benchmarks/pretrained-partitions.yaml`, and rows-samples.csv; `benchmarks.results.pretrained`
writes both."""

from __future__ import annotations

from benchmarks.results.page import (
    BySeed,
    Page,
    Row,
    by_seed,
    difference,
    estimate,
    operations,
    percent,
    points,
)
from pfedlora_flwr.methods import registry

FILE = "federations.csv"
SAMPLES = "rows-samples.csv"
"""pFedLoRA+ with `adapter.rows=samples`, tested on all classes."""
FLOPS = "flops"
"""The operations of a run, in these run tables."""
READS = {"features": "features", "pretrained-logits": "logits"}
NAMES = {
    ("3", "iid"): "own-backbones",
    ("10", ""): "own-classes",
    ("100", "dirichlet"): "dirichlet",
    ("100", "iid"): "all-classes",
}
"""By the number of clients and `partition.kind`: the table's name."""
TITLES = {
    "dirichlet": "Dirichlet, one image of each of about 30 classes",
    "own-backbones": "three clients, each with its own backbone",
    "all-classes": "tested mostly on classes without an image",
    "own-classes": "ten clients whose classes nobody else holds",
}
COMPARED = [
    *(("pretrained-logits", method) for method in ("fedssa", "lg_fedavg", "fedrod")),
    ("features", "pfedlora_plus"),
]
"""What the head sees, and the method."""


def ended(page: Page, name: str) -> list[Row]:
    """The rows of the runs that came to their end."""
    return [row for row in page.rows(name) if row["final"]]


def federations(page: Page) -> None:
    """A table for each federation: what each method gains, on features and on logits."""
    every = ended(page, FILE)
    shown = [_gains("CIFAR-10, two images of each of five classes", ended(page, "cifar10.csv"))]
    for federation in sorted({_federation(row) for row in every}, key=[*NAMES].index):
        rows = [row for row in every if _federation(row) == federation]
        lines = list[list[str]]()
        for reads, title in READS.items():
            here = [row for row in rows if row["representation"] == reads]
            alone = values(here, "standalone", "mean")
            page.says(*operations(here, FLOPS).values())
            if plain := values(here, "lg_fedavg", "mean"):
                page.says(difference(values(here, "fedssa", "mean"), plain))
            for method in registry.ordered({row["method"] for row in here}):
                lines.append([title, registry.title(method), *line(page, here, method, alone)])
        header = ("with sharing", "`sharing=none`", "gain from sharing", "− Standalone")
        best = values(rows, "pfedlora_plus", "mean", representation="features")
        page.says(
            difference(best, values(rows, "fedssa", "mean", representation="pretrained-logits"))
        )
        page.whole(NAMES[federation], ("the head sees", "method", "rate", *header), lines)
        shown.append(_gains(TITLES[NAMES[federation]], rows))
    compared = (f"{registry.title(method)} on {READS[reads]}" for reads, method in COMPARED)
    page.table("federations", ("gain from sharing", *compared), shown)


def _gains(title: str, rows: list[Row]) -> list[str]:
    """A federation's line: what the methods of COMPARED gain."""
    found = (
        [values(rows, method, kind, representation=reads) for kind in ("mean", "none")]
        for reads, method in COMPARED
    )
    return [title, *(points(difference(mean, none)) for mean, none in found)]


def all_rows_averaged(page: Page) -> None:
    """pFedLoRA+ that averages all rows, where clients are tested on all classes."""
    every = [row for row in ended(page, FILE) if _federation(row) == ("100", "iid")]
    lines = []
    for reads, title in READS.items():
        mine = [row for row in ended(page, SAMPLES) if row["representation"] == reads]
        rows = by_seed(mine, "final")
        leads = [
            difference(rows, values(every, method, "mean", representation=reads))
            for method in ("standalone", "pfedlora_plus", "lg_fedavg")
        ]
        logits = values(every, "lg_fedavg", "mean", representation="pretrained-logits")
        page.says(*leads, difference(rows, logits))
        cells = percent(estimate(rows)), *map(points, leads)
        lines.append([title, "; ".join(dict.fromkeys(row["lr"] for row in mine)), *cells])
    header = ("− Standalone", "− pFedLoRA+ with rows by class", "− LG-FedAvg")
    page.whole("rows-samples", ("the head sees", "rate", "with sharing", *header), lines)


def _federation(row: Row) -> tuple[str, str]:
    return row["clients"], row["partition.kind"]


def line(page: Page, rows: list[Row], method: str, alone: BySeed) -> list[str]:
    """The cells of a method's line: rates, accuracies, gain from sharing, where its control was
    run, and lead over Standalone.

    rows: of what the head sees, with Standalone's."""
    ours = [row for row in rows if row["method"] == method]
    by_kind = [{_rate(row) for row in ours if row["sharing"] == kind} for kind in ("mean", "none")]
    rates = dict.fromkeys(rate for kind in by_kind for rate in kind)
    assert all(len(kind) <= 1 for kind in by_kind), f"{method}: several rates in one cell"
    mean, none = (values(rows, method, kind) for kind in ("mean", "none"))
    cells = ["; ".join(rates), percent(estimate(mean))]
    if method == "standalone":
        page.says(estimate(mean))
        return [*cells, "", "", ""]
    lead = difference(mean, alone)
    page.says(lead)
    assert mean.keys() == alone.keys(), f"{method}: seeds differ"
    if not none:  # FD without sharing is Standalone, by construction
        return [*cells, "= Standalone" if method == "fd" else "", "", points(lead)]
    gain = difference(mean, none)
    page.says(gain, difference(none, alone))
    assert mean.keys() == none.keys(), f"{method}: seeds differ"
    return [*cells, percent(estimate(none)), points(gain), points(lead)]


def _rate(row: Row) -> str:
    """The clients' rate and, where it has one, the server's."""
    return ", ".join(filter(None, (row["lr"], row.get("fedgh.server-lr"))))


def values(rows: list[Row], method: str, sharing: str, **where: str) -> BySeed:
    """A method's accuracies after the last round by seed."""
    return by_seed(rows, "final", method=method, sharing=sharing, **where)
