"""Writes docs/methods.md, one table of all methods: `make docs`.

What is said of a method in words is here; the numbers sent are those of the tests, the cost is counted. Tests hold the page equal: but for
the cost in the suite, and whole in `make methods-test`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Upload
from scripts.declare import ROOT
from tests.methods.test_payload import AS_MUCH_DOWN_AS_UP, CLASS_MEANS, HEADER_DOWN, LESS_THAN_FML
from tests.plain import make, runs, samples, visit

PAGE = ROOT / "docs" / "methods.md"


@dataclass(frozen=True)
class About:
    """What the page says of a method in words. kind: how the server merges, and whether the predictor is a composite."""

    idea: str
    shared: str
    kind: str
    assumes: str
    paper: str


_WIDTH = "one width of representation, which necks make where models differ"
_HELD = "the server may know which classes a client holds"
_SMALL = "a small model of a structure that all know: the federation's smallest"
ABOUT = {
    "pfedlora": About(
        "A low-rank adapter beside each model's head: model and adapter are trained in turn, and the adapters are averaged",
        "adapter",
        "mean",
        _WIDTH,
        "Yi et al. 2023, arXiv 2310.13283",
    ),
    "standalone": About("Every client trains its own model alone", "nothing", "–", "nothing", "–"),
    "fml": About(
        "The own model and a small shared one learn from each other's predictions",
        "small model",
        "mean",
        _SMALL,
        "Shen et al. 2020, arXiv 2006.16765",
    ),
    "fedkd": About(
        "As FML, with representations too, each loss weighed by how well both predict; updates are sent as truncated SVDs",
        "small model's change, compressed",
        "mean",
        _SMALL,
        "Wu et al., Nature Communications 2022, arXiv 2108.13323",
    ),
    "lg_fedavg": About(
        "The last layer is averaged, everything before it is private",
        "last layer",
        "mean",
        _WIDTH,
        "Liang et al. 2020, arXiv 2001.01523",
    ),
    "fd": About(
        "Logits of each class are drawn to the other clients' mean logits of it",
        "mean logits of the classes held",
        "class means",
        _HELD,
        "Jeong et al. 2018, arXiv 1811.11479",
    ),
    "fedproto": About(
        "Representations of each class are drawn to the clients' mean representation of it",
        "mean representations of the classes held, and their counts",
        "class means",
        f"{_WIDTH}; {_HELD}, with its samples of each",
        "Tan et al., AAAI 2022, arXiv 2105.00243",
    ),
    "fedavg": About(
        "One model for all, averaged; a client's is the one that it trained last",
        "whole model",
        "mean",
        "one architecture",
        "McMahan et al., AISTATS 2017, arXiv 1602.05629",
    ),
    "fedgh": About(
        "The server trains a last layer on the clients' mean representations; it replaces every client's own",
        "mean representations up, last layer down",
        "server-trained",
        f"{_WIDTH}; {_HELD}",
        "Yi et al., ACM Multimedia 2023, arXiv 2303.13137",
    ),
    "fedssa": About(
        "The last layer's rows are averaged class by class over those who hold the class, and blended into the own ones for a while",
        "last layer's rows of the classes held",
        "class means",
        f"{_WIDTH}; {_HELD}",
        "Yi et al., IJCAI 2024, arXiv 2312.09006",
    ),
    "fedtgp": About(
        "As FedProto, but the server learns the prototypes, apart by a margin",
        "mean representations up, prototypes down",
        "server-trained",
        f"{_WIDTH}; {_HELD}",
        "Zhang et al., AAAI 2024, arXiv 2401.03230",
    ),
    "fedre": About(
        "As FedGH, from one random mixture of a client's class means and its mixed label",
        "one vector and its label up, last layer down",
        "server-trained",
        f"{_WIDTH}; {_HELD}",
        "Yao et al., CVPR 2026, arXiv 2511.22265",
    ),
    "fedorgp": About(
        "As FedTGP, with angles: prototypes along their own class's reports, at right angles to the others'",
        "mean representations up, prototypes down",
        "server-trained",
        f"{_WIDTH}; {_HELD}",
        "Guo et al. 2025, arXiv 2502.16119",
    ),
    "fedmrl": About(
        "A projector joins the own and a small model's representations; the small head reads its first numbers, the own head all",
        "small model, of a narrow representation",
        "mean, composite",
        f"{_SMALL}; no representation narrower than its own",
        "Yi et al., NeurIPS 2024, arXiv 2406.00488",
    ),
    "pfedes": About(
        "The model also learns from images that a tiny shared extractor has transformed; the extractor then learns through the model",
        "extractor of image to image",
        "mean",
        "images",
        "Yi et al., AAAI 2025, arXiv 2311.06879",
    ),
    "pfedmoe": About(
        "A private gate weighs the own and a small shared extractor for each sample",
        "small extractor",
        "mean, composite",
        f"{_WIDTH}; {_SMALL}",
        "Yi et al. 2024, arXiv 2402.01350",
    ),
    "pfedafm": About(
        "A private vector mixes the own and a small shared extractor, number by number; the two are trained in turn",
        "small extractor",
        "mean, composite",
        f"{_WIDTH}; {_SMALL}",
        "Yi et al. 2024, arXiv 2404.17847",
    ),
}
_HEAD = """# The methods

<!-- Written by `make docs` from scripts/methods.py, the numbers of tests/methods/test_payload.py, and the code: change those. -->

`pfedlora run -o method=NAME`; the options of each are in [keys](keys.md), decisions where a paper leaves one in
[fidelity](fidelity.md).

| `method` | idea | what is shared | up | down | cost | server | assumes | paper |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
_FOOT = """
**How to read it.** *Up* and *down* are the floating-point numbers of one client's visit, with 10 classes of which it holds 2, and with
100 of which it holds 10, in the heterogeneous setting (five CNNs, CNN-5 the smallest) with every option at its default; FedAvg's are of
the homogeneous one. Down is counted once every class has been reported; FD leaves out the classes that nobody but the receiver holds.
FedKD's ranks change from upload to upload. *Cost* is the operations of one training sample in a visit, forward and backward and with
whatever the method does beside its training, relative to Standalone's: client model CNN-1, one epoch, from the second round on, counted
as in every run; the size of a batch does not matter. Beside a smaller client model a small shared one weighs more. With more epochs
pFedLoRA and the methods that report mean representations cost less a sample and epoch: they go once through the images, after the last
one. *Server*: a weighted mean of what came up; means by class; or a training of its own on what came up, whose operations are counted
apart. A *composite* predicts with the client's model and its copy of the shared part together, which costs more at each prediction; the
others predict with a model of the client's own architecture. *Assumes* says what a method needs beyond labelled data at each client. None
needs public data, and none that all clients take part in a round: FD, FedProto and FedSSA keep the last report of those who do not, the
others go by the round's own reports.
"""


def page(costs: Mapping[str, str]) -> str:
    """docs/methods.md with these costs, by method."""
    return _HEAD + "".join(_row(name, costs[name]) for name in registry.NAMES) + _FOOT


def costs() -> dict[str, str]:
    """Every method's operations relative to Standalone's, counted."""
    yardstick = operations("standalone")
    return {name: f"{operations(name) / yardstick:.2f}" for name in registry.NAMES}


def written_costs(text: str) -> dict[str, str]:
    """Those that a page holds."""
    rows = [
        line.split(" | ") for line in text.splitlines() if line.startswith("| `") and "<br>" in line
    ]
    return {row[0].split("`")[1]: row[5] for row in rows}


def operations(name: str) -> int:
    """Operations of client 0's visit in round 2, on an image of each class: its model is CNN-1, and two clients have reported before."""
    method = make(from_flat({"method": name, "setting": _setting(name), "rounds": 2}))
    state, data, uploads = method.state_init(1), samples(list(range(10))), dict[int, Upload]()
    models = [method.private_init(k, 1) for k in range(2)]
    for k, model in enumerate(models):
        uploads[k] = method.local_update(
            model, method.download(state, k, 1), data, visit(method.experiment, k, 1)
        )
    state, second = method.aggregate(uploads, state, 1), visit(method.experiment, 0, 2)
    method.local_update(models[0], method.download(state, 0, 2), data, second)
    return sum(second.flops.values())


def sent(name: str) -> tuple[str, str]:
    """Numbers up and down, for 10 and for 100 classes."""
    if name == LESS_THAN_FML:
        return ("below FML's",) * 2
    both = {
        classes: (n, n)
        for method, setting, classes, n in AS_MUCH_DOWN_AS_UP
        if (method, setting) == (name, _setting(name))
    }
    both |= {
        classes: (up, down)
        for method, classes, _, up, down in CLASS_MEANS + HEADER_DOWN
        if method == name
    }
    up, down = (
        f"{ten:,} / {hundred:,}" if ten or hundred else "0"
        for ten, hundred in zip(both[10], both[100], strict=True)
    )
    return up, down


def _row(name: str, cost: str) -> str:
    about, found = ABOUT[name], registry.find(name)
    assumes = about.assumes
    if make(from_flat({"method": name, "setting": _setting(name)})).uses_rounds:
        assumes += "; depends on T"
    link = about.paper.replace("arXiv ", "arXiv:")
    head, colon, number = link.partition("arXiv:")
    paper = f"{head}[arXiv {number}](https://arxiv.org/abs/{number})" if colon else head
    cells = (
        f"`{name}`<br>{found.title}",
        about.idea,
        about.shared,
        *sent(name),
        cost,
        about.kind,
        assumes,
        paper,
    )
    return f"| {' | '.join(cells)} |\n"


def _setting(name: str) -> str:
    return "heterogeneous" if runs(name, "heterogeneous") else "homogeneous"


def main() -> None:
    PAGE.write_text(page(costs()), encoding="utf-8")


if __name__ == "__main__":
    main()
