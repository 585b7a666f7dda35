"""The name of a run's data: the dataset of its Experiment, or the sites' own data, never a path of
theirs.

A deployed server learns which it is from its nodes. Whatever names a run's data (log, table,
`result.json`, report, model card) takes the name from here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pfedlora_flwr.data import registry
from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.errors import counted
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.runs.checkpoint import Counts
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.records import read_json
from pfedlora_flwr.runs.rows import OwnData, Result
from pfedlora_flwr.training import kinds


def keep_sites(
    run: RunDirectory,
    own: Collection[int],
    classes: Sequence[str],
    columns: Sequence[str],
    versions: Mapping[int, Mapping[str, str]],
    names: Mapping[int, str],
) -> None:
    """Keeps which clients have told that their data is their own, its classes and columns, and
    each client's versions and its site's name, which goes along to another number."""
    before = read_json(run.sites_file) or {}
    everyone = sorted({*before.get("own", []), *own})
    told: dict[str, Any] = {"own": everyone, "classes": [*classes], "columns": [*columns]}
    known = {str(client): dict(of) for client, of in versions.items()}
    told["versions"] = before.get("versions", {}) | known
    of = {str(client): name for client, name in names.items()}
    gone = {c: name for c, name in before.get("names", {}).items() if name not in of.values()}
    told["names"] = gone | of
    if (everyone or known) and told != before:
        write_atomically(run.sites_file, json.dumps(told).encode())


def sites_told(run: RunDirectory) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the classes and of the columns of the sites' own data; empty where an older
    version did not keep them."""
    told = read_json(run.sites_file) or {}
    return tuple(told.get("classes", ())), tuple(told.get("columns", ()))


def versions_told(run: RunDirectory) -> dict[str, int]:
    """How many nodes have which versions, in words; empty of a simulation."""
    told = (read_json(run.sites_file) or {}).get("versions", {})
    return dict(Counter(", ".join(f"{name} {v}" for name, v in of.items()) for of in told.values()))


def data_name(run: RunDirectory, e: Experiment) -> str:
    """`digits`, `own data of 3 sites` or `digits, and own data of 2 sites`."""
    return _name(e, len(_sites(run)), run.partition)


def data_told(run: RunDirectory, e: Experiment, task: Task) -> str:
    """The name and, of own data, the kind and shape of its inputs and its classes."""
    return data_name(run, e) + (f": {task}, {task.classes} classes" if run.partition == OWN else "")


def own_data(
    run: RunDirectory,
    task: Task,
    training: Mapping[int, int | None],
    counts: Mapping[int, Counts],
) -> OwnData | None:
    """What the sites' own data is, as far as they have told; None where no site has any.

    training: the number of training samples of each client that told it. counts: of each client's
    last evaluation."""
    sites = _sites(run)
    if not sites and run.partition != OWN:
        return None
    whole = [
        samples + counts[k].validation + counts[k].test
        for k in sites
        if (samples := training.get(k)) is not None and k in counts
    ]
    return {
        "sites": len(sites),
        "kind": task.kind.name,
        "shape": list(task.shape),
        "classes": task.classes,
        "samples": sum(whole) if sites and len(whole) == len(sites) else None,
    }


def own_in_words(result: Result) -> str:
    """A result's own data: `own data of 3 sites: vectors of 4, 3 classes, 600 samples`; empty where
    it has none."""
    own = result.get("own_data")
    if own is None:
        return ""
    samples = [] if own["samples"] is None else [f"{own['samples']:,} samples"]
    parts = [kinds.named(own["kind"]).of(tuple(own["shape"])), f"{own['classes']} classes"]
    return f"{result['dataset']}: {', '.join(parts + samples)}"


def is_own(about: Mapping[str, Any]) -> bool:
    """Whether a client's model was trained on its site's own data, by what lies beside it."""
    return bool(about.get("partition") == OWN or "dataset" in about["site"])


def client_data(about: Mapping[str, Any], e: Experiment, task: Task) -> str:
    """The data of one client: of own data the kind of its source, and kind and shape of its
    inputs."""
    if not is_own(about):
        return registry.without_path(e.dataset)
    source = about["site"].get("dataset")
    kind = f" ({registry.find(source).name.rstrip(':')})" if source else ""
    return f"own data of its site{kind}: {task}, {task.classes} classes"


def _sites(run: RunDirectory) -> list[int]:
    """The clients whose data is their own, as far as they have told."""
    return (read_json(run.sites_file) or {}).get("own", [])


def _name(e: Experiment, sites: int, partition: str | None) -> str:
    if not sites and partition != OWN:
        return e.dataset
    # an older version's run does not know how many
    who = counted(sites, "site") if sites else "its sites"
    own = f"own data of {who}"
    return own if partition == OWN else f"{registry.without_path(e.dataset)}, and {own}"
