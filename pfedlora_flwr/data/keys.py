"""The keys of data: how a dataset is read, and divided among clients."""

from __future__ import annotations

from dataclasses import dataclass

from pfedlora_flwr.keys import Section, key


@dataclass(frozen=True)
class PartitionKeys(Section):
    """How samples are assigned to clients."""

    kind: str = key("pathological", "how samples are assigned to clients")
    classes_per_client: int = key(
        2,
        "classes per client (pathological); their product with the number of clients must be a"
        " multiple of the number of classes; auto, in a run: 2, or the smallest number that divides"
        " evenly",
        low=1,
        needs="partition.kind=pathological",
    )
    alpha: float = key(
        0.3,
        "concentration of the Dirichlet distribution",
        above=0,
        needs="partition.kind=dirichlet",
    )
    min_samples: int = key(
        10,
        "owners with fewer samples are left out (natural)",
        low=10,
        needs="partition.kind=natural",
    )
    samples_per_client: int | None = key(
        None,
        "maximum of training samples per client, taken from its classes in turn; validation and"
        " test parts stay; auto: all",
        low=2,
    )
