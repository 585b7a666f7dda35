"""The table of decisions. Its numbers are computed from the run tables of the pages that its cells
name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.results.held_out import mean_by_seed
from benchmarks.results.normalised import NORMALISED, fractions, lead_on_board, of_fresh
from benchmarks.results.page import (
    RESULTS,
    Page,
    Row,
    bonferroni,
    by_seed,
    difference,
    minus,
    operations,
    signed,
)
from benchmarks.results.pretrained import VISITS
from benchmarks.results.pretrained_federations import READS
from benchmarks.results.pretrained_pilot import SAMPLES
from benchmarks.results.start import leads_at_end, leads_within, shared_within, times_standalone
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report.measures import Estimate

BEST = "at_best_validation"
FEATURES, LOGITS = "features", "pretrained-logits"
LEADERS = [("fedssa", LOGITS), ("pfedlora_plus", FEATURES), ("lg_fedavg", LOGITS)]
"""On different backbones."""
PRETRAINED = "../pretrained/README.md"
FEDERATIONS = "../pretrained/federations.md"
Heads = list[tuple[str, str]]
"""Methods, and what the heads read."""
SHOWN = {
    "**different frozen pretrained backbones**, one image of each of ten classes": (
        "**different frozen pretrained backbones**, one image of each of ten classes"
    ),
    "one image of each of ten classes, tested on all hundred": (
        "the same, tested on all hundred classes"
    ),
    "ten clients whose classes nobody else holds": (
        "the same, ten clients whose classes nobody else holds"
    ),
    "**models of different size from scratch**, ten classes each, six visits, CIFAR-100": (
        "**models of different size from scratch**, ten classes each, six visits, CIFAR-100"
    ),
    "**one architecture from scratch**, small digits, 50 clients, four visits": (
        "**one architecture from scratch**, small digits, 50 clients, four visits"
    ),
    "one encoder, LoRA inside": "**one pretrained text encoder**, LoRA inside",
}
"""Rows of the whole table that stand on the page, and what they are called there."""
_LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
Line = tuple[str, str, str]
"""Whose clients, what helped, what helped less or not."""


def make(page: Page) -> None:
    lines = [*few_images(), *other_federations(), *private(), *scratch(), *one_model(), *texts()]
    header = ("your clients", "what helped, in points (numbers up a visit)", "helped less, or not")
    page.whole("decisions", header, [[_LINK.sub(r"\1", cell) for cell in line] for line in lines])
    few = {SHOWN[line[0]]: line for line in lines if line[0] in SHOWN}
    assert len(few) == len(SHOWN), "a shown row is not there"
    page.table("decisions", header, (by_row(name, *line[1:]) for name, line in few.items()))


def by_row(name: str, *cells: str) -> Sequence[str]:
    """The row with one link to its page, at its name, in the place of links that are cells."""
    links = [link for cell in cells for link in _LINK.findall(cell)]
    pages = list(dict.fromkeys(target.partition("#")[0] for _, target in links))
    own, *others = (next(to for _, to in links if to.startswith(page)) for page in pages)
    more = "".join(f" ([{to.split('/')[1]}]({to}))" for to in others)
    return f"[{name}]({own}){more}", *(_LINK.sub(r"\1", cell) for cell in cells)


@dataclass(frozen=True)
class Runs:
    """A run table, and which of its accuracies counts."""

    rows: list[Row]
    count: str = BEST

    def only(self, **where: str) -> Runs:
        rows = [row for row in self.rows if all(row[key] == where[key] for key in where)]
        return Runs(rows, self.count)

    def gain(self, method: str, **where: str) -> Estimate:
        """With sharing, minus without."""
        return difference(
            *(
                by_seed(self.rows, self.count, method=method, sharing=kind, **where)
                for kind in ("mean", "none")
            )
        )

    def lead(self, method: str, **where: str) -> Estimate:
        """Minus Standalone."""
        return difference(
            *(
                by_seed(self.rows, self.count, method=name, sharing="mean", **where)
                for name in (method, "standalone")
            )
        )

    def best_lead(self, method: str) -> Estimate:
        """That on the better of what a head reads."""
        leads = (self.lead(method, representation=reads) for reads in READS)
        return max(leads, key=lambda e: e.mean)

    def level(self, method: str) -> bool:
        """Whether it differs from Standalone significantly on nothing that a head reads."""
        return not any(self.lead(method, representation=reads).sign for reads in READS)

    def up(self, method: str, visits: int, **where: str) -> str:
        """Numbers that a visit sends on average, to three places."""
        sent = by_seed(self.rows, "parameters_up", method=method, sharing="mean", **where)
        return f"{float(f'{sum(sent.values()) / len(sent) / visits:.3g}'):,.0f}"


def runs(folder: str, file: str, count: str = BEST) -> Runs:
    return Runs([{"sharing": "mean", **row} for row in Page(RESULTS / folder).rows(file)], count)


def told(e: Estimate) -> str:
    """`+18.0 ± 0.9`; of one seed `+11.3`."""
    half = "" if e.half is None else f" ± {100 * e.half:.1f}"
    return signed(100 * e.mean, 1) + half


def span(estimates: Iterable[Estimate]) -> str:
    """`8 to 9`: of the means, the lowest and the highest."""
    means = sorted(round(100 * e.mean) for e in estimates)
    return minus(" to ".join(map(str, dict.fromkeys((means[0], means[-1])))))


def of_heads(of: Runs, which: Iterable[tuple[str, str]], visits: int = 0) -> str:
    """`FedSSA on logits +18.2 ± 1.1 (10,000); ...`: what they gain by sharing, and with the visits
    of all clients what one sends."""
    found = []
    for method, reads in which:
        gain = told(of.gain(method, representation=reads))
        sent = f" ({of.up(method, visits, representation=reads)})" if visits else ""
        found.append(f"{registry.title(method)} on {READS[reads]} {gain}{sent}")
    return "; ".join(found)


def few_images() -> Iterable[Line]:
    """A hundred clients with different backbones, which are tested on the classes they hold."""
    every, pilot = runs("pretrained", "runs.csv", "final"), runs("pretrained", "pilot.csv", "test")
    ten, thirty, fifty = (
        every.only(**{"partition.samples-per-client": n}) for n in ("10", "30", "50")
    )
    led, crossed = LEADERS[:2], [("fedssa", FEATURES), ("pfedlora_plus", LOGITS)]
    plain = [("lg_fedavg", FEATURES), ("fedrod", FEATURES), ("fedrod", LOGITS)]
    averages = [*plain, *LEADERS[2:]]
    assert all(of.best_lead("fd").mean < 0 for of in (ten, fifty)), "FD leads"
    assert thirty.level("fd"), "FD leads, or is below"

    def rest(of: Runs, by_class: Heads, averaged: Heads, but: str = "") -> str:
        """What helped less, by class and by averages, and what did not."""
        gains = span(of.gain(method, representation=reads) for method, reads in averaged)
        return (
            f"{of_heads(of, by_class)}; last layers averaged {gains}{but}; FedGH, lead"
            f" {told(of.best_lead('fedgh'))} at best; FD, no lead"
        )

    at = link(PRETRAINED, "what-sharing-gains")
    yield (
        "**different frozen pretrained backbones**, one image of each of ten classes",
        at(of_heads(ten, led, VISITS)),
        at(rest(ten, crossed, plain, f", but {of_heads(ten, LEADERS[2:])}")),
    )
    yield (
        "the same, three images of each",
        at(of_heads(thirty, [*led, crossed[0]], VISITS)),
        at(rest(thirty, crossed[1:], averages)),
    )
    yield (
        "the same, five images of each",
        at(of_heads(fifty, led, VISITS)),
        at(rest(fifty, crossed, averages)),
    )
    more = link(PRETRAINED)
    necks = {row["method"] for row in pilot.rows if row["reads"] == "neck"} - {"standalone"}
    gains = [pilot.gain(method, reads="neck", samples=n) for method in necks for n in SAMPLES]
    assert all(gain.mean < 0 for gain in gains), "a method gains behind necks"
    yield (
        "the same behind private necks, one to five images of each",
        "",
        more(f"{titles(registry.ordered(necks))}: {span(gains)}, one seed"),
    )


def other_federations() -> Iterable[Line]:
    """Different backbones, and other data, partitions or numbers of clients."""
    every = runs("pretrained", "federations.csv", "final")

    def rest(of: Runs, but: Heads) -> str:
        with_control = [row for row in of.rows if row["sharing"] == "none"]
        found = {(row["method"], row["representation"]) for row in with_control} - {*but}
        return span(of.gain(method, representation=reads) for method, reads in found)

    cifar10 = runs("pretrained", "cifar10.csv", "final")
    led = [LEADERS[0], *((m, FEATURES) for m in ("fedssa", "fedgh", "lg_fedavg", "pfedlora_plus"))]
    assert cifar10.level("fd"), "FD leads, or is below"
    at = link(FEDERATIONS)
    yield (
        "two images of each of five classes of CIFAR-10",
        at(of_heads(cifar10, led, VISITS)),
        at(f"the others {rest(cifar10, led)}; FD, no lead"),
    )
    dirichlet = every.only(**{"partition.kind": "dirichlet"})
    yield (
        "Dirichlet partition, one image of each of about 30 classes",
        at(of_heads(dirichlet, LEADERS, VISITS)),
        at(f"the others {rest(dirichlet, LEADERS)}"),
    )
    asked = every.only(clients="100", **{"partition.kind": "iid"})
    samples = runs("pretrained", "rows-samples.csv", "final")
    alone = asked.only(method="standalone")
    lead = Runs(samples.rows + alone.rows, "final").lead("pfedlora_plus", representation=FEATURES)
    by_class = [(method, reads) for method in ("fedssa", "pfedlora_plus") for reads in READS]
    classes = span(asked.gain(method, representation=reads) for method, reads in by_class)
    sent = samples.up("pfedlora_plus", VISITS, representation=FEATURES)
    yield (
        "one image of each of ten classes, tested on all hundred",
        at(
            of_heads(asked, LEADERS[2:], VISITS) + "; pFedLoRA+ on features with"
            f" `adapter.rows=samples`, lead {told(lead)} ({sent})"
        ),
        at(f"by class {classes}; other averages {rest(asked, LEADERS[2:] + by_class)}"),
    )
    own = every.only(clients="10")
    yield (
        "ten clients whose classes nobody else holds",
        "",
        at(
            f"pFedLoRA+, FedSSA {span(own.gain(m, representation=r) for m, r in by_class)}: sharing"
            f" by class cannot; FedRoD {span(own.gain('fedrod', representation=r) for r in READS)},"
            " not with Bonferroni correction; LG-FedAvg"
            f" {span(own.gain('lg_fedavg', representation=r) for r in READS)}"
        ),
    )
    three = every.only(clients="3")
    yield (
        "three clients, each with its own backbone, one image of each of a hundred classes",
        at(of_heads(three, [LEADERS[place] for place in (0, 2, 1)], 3 * 20)),
        at(f"the others {rest(three, LEADERS)}, none on features above Standalone"),
    )


def private() -> Iterable[Line]:
    """One frozen backbone, and a bound on what leaks."""
    helped, less = [], []
    for file, whose, section in (
        ("runs.csv", "client", "whole-clients"),
        ("records.csv", "record", "single-records"),
    ):
        rows = Page(RESULTS / "dp").rows(file)
        plain, eps8, eps2 = (
            difference(*(by_seed(rows, "accuracy", cell=cell) for cell in (name, "start")))
            for name in ("plain", "eps8", "eps2")
        )
        at = link("../dp/README.md", section)
        helped.append(at(f"per {whose} {told(eps8)} (without a bound {100 * plain.mean:.1f})"))
        less.append(at(f"per {whose} {told(eps2)}"))
    yield (
        "one frozen pretrained backbone, 30 images each of CIFAR-10, a bound ε on what leaks",
        f"pFedLoRA+ over no adapter (170), ε = 8: {'; '.join(helped)}",
        f"ε = 2: {'; '.join(less)}",
    )


def scratch() -> Iterable[Line]:
    """Models of different size, trained from scratch."""
    board = runs("leaderboard", "runs.csv")
    at = link("../leaderboard/README.md")
    flops = operations(board.rows, "flops")
    assert not bonferroni(board.lead("fedmrl"), 6).sign, "FedMRL's lead is significant"
    read = lead_on_board()
    assert not bonferroni(read, 4).sign, "the normalised Standalone's lead is significant"
    yield (
        "**models of different size from scratch**, ten classes each, six visits, CIFAR-100",
        at(
            f"{gained(board, 'fedproto', 600)}; {leads(board, ('fd',), 600)};"
            f" {gained(board, 'pfedmoe', 600)} at {flops['pfedmoe']:.1f} times the operations"
        )
        + "; "
        + link("../normalised/README.md", "on-the-leaderboard")(
            f"Standalone on normalised features, lead {told(read)}, not with Bonferroni correction"
        ),
        at(
            f"FedMRL, lead {told(board.lead('fedmrl'))} at {flops['fedmrl']:.1f} times the"
            " operations, not with Bonferroni correction; pFedLoRA (μ = 0.5), lead"
            f" {told(board.lead('pfedlora'))}; LG-FedAvg {told(board.gain('lg_fedavg'))}"
        ),
    )
    start, early = runs("start", "runs.csv"), runs("sharing", "cifar100-runs.csv")
    normalised = difference(
        of_fresh(fractions(Page(RESULTS / "normalised"), "runs.csv", NORMALISED)),
        of_fresh(fractions(Page(RESULTS / "gain"), "confirmed.csv", "standalone")),
    )
    none = ("lg_fedavg", "fedmrl", "pfedlora")
    ran = sorted({(row["method"], row["mu"]) for row in start.rows if row["method"] in none})
    assert not any(start.gain(method, mu=mu).sign for method, mu in ran), "one gains or loses"
    at = link("../start/README.md")
    yield (
        "the same, three visits",
        at(
            f"if clients begin alike: FedProto {told(start.gain('fedproto'))};"
            f" FD, lead {told(start.lead('fd'))}"
        )
        + "; "
        + link("../sharing/README.md", "cifar-100-early-in-training")(
            f"pFedMoE {told(early.gain('pfedmoe'))}, one seed ({early.up('pfedmoe', 300)})"
        )
        + "; "
        + link("../normalised/README.md")(
            f"Standalone on normalised features, lead {told(normalised)}"
        ),
        at(f"{titles(none)}: no gain shown"),
    )
    ours = ("pfedlora", "0.5", "mean")
    best, end = leads_at_end(ours)
    own = " and ".join(signed(lead, 1) for lead in leads_at_end((*ours[:2], "none")))
    times = times_standalone("0", ours)
    at = link("../start/README.md", "a-long-training")
    within = leads_within(120)
    fd = within["1", ("fd", "", "mean")]
    proto, mrl = (
        " and ".join(signed(within[seed, (name, "", "mean")], 1) for seed in "01")
        for name in ("fedproto", "fedmrl")
    )
    more = times_standalone("1", ("fedmrl", "", "mean"))
    three = ", ".join(signed(within[seed, ours], 1) for seed in "012")
    yield (
        "the same, twelve visits",
        at(
            f"FedProto, leads {proto} ({board.up('fedproto', 600)}), of which sharing"
            f" {signed(shared_within(120, '0', 'fedproto'), 1)} on the one seed measured; FD, lead"
            f" {signed(fd, 1)} ({board.up('fd', 600)}), one seed"
        ),
        at(
            f"FedMRL, leads {mrl} at {more:.1f} times the operations, of which sharing"
            f" {signed(shared_within(120, '1', 'fedmrl'), 1)} on the one seed measured; pFedLoRA"
            f" (μ = 0.5), leads {three} at {times:.1f} times the operations; without"
            " sharing, too"
        ),
    )
    yield (
        "the same, thirty visits",
        at(
            f"FedProto, lead {signed(leads_at_end(('fedproto', '', 'mean'))[0], 1)}"
            f" ({board.up('fedproto', 600)}), one seed, without a control"
        ),
        at(
            f"FedMRL, lead {signed(leads_at_end(('fedmrl', '', 'mean'))[0], 1)} at {more:.1f} times"
            " the operations, one seed, without a control;"
            f" pFedLoRA (μ = 0.5), lead {signed(best, 1)}, at the end {signed(end, 1)}, at"
            f" {times:.1f} times the operations, one seed; without sharing {own}"
        ),
    )
    small = runs("cifar10-table2", "runs.csv").only(clients="100")
    at = link("../cifar10-table2/README.md")
    yield (
        "two classes each, CIFAR-10",
        at(f"{leads(small, ('fedproto',), 1500)}, not with Bonferroni correction"),
        at(f"pFedLoRA, LG-FedAvg: leads {span(small.lead(m) for m in ('pfedlora', 'lg_fedavg'))}"),
    )
    digits = runs("sharing", "digits-runs.csv")
    fifty, ten = (digits.only(clients=n, sharing="mean") for n in ("50", "10"))
    others = {row["method"] for row in fifty.rows} - {"standalone", "fd"}
    assert not any(fifty.lead(method).sign == 1 for method in others), "others lead, too"
    at = link("../sharing/README.md", "digits-every-method-and-both-controls")
    most = max(100 * ten.lead(method).mean for method in others | {"fd"})
    yield (
        "small digits, three classes each, 50 clients",
        at(f"FD, lead {told(fifty.lead('fd'))}"),
        at(
            f"{len(others)} others: leads {span(map(fifty.lead, others))}, none shown; with ten"
            f" clients {most:.1f} at most"
        ),
    )
    late = Page(RESULTS / "held-out").rows("runs.csv")
    by = {
        method: difference(
            *(
                mean_by_seed([row for row in late if row["method"] == method], 80, column)
                for column in ("accuracy", "alone_accuracy")
            )
        )
        for method in ("lg_fedavg", "fedproto", "fedmrl", "pfedlora")
    }
    at = link("../held-out/README.md")
    first, *rest = (f"{registry.title(method)} {told(e)}" for method, e in by.items())
    yield (
        "a client that comes after the training, 80 samples of two classes of CIFAR-10",
        at(f"over training alone: {first}; {rest[0]}; neither with Bonferroni correction"),
        at("; ".join(rest[1:])),
    )


def one_model() -> Iterable[Line]:
    """One architecture, trained from scratch."""
    every = runs("personal", "runs.csv").only(clients="50")
    digits, cifar10 = (every.only(dataset=name) for name in ("digits", "cifar10"))
    whole = ("apfl", "fedala", "fedavg", "fedbabu")
    others = ("ditto", "fedper", "lg_fedavg", "pfedlora")
    at = link("../personal/README.md", "fifty-clients-four-visits")
    yield (
        "**one architecture from scratch**, small digits, 50 clients, four visits",
        at(
            f"{titles(whole)} {span(map(digits.gain, whole))}; leads: FedRep"
            f" {told(digits.lead('fedrep'))}, FedRoD {told(digits.lead('fedrod'))}, their gain not"
            " shown. With Bonferroni correction only FedRep's lead"
        ),
        at(f"{titles(others)} {span(map(digits.gain, others))}"),
    )
    at = link("../personal/README.md", "fifty-clients-on-cifar-10-one-seed")
    best = ("fedbabu", "ditto", "fedrod", "fedrep")
    rest = {row["method"] for row in cifar10.rows} - {*best, "standalone"}
    yield (
        "the same on CIFAR-10, 100 images each (one seed)",
        at(
            f"{titles(best)} {span(map(cifar10.gain, best))}; leads {span(map(cifar10.lead, best))}"
        ),
        at(f"the others: leads {span(map(cifar10.lead, rest))}"),
    )


def texts() -> Iterable[Line]:
    """20 Newsgroups, and a pretrained encoder."""
    every = runs("lora", "runs.csv", "test").only(alpha="", start="each", lr="0.01")
    head = every.only(train="head")
    lora = every.only(train="lora", head="shared")
    yield (
        "**a pretrained text encoder** at different depths, one document of each class",
        link("../../../examples/text/README.md", "the-result")(
            "LG-FedAvg, FedSSA, leads of 27, untuned"
        ),
        "",
    )
    at = link("../lora/README.md", "a-head-with-and-without-lora")
    yield (
        "one encoder, frozen",
        at(
            f"LG-FedAvg with `train=head` {told(head.gain('lg_fedavg'))}"
            f" ({head.up('lg_fedavg', 100)})"
        ),
        "",
    )
    at = link("../lora/README.md", "ten-methods-at-001")
    best = ("rolora", "flexlora", "fedit")
    sent = sorted(lora.up(method, 100) for method in best)
    others = ("fedex_lora", "flora", "ffa_lora", "feddpa")
    head_only = told(lora.gain("lg_fedavg"))
    yield (
        "one encoder, LoRA inside",
        at(
            f"{titles(best)} with `lora.head=shared` {span(map(lora.gain, best))}"
            f" ({sent[0]} to {sent[-1]}); above the shared head not with Bonferroni correction"
        ),
        at(
            f"{titles(others)} {span(map(lora.gain, others))}; FedSA-LoRA, FedALT"
            f" {span([lora.gain('fedsa_lora'), lora.lead('fedalt')])}; LG-FedAvg with private"
            f" LoRA {head_only}"
        )
        + "; "
        + link("../lora/README.md", "private-heads")("private heads 2 at most, one seed"),
    )


def titles(methods: Iterable[str]) -> str:
    return ", ".join(map(registry.title, methods))


def gained(of: Runs, method: str, visits: int) -> str:
    """What sharing gains a method, what a visit sends, and its lead."""
    return (
        f"{registry.title(method)} {told(of.gain(method))} ({of.up(method, visits)}), lead"
        f" {told(of.lead(method))}"
    )


def leads(of: Runs, methods: Iterable[str], visits: int) -> str:
    return "; ".join(
        f"{registry.title(method)}, lead {told(of.lead(method))} ({of.up(method, visits)})"
        for method in methods
    )


def link(page: str, section: str = "") -> Callable[[str], str]:
    """Makes a text a link to that section."""
    target = page + (f"#{section}" if section else "")
    return lambda text: f"[{text}]({target})"
