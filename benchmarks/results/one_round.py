"""One round of sums in the study of pretrained backbones. runs.csv: the run tables of comparisons
by `benchmarks/one-round.yaml` and its kin. closed.csv: the same and further federations by other
code, `benchmarks/pooled_lda.py`, whose test accuracies the runs' must equal. The partitions are the
study's, seed by seed (by their hashes), so differences to its runs are paired. rounds.csv: the
accuracies of methods that train, after each round that was evaluated.

    python -m benchmarks.results.one_round FEDERATION=FOLDER… [--rounds FOLDER…]

takes the tables of such comparisons. FEDERATION: a name as in closed.csv, `text`, or `auto` for
those that the study names."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean

from benchmarks.results.page import (
    RESULTS,
    BySeed,
    Page,
    Row,
    by_seed,
    difference,
    each_round,
    estimate,
    percent,
    points,
    write_csv,
)
from benchmarks.results.pretrained_federations import FILE as FEDERATIONS
from benchmarks.results.pretrained_federations import NAMES, TITLES, ended, values
from benchmarks.results.pretrained_normalised import CHOOSES, SAMPLES, local_heads, seen_by
from benchmarks.results.pretrained_normalised import FILE as NORMALISED
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.fedlda import FedLDA
from pfedlora_flwr.report import style
from pfedlora_flwr.report.measures import Estimate

FILE, CLOSED, ROUNDS = "runs.csv", "closed.csv", "rounds.csv"
ANCHORED = "anchors:cifar10-1000"
"""The coordinates by the anchors of the table: their dataset and their number."""
CLASSES = 10
"""That a client holds."""
VISITS = 100
"""That send sums: one of each client."""
USUAL = {
    "federation": "classes",
    "representation": "pretrained-logits",
    "sharing": "mean",
    "sums.correction": "none",
    "sums.priors": "equal",
    "dp.epsilon": "",
    "sums.dim": "",
    "sums.dp-moment": "",
    SAMPLES: "600",
}
"""What a run table does not say. 600: all that a Dirichlet client has."""
TUNED = "sums.dim", "sums.shrinkage", "sums.dp-moment"
COLUMNS = (*USUAL, "sums.shrinkage", "method", "seed", "final", "parameters_up", "partition")
OF_ROUND = "method", "seed", "round", "accuracy"
BEGUN = "benchmarks.begun_from_sums:BegunFromSums"
LOGITS = "pretrained-logits"
RIDGE, FEDSSA = "ridge regression, a client alone", "FedSSA, 40 rounds"
LDA, ANCHORS = "FedLDA, one round, on logits", "… on features mapped by anchors"
ROUNDING = 1e-4
"""Between two computations: a test image of a hundred clients'."""
Lines = dict[str, BySeed]


def make(page: Page) -> None:
    study = Page(RESULTS / "pretrained")
    every, closed = ended(page, FILE), page.rows(CLOSED)
    large = [row for row in every if (row["federation"], row[SAMPLES]) == ("classes", "200")]
    where = {"federation": "classes", "sums.dim": ""}
    rows = [row for row in every if where.items() <= row.items() and row not in large]
    page.says(difference(by_seed(large, "final"), chosen(closed, "200")))
    plain = ended(study, "runs.csv")
    local = local_heads(study, plain)
    others = ended(study, NORMALISED)
    found: dict[str, Lines] = {}
    gains: dict[str, Estimate] = {}
    _check_same(every, closed)
    for samples in sorted({row[SAMPLES] for row in rows}, key=int):
        here = [row for row in rows if row[SAMPLES] == samples]
        there = seen_by(others, samples, LOGITS)
        _check_partitions(here, there)
        ours, alone = (chosen(closed, samples, sharing=kind) for kind in ("mean", "none"))
        gains[samples] = difference(ours, alone)
        anchors = chosen(closed, samples, coordinates=ANCHORED)
        fedssa = values(there, "fedssa", "mean")
        found[samples] = {RIDGE: local[samples], FEDSSA: fedssa, LDA: ours, ANCHORS: anchors}
        page.says(*map(estimate, (ours, alone, anchors)), difference(anchors, fedssa))
        page.says(difference(ours, anchors), difference(ours, local[samples]))
        trained = values(seen_by(plain, samples, LOGITS), "standalone", "mean")
        page.says(difference(ours, trained))
    _table(page, found, gains)
    _default(page, closed)
    _others(page, closed)
    _federations(page, study, closed)
    _dirichlet(page, every, closed)
    _text(page, every)
    _private(page, every, found)
    _rounds(page, every, found)
    page.picture("anchors.png", lambda folder: draw_anchors(page, closed, folder))
    _correction(page, rows)
    page.says(*{int(row["parameters_up"]) // VISITS for row in rows if row["parameters_up"]})
    drawn = found | _many(page, closed, found)
    page.picture("one-round.png", lambda folder: draw(drawn, folder))


def chosen(
    rows: list[Row],
    samples: str,
    *,
    federation: str = "classes",
    coordinates: str = LOGITS,
    head: str = "lda",
    sharing: str = "mean",
    asked: str = "held",
) -> BySeed:
    """Test accuracies by seed, with the strength of the best validation accuracy on the first."""
    where = {"federation": federation, "samples": samples, "coordinates": coordinates}
    where |= {"head": head, "sharing": sharing, "asked": asked}
    here = [row for row in rows if where.items() <= row.items()]
    of_first = (row for row in here if row["seed"] == CHOOSES)
    best = max(of_first, key=lambda row: float(row["validation"]))
    same = (row for row in here if row["strength"] == best["strength"])
    return {row["seed"]: float(row["test"]) for row in same}


def _check_partitions(ours: list[Row], theirs: list[Row]) -> None:
    hashes = [{row["seed"]: row["partition"] for row in rows} for rows in (ours, theirs)]
    assert hashes[0].items() <= hashes[1].items(), "the partitions are not the study's"


def _check_same(runs: list[Row], closed: list[Row]) -> None:
    """Asserts that every run ends with the accuracy that the other code computes."""
    names = ("federation", "samples", "coordinates", "sharing", "seed", "strength")
    there = {
        tuple(row[name] for name in names): float(row["test"])
        for row in closed
        if row["head"] == "lda" and row["asked"] == "held"
    }
    same = {"sums.correction": "none", "sums.priors": "equal", "dp.epsilon": ""}
    for row in runs:
        there_too = row["federation"] != "text" and not row["sums.dim"]
        if there_too and same.items() <= row.items():
            at = row["federation"], row[SAMPLES], row["representation"], row["sharing"]
            wanted = there[*at, row["seed"], row["sums.shrinkage"]]
            assert abs(float(row["final"]) - wanted) < ROUNDING, f"two computations differ: {at}"


def runs_of(rows: list[Row], **where: str) -> BySeed:
    """Their accuracies by seed, with what was chosen on the first: it has runs of all seeds."""
    here = [row for row in rows if where.items() <= row.items()]
    counts = Counter(tuple(row[key] for key in TUNED) for row in here)
    best = max(counts, key=lambda key: counts[key])
    return by_seed((row for row in here if tuple(row[key] for key in TUNED) == best), "final")


def _default(page: Page, closed: list[Row]) -> None:
    """What the default shrinkage loses with one image a class."""
    where = {"federation": "classes", "samples": "10", "coordinates": LOGITS, "sharing": "mean"}
    usual = where | {"asked": "held", "strength": FedLDA.usual}
    at = {k: str(v) for k, v in usual.items()}
    page.says(difference(chosen(closed, "10"), by_seed(closed, "test", **at)))
    page.settings(*(f"{s:g}" for s in (0.9, 0.8, 0.65, FedLDA.usual)))


def _correction(page: Page, rows: list[Row]) -> None:
    """What the private ridge adds, by runs with the same shrinkage."""
    for samples in {row[SAMPLES] for row in rows}:
        ridge = [
            row for row in rows if (row[SAMPLES], row["sums.correction"]) == (samples, "ridge")
        ]
        same = {row["sums.shrinkage"] for row in ridge}
        plain = [row for row in rows if row[SAMPLES] == samples and row["sums.shrinkage"] in same]
        none = values(plain, "fedlda", "mean", **{"sums.correction": "none"})
        page.says(difference(values(ridge, "fedlda", "mean"), none))
        page.settings(*same)


def _images(samples: str) -> str:
    return f"{int(samples) // CLASSES} a class"


def _table(page: Page, found: dict[str, Lines], gains: dict[str, Estimate]) -> None:
    lines = [
        [name, *(percent(estimate(each[name])) for each in found.values())]
        for name in (RIDGE, FEDSSA, LDA, ANCHORS)
    ]
    beside = [difference(each[LDA], each[FEDSSA]) for each in found.values()]
    page.says(*beside)
    lines.append(["FedLDA on logits − FedSSA", *map(points, beside)])
    lines.append(["… − itself without sharing", *map(points, gains.values())])
    page.table("one-round", ("accuracy", *map(_images, found)), lines)


def _others(page: Page, closed: list[Row]) -> None:
    """A line for each federation, number of images and kind of coordinates."""
    alone = [row for row in closed if row["sharing"] == "none"]
    groups = dict.fromkeys((r["federation"], r["samples"], r["coordinates"]) for r in alone)
    lines = []
    for federation, samples, coordinates in groups:
        at = {"federation": federation, "coordinates": coordinates}
        shared, everyone = (chosen(closed, samples, asked=a, **at) for a in ("held", "all"))
        own = chosen(alone, samples, sharing="none", **at)
        gain = difference(shared, own)
        page.says(gain, *map(estimate, (shared, everyone, own)))
        cells = [percent(estimate(one)) for one in (shared, own)]
        lines.append(
            [federation, samples, coordinates, *cells, points(gain), percent(estimate(everyone))]
        )
    header = ("federation", "images a client", "coordinates", "FedLDA", "without sharing")
    page.whole("federations", (*header, "gain from sharing", "among all classes"), lines)


def _federations(page: Page, study: Page, closed: list[Row]) -> None:
    """FedLDA beside the best of the study's methods in each of its federations."""
    trained = [
        {"federation": NAMES[r["clients"], r["partition.kind"]]} | r
        for r in ended(study, FEDERATIONS)
    ]
    trained += [{"federation": "cifar10"} | row for row in ended(study, "cifar10.csv")]
    titles = {"cifar10": "CIFAR-10, two images of each of five classes"} | TITLES
    lines = []
    for federation, title in titles.items():
        here = [row for row in closed if row["federation"] == federation]
        samples = "30" if federation == "dirichlet" else here[0]["samples"]
        ours, anchors, alone = (
            likeliest(here, samples, federation=federation, coordinates=kind, sharing=sharing)
            for kind, sharing in ((LOGITS, "mean"), ("anchors:", "mean"), (LOGITS, "none"))
        )
        theirs = [
            row for row in trained if row["federation"] == federation and row["sharing"] == "mean"
        ]
        kinds = {(row["method"], row["representation"]) for row in theirs}
        means = {
            kind: by_seed(theirs, "final", method=kind[0], representation=kind[1]) for kind in kinds
        }
        best = max(sorted(means), key=lambda kind: fmean(means[kind].values()))
        gain, lead = difference(ours, alone), difference(ours, means[best])
        page.says(gain, lead, *map(estimate, (ours, alone, means[best])))
        name = f"{registry.title(best[0])} on {best[1].removeprefix('pretrained-')}"
        cells = [percent(estimate(one)) for one in (ours, anchors) if one]
        lines.append(
            [
                title,
                *cells,
                *[""] * (2 - len(cells)),
                points(gain),
                f"{name}, {percent(estimate(means[best]))}",
                points(lead),
            ]
        )
    header = (
        "FedLDA on logits",
        "by anchors",
        "gain from sharing",
        "best that trains",
        "FedLDA − it",
    )
    page.table("in-federations", ("", *header), lines)


def likeliest(rows: list[Row], samples: str, *, coordinates: str, **where: str) -> BySeed:
    """Test accuracies among the classes held or among all, as validation says on the first seed; of
    coordinates that begin so."""
    kinds = sorted({r["coordinates"] for r in rows if r["coordinates"].startswith(coordinates)})
    if not kinds:
        return {}
    told = {"samples": samples, "coordinates": kinds[0], "head": "lda", "seed": CHOOSES} | where
    first = [row for row in rows if told.items() <= row.items()]
    asked = max(first, key=lambda row: float(row["validation"]))["asked"]
    return chosen(rows, samples, coordinates=kinds[0], asked=asked, **where)


def _dirichlet(page: Page, every: list[Row], closed: list[Row]) -> None:
    rows = [row for row in every if row["federation"] == "dirichlet"]
    lines = []
    for samples in sorted({row[SAMPLES] for row in rows}, key=int):
        equal, own = (
            runs_of(rows, **{SAMPLES: samples, "sums.priors": p}) for p in ("equal", "own")
        )
        ridge = max(
            (
                chosen(
                    closed,
                    samples,
                    federation="dirichlet",
                    coordinates="features",
                    head="ridge",
                    sharing="none",
                    asked=asked,
                )
                for asked in ("held", "all")
            ),
            key=lambda found: fmean(found.values()),
        )
        gain, lead = difference(own, equal), difference(own, ridge)
        page.says(gain, lead)
        cells = [percent(estimate(one)) for one in (ridge, equal, own)]
        lines.append(["all, about 480" if samples == "600" else samples, *cells, points(gain)])
    header = (RIDGE, "FedLDA, classes held", "FedLDA, own priors", "gain of own priors")
    page.table("dirichlet", ("images a client", *header), lines)


def _text(page: Page, every: list[Row]) -> None:
    rows = [row for row in every if row["federation"] == "text"]
    lines = []
    for samples in sorted({row[SAMPLES] for row in rows}, key=int):
        kinds = sorted({row["representation"] for row in rows})
        ours, plain = (
            runs_of(rows, **{SAMPLES: samples, "representation": kind, "sharing": "mean"})
            for kind in kinds
        )
        alone = runs_of(rows, **{SAMPLES: samples, "representation": kinds[0], "sharing": "none"})
        gain, mapped = difference(ours, alone), difference(ours, plain)
        page.says(gain, mapped)
        cells = [percent(estimate(one)) for one in (alone, plain, ours)]
        lines.append([str(int(samples) // 5), *cells, points(gain), points(mapped)])
    header = ("without sharing", "on features", "by anchors", "gain from sharing", "of anchors")
    page.table("text", ("documents a class", *header), lines)


def _private(page: Page, every: list[Row], found: dict[str, Lines]) -> None:
    rows = [row for row in every if row["dp.epsilon"] and row["federation"] == "classes"]
    lines = []
    for samples in sorted({row[SAMPLES] for row in rows}, key=int):
        ridge = found[samples][RIDGE]
        for epsilon in sorted({row["dp.epsilon"] for row in rows}, key=float):
            none, with_ridge = (
                runs_of(rows, **{SAMPLES: samples, "dp.epsilon": epsilon, "sums.correction": c})
                for c in ("none", "ridge")
            )
            leads = difference(none, ridge), difference(with_ridge, ridge)
            page.says(*leads, *map(estimate, (none, with_ridge)))
            cells = percent(estimate(none)), percent(estimate(with_ridge)), *map(points, leads[1:])
            lines.append([_images(samples), f"{float(epsilon):g}", *cells])
    records = [row for row in every if row["federation"] == "dp"]
    for epsilon in {row["dp.epsilon"] for row in records}:
        page.says(estimate(runs_of(records, **{"dp.epsilon": epsilon})))
    page.quotes("dp", "73.44", "72.57")
    header = ("images", "ε", "FedLDA", "… and a private ridge", f"− {RIDGE}")
    page.table("dp", header, lines)


def _rounds(page: Page, every: list[Row], found: dict[str, Lines]) -> None:
    """The methods that train, after each round, and begun from sums."""
    rows = page.rows(ROUNDS)
    last = {m: _at_end(rows, m) for m in dict.fromkeys(row["method"] for row in rows)}
    ours = found["10"][LDA]
    start = [row for row in every if row["sums.dim"] == "120"]
    page.says(difference(last[BEGUN], by_seed(start, "final")), estimate(by_seed(start, "final")))
    page.says(*map(estimate, last.values()))
    page.says(difference(last[BEGUN], last["pfedlora_plus"]), difference(ours, last[BEGUN]))
    page.picture("rounds.png", lambda folder: draw_rounds(rows, ours, folder))


def _at_end(rows: list[Row], method: str) -> BySeed:
    end = max((row["round"] for row in rows), key=int)
    return by_seed(rows, "accuracy", method=method, round=end)


def _many(page: Page, closed: list[Row], found: dict[str, Lines]) -> dict[str, Lines]:
    """With more images: FedLDA, and ridge regression by the other code."""
    there = {r["samples"] for r in closed if (r["federation"], r["head"]) == ("classes", "ridge")}
    more: dict[str, Lines] = {}
    for samples in sorted(there - found.keys(), key=int):
        ridge = chosen(closed, samples, coordinates="features", head="ridge", sharing="none")
        more[samples] = {LDA: chosen(closed, samples), RIDGE: ridge}
        page.says(estimate(ridge), difference(more[samples][LDA], ridge))
    return more


def draw(found: dict[str, Lines], folder: Path) -> Path:
    """Accuracy against images a class, a line for each way."""
    with style.drawing(1, 1, (5.2, 3.2)) as (figure, axes):
        axis = axes[0][0]
        colours = ("#000000", "#0072B2", "#D55E00", "#009E73")
        for name, colour in zip((RIDGE, FEDSSA, LDA, ANCHORS), colours, strict=True):
            each = {n: estimate(here[name]) for n, here in found.items() if name in here}
            axis.errorbar(
                [int(samples) // CLASSES for samples in each],
                [100 * e.mean for e in each.values()],
                yerr=[100 * (e.half or 0) for e in each.values()],
                color=colour,
                marker="o",
                label=name,
            )
        axis.set_xscale("log")
        counts = [int(samples) // CLASSES for samples in found]
        axis.set_xticks(counts, map(str, counts))
        axis.minorticks_off()
        axis.set_xlabel("training images of each class that a client holds")
        axis.set_ylabel("test accuracy in %")
        axis.legend(frameon=False)
        figure.savefig(folder / "one-round.png")
    return folder / "one-round.png"


def draw_anchors(page: Page, closed: list[Row], folder: Path) -> Path:
    """Accuracy with one image a class against the number of anchors, a line for each dataset of
    theirs."""
    here = [r for r in closed if (r["federation"], r["samples"]) == ("classes", "10")]
    kinds = dict.fromkeys(row["coordinates"] for row in here if ":" in row["coordinates"])
    found: dict[str, dict[int, Estimate]] = {}
    for kind in kinds:
        dataset, _, number = kind.removeprefix("anchors:").rpartition("-")
        each = estimate(chosen(here, "10", coordinates=kind))
        found.setdefault(dataset, {})[int(number)] = each
        page.says(each)
    with style.drawing(1, 1, (5.2, 3.0)) as (figure, axes):
        axis = axes[0][0]
        for dataset, means in found.items():
            counts = sorted(means)
            axis.plot(counts, [100 * means[n].mean for n in counts], marker="o", label=dataset)
        for kind, line in ((LOGITS, "--"), ("features", ":")):
            level = 100 * estimate(chosen(here, "10", coordinates=kind)).mean
            axis.axhline(level, color="#000000", linestyle=line, label=f"{kind}, no anchors")
        axis.set_xscale("log")
        axis.set_xlabel("anchors")
        axis.set_ylabel("test accuracy in %")
        axis.legend(frameon=False)
        figure.savefig(folder / "anchors.png")
    return folder / "anchors.png"


def draw_rounds(rows: list[Row], ours: BySeed, folder: Path) -> Path:
    """Accuracy with one image a class after each round of methods that train, beside FedLDA's."""
    with style.drawing(1, 1, (5.2, 3.0)) as (figure, axes):
        axis = axes[0][0]
        for method in dict.fromkeys(row["method"] for row in rows):
            means = dict[int, list[float]]()
            for row in rows:
                if row["method"] == method:
                    means.setdefault(int(row["round"]), []).append(float(row["accuracy"]))
            title = "pFedLoRA+ begun from sums" if method == BEGUN else registry.title(method)
            axis.plot([*means], [100 * fmean(each) for each in means.values()], label=title)
        axis.axhline(100 * estimate(ours).mean, color="#D55E00", linestyle="--", label=LDA)
        axis.set_xlabel("rounds")
        axis.set_ylabel("test accuracy in %")
        axis.legend(frameon=False)
        figure.savefig(folder / "rounds.png")
    return folder / "rounds.png"


def taken(places: list[str]) -> None:
    """Writes runs.csv and rounds.csv; what a run table does not say is as by default."""
    cut = places.index("--rounds") if "--rounds" in places else len(places)
    found = []
    for place in places[:cut]:
        federation, _, folder = place.partition("=")
        with (Path(folder) / "report" / "runs.csv").open(encoding="utf-8") as table:
            for row in csv.DictReader(table):
                own = {"federation": federation}
                if federation == "auto":
                    own["federation"] = NAMES[row["clients"], row.get("partition.kind", "")]
                said = {key: value for key, value in row.items() if value not in ("", "auto")}
                found.append([{**USUAL, **own, **said}.get(column, "") for column in COLUMNS])
    page = RESULTS / "one-round"
    write_csv(page / FILE, COLUMNS, found)
    if folders := [Path(place) for place in places[cut + 1 :]]:
        every = each_round(
            folders, lambda e: (e.method, e.seed, e.lr, e.method_options, e.evaluate_every)
        )
        kept = [
            row for row in every if not int(str(row[5])) % int(str(row[4]))
        ]  # the others repeat an evaluation
        lines = Counter((row[0], *row[2:4]) for row in kept)  # what was chosen has most seeds
        best = {way[0]: way for way, _ in reversed(lines.most_common())}
        chosen_rows = (row for row in kept if (row[0], *row[2:4]) == best[row[0]])
        write_csv(page / ROUNDS, OF_ROUND, ((*row[:2], row[5], row[7]) for row in chosen_rows))


if __name__ == "__main__":
    taken(sys.argv[1:])
