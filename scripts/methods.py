"""Writes docs/methods.md, one table of all methods: `make docs`.

What is said of a method in words is in its class; the numbers sent are those of the tests, the cost
is counted. And the lists of methods in other documents. Tests hold the page equal: but for the cost in the suite, and whole in `make methods-test`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pfedlora_flwr.audit.classes import NAMED, by_class
from pfedlora_flwr.audit.views import shared_part
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Upload
from scripts.declare import ROOT
from tests.methods.test_payload import (
    CLASS_MEANS,
    EQUAL,
    HEADER_DOWN,
    LESS_THAN_FML,
    OF_SUMS,
)
from tests.plain import ANY_MODEL, LORA, SUMS, make, runs, samples

PAGE = ROOT / "docs" / "methods.md"
_LIST = re.compile(r"(<!-- methods: ([a-z ]+) -->)(.*?)(<!-- end -->)", re.DOTALL)
_LAYERS = "<!-- methods: layers by class -->"
WITH_LISTS = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("architecture", "audit", "extending", "fidelity", "privacy/secure-aggregation")
    ),
]


_HEAD = """# The methods

<!-- Written by `make docs` from the methods' classes, the numbers of tests/methods/test_payload.py, and the code: change those. -->

Choose one with `pfedlora run -o method=NAME`. [Keys](keys.md) has each method's options, [fidelity](fidelity.md) our decisions where
a paper leaves a choice open. There are three groups, by what the clients' models must have in common.

| group | what must be equal | what travels | mean | secure aggregation |
| --- | --- | --- | --- | --- |
| [different models](#methods-for-different-models) | nothing, or the representations' widths | a small part, a small model, or class means | of parameters, by class, or trained on the server | methods whose *server* is a mean, except FedKD; pFedLoRA+ only with `adapter.rows=samples` |
| [one architecture](#methods-for-one-architecture) | the architecture, and the base unless `train=all` | the trained model, or its extractor | of parameters | all |
| [LoRA](#methods-that-exchange-lora) | the pretrained base, and the rank for most | LoRA's factors | of factors, exact or not, or of products | as the table says |

A mean of parameters is exact: it is the intended model. A mean of LoRA's factors is not the mean of their products, unless one factor is common.

## Methods for different models

| `method` | idea | what is shared | up | down | cost | server | assumes | paper |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
_ONE_MODEL = """
## Methods for one architecture

All clients need the same model, and the same frozen base unless `train=all`; other runs are refused. FedRoD, which also takes different models, is in the table above.
Every upload is averaged, weighted by n_k, so secure aggregation takes all of them, but no [averaged batch normalisation](fidelity.md#batch-normalisation). *Alone* says what the method is with [`sharing=none`](controls.md). [Results of nine](results/personal/README.md).

| `method` | idea | what is shared | up | down | cost | server | alone | paper |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
_ALONE = {
    "fedavg": "Standalone, from one first model for all",
    "fedper": "Standalone, from one first extractor for all",
    "fedrep": "its own head and extractor, trained in turn",
    "fedprox": "each visit held near the client's own last model",
    "ditto": "a model held near a second one of the client's own",
    "fedbabu": "its own extractor before the fixed head, fine-tuned with it",
    "fedbn": "Standalone, from one first model for all",
    "apfl": "two models of the client's own, mixed",
    "fedala": "Standalone, from one first model for all: own and received are the same",
}
"""What a method of one architecture is under `sharing=none`."""
_LORA = """
## Methods that exchange LoRA

They need clients with the same pretrained base and `train=lora` ([LoRA](lora.md)). The head stays with its client unless `lora.head=shared`.

| `method` | idea | what is shared | server | assumes | paper |
| --- | --- | --- | --- | --- | --- |
"""
_LORA_NUMBERS = """
Up and down count numbers for each adapted layer of m × n weights, with rank r: A is r × n and B is m × r. The server merges K clients per round. *Exact*: the server's result is the mean of the products B A. *Secure*: secure aggregation can sum the uploads.

| `method` | up | down | exact | secure | alone |
| --- | --- | --- | --- | --- | --- |
"""
_LORA_FACTS = {
    "fedit": ("r (m + n)", "r (m + n)", "no", "local LoRA, from one first A"),
    "ffa_lora": ("r m", "r m", "yes", "local LoRA of B"),
    "fedsa_lora": ("r n", "r n", "B is private", "local LoRA, from one first A"),
    "flexlora": ("r (m + n)", "r (m + n)", "up to truncation", "LoRA, factorised again"),
    "rolora": ("r m or r n in turn", "r (m + n)", "yes", "LoRA, its factors in turn"),
    "flora": (
        "r (m + n)",
        "K r (m + n) per round so far, at most m n",
        "yes",
        "LoRA, merged and restarted",
    ),
    "fedex_lora": (
        "r (m + n)",
        "r (m + n), and (K − 1) r (m + n) per round so far, at most m n",
        "yes",
        "local LoRA, from one first A",
    ),
    "feddpa": ("r (m + n)", "r (m + n)", "no", "two LoRAs"),
    "fedalt": ("r (m + n)", "r (m + n)", "no", "Standalone"),
}
"""Of methods that exchange LoRA: up, down, exact, and what it is alone;
tests/methods/test_lora_numbers.py counts the numbers."""
_SHORT = {
    "equal representation widths (necks provide them)": "one width",
    "the server may know which classes a client holds": "classes known",
    "a small model of a known architecture: the federation's smallest": "a small model",
    "frozen encoders with normalised representations of one width": "frozen, normalised, one width",
    "the number of samples of each": "counts",
    "one base and one rank, `train=lora`": "one base, one rank",
}
"""What methods assume, as the table says it; the foot explains the short forms."""
_FOOT = """
## How to read the table

- **Up** and **down** are the floating-point numbers of one client's visit: with 10 classes of which it holds 2, and with
  100 of which it holds 10. They are for five CNNs (CNN-5 the smallest) with default options; those of one architecture, and of FedNCM, FedLDA and FedRidge, are for
  CNN-1. Up of these three is that of a first visit. Down is counted when every class has been reported.
- **Cost** is the operations of one training sample in a visit, relative to Standalone's: CNN-1, one epoch, from the second round on. With a smaller client model a small shared model weighs more. With more epochs
  pFedLoRA and the methods that report mean representations cost less per sample and epoch: they make one extra pass, after the last
  epoch. FedALA's is that of a client's second visit, the longest; FedBABU's has five epochs of fine-tuning, FedRep's ten of the head.
- **Server**: a weighted mean of the uploads; means by class; sums; or training on the uploads. A *composite* predicts with the client's model and its copy of the shared part together, so each prediction costs more.
- **Assumes** lists the requirements beyond labelled data at each client. *One width*: equal representation widths, which necks provide. *Classes known*: the server may know which classes a client holds, *counts* how many samples of each. *A small model*: of a known architecture, the federation's smallest. No method needs public data or all clients in
  every round: FD, FedProto, FedSSA and FedALT keep the last report of absent clients, and the sums of FedNCM, FedLDA and FedRidge hold it.
"""


ONE_MODEL = tuple(name for name in ANY_MODEL if registry.find(name).one_model)
"""Our methods, but for those of LoRA, that need one architecture."""


def page(costs: Mapping[str, str]) -> str:
    """docs/methods.md with these costs, by method."""
    return (
        _HEAD
        + "".join(_row(name, costs[name]) for name in ANY_MODEL if name not in ONE_MODEL)
        + _ONE_MODEL
        + "".join(_row(name, costs[name]) for name in ONE_MODEL)
        + _LORA
        + "".join(map(_lora_row, LORA))
        + _LORA_NUMBERS
        + "".join(map(_lora_numbers, LORA))
        + _FOOT
    )


def costs() -> dict[str, str]:
    """Every method's operations relative to Standalone's, counted."""
    yardstick = operations("standalone")
    return {name: f"{operations(name) / yardstick:.2f}" for name in ANY_MODEL}


def written_costs(text: str) -> dict[str, str]:
    """Those that a page holds."""
    rows = [
        line.split(" | ") for line in text.splitlines() if line.startswith("| `") and "<br>" in line
    ]
    return {row[0].split("`")[1]: row[5] for row in rows}


def operations(name: str) -> int:
    """Operations of client 0's visit in round 2, on an input of each class: its model is CNN-1, and
    two clients have reported before."""
    method = make(from_flat({"method": name, "setting": _setting(name), "rounds": 2}))
    state, data, uploads = method.state_init(1), samples(list(range(10))), dict[int, Upload]()
    models = [method.private_init(k, 1) for k in range(2)]
    for k, model in enumerate(models):
        uploads[k], _ = visit(method, model, method.download(state, k, 1), data, k, 1)
    state = method.aggregate(uploads, state, 1)
    _, second = visit(method, models[0], method.download(state, 0, 2), data, 0, 2)
    return sum(second.flops.values())


def sent(name: str) -> tuple[str, str]:
    """Numbers up and down, for 10 and for 100 classes."""
    if name == LESS_THAN_FML:
        return ("below FML's",) * 2
    equal = EQUAL[_setting(name)].get(name, ())
    both = {classes: (n, n) for classes, n in zip((10, 100), equal, strict=False)}
    both |= {
        classes: (up, down)
        for method, classes, _, up, down in CLASS_MEANS + HEADER_DOWN + OF_SUMS
        if method == name
    }
    up, down = (
        f"{ten:,} / {hundred:,}" if ten or hundred else "0"
        for ten, hundred in zip(both[10], both[100], strict=True)
    )
    return up, down


def _brief(assumes: str) -> str:
    for words, short in _SHORT.items():
        assumes = assumes.replace(words, short)
    return assumes


def _row(name: str, cost: str) -> str:
    found = registry.find(name)
    assumes = _ALONE[name] if name in ONE_MODEL else found.assumes
    if make(from_flat({"method": name, "setting": _setting(name)})).uses_rounds:
        assumes += "; depends on T"
    cells = (
        f"`{name}`<br>{found.title}",
        found.idea,
        found.shares,
        *sent(name),
        cost,
        found.merges,
        _brief(assumes),
        _linked(found.paper),
    )
    return f"| {' | '.join(cells)} |\n"


def _lora_row(name: str) -> str:
    found = registry.find(name)
    cells = (
        f"`{name}`<br>{found.title}",
        found.idea,
        found.shares,
        found.merges,
        _brief(found.assumes),
        _linked(found.paper),
    )
    return f"| {' | '.join(cells)} |\n"


def _lora_numbers(name: str) -> str:
    up, down, exact, alone = _LORA_FACTS[name]
    secure = "yes" if registry.find(name).averages else "no"
    return f"| {registry.title(name)} | {' | '.join((up, down, exact, secure, alone))} |\n"


def _linked(paper: str) -> str:
    head, colon, number = paper.replace("arXiv ", "arXiv:").partition("arXiv:")
    return f"{head}[arXiv {number}](https://arxiv.org/abs/{number})" if colon else head


def _setting(name: str) -> str:
    return "heterogeneous" if runs(name, "heterogeneous") else "homogeneous"


def listed(names: Iterable[str]) -> str:
    """Methods by their titles, in words."""
    *some, last = [registry.title(name) for name in names]
    return f"{', '.join(some)} and {last}" if some else last


def layers() -> str:
    """The table of the layers by which an audit tells what classes a client holds, by what each
    method's upload holds after a visit."""
    found: dict[str, list[str]] = {}
    for name in ANY_MODEL:
        found.setdefault(_layer(name), []).append(registry.title(name))
    rows = "".join(f"| {', '.join(titles)} | {layer} |\n" for layer, titles in found.items())
    return f"\n\n| method | the layer by class |\n| --- | --- |\n{rows}\n"


def _layer(name: str) -> str:
    keys = {"method": name, "setting": _setting(name), "models": "cnn5"}
    method = make(from_flat(keys))
    received = method.download(method.state_init(1), 0, 1)
    upload, _ = visit(method, method.private_init(0, 1), received, samples([2, 5]), 0, 1)
    left = shared_part(method, received, upload.tensors)
    if NAMED in left:
        return f"not needed: uploads name the classes (`{NAMED}`), so AUC is 1 by construction; there is no sum"
    return ", ".join(f"`{part}`" for part in by_class(left, method.classes)) or "none"


def _lists() -> dict[str, str]:
    """The lists of methods that documents hold between `<!-- methods: NAME -->` and
    `<!-- end -->`, by NAME."""
    methods = {name: registry.find(name) for name in registry.NAMES}
    return {
        "count": str(len(methods)),
        "files": ", ".join(f"`{name}.py`" for name in methods),
        "averaged": listed(name for name, found in methods.items() if found.averages),
        "one width": listed(name for name, found in methods.items() if found.one_width),
        "any width": listed(
            name for name, found in methods.items() if not found.one_width and name not in SUMS
        ),
    }


def with_lists(text: str) -> str:
    """A document with its lists as the classes have them."""
    lists = _lists()
    if _LAYERS in text:  # takes some seconds
        lists["layers by class"] = layers()
    return _LIST.sub(lambda found: f"{found[1]}{lists[found[2]]}{found[4]}", text)


def main() -> None:
    PAGE.write_text(page(costs()), encoding="utf-8")
    for file in WITH_LISTS:
        file.write_text(with_lists(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
