"""What a run will take, from its Experiment alone: operations, seconds, disk. Rough: for plans, never for results."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.local import task_of
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods import registry as methods
from pfedlora_flwr.models.cost import sample_flops
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.ledger import payload_bytes

START = 12.0
"""Seconds until a run's first round: a SuperLink, Ray, and an actor's imports."""
GUESS = 40e9
"""Operations a second of one actor before any run has been timed."""
_KEPT_WHILE_RUNNING = 3


def work(e: Experiment) -> float:
    """The operations of a run of plain local training: every method's are of this size."""
    samples = datasets.count_samples(e.dataset, Reading.of(e))
    return (
        e.rounds
        * e.sampled
        * 0.8
        * samples
        / e.clients
        * e.local_epochs
        * 3
        * sample_flops(e, task_of(e))
    )


class Speed:
    """Operations a second, from finished runs: the same method's where there are any."""

    def __init__(self, actors: int) -> None:
        self._actors = actors
        self._seen: dict[str, list[tuple[float, float]]] = {}

    def learn(self, e: Experiment, seconds: float) -> None:
        """A run of `e` took `seconds` in its rounds."""
        self._seen.setdefault(e.method, []).append((work(e), seconds))

    @property
    def guessed(self) -> bool:
        """Whether no run has been timed yet."""
        return not self._seen

    def seconds(self, e: Experiment) -> float:
        """What a run of `e` will take, its start included."""
        seen = self._seen.get(e.method) or [pair for pairs in self._seen.values() for pair in pairs]
        total = [sum(parts) for parts in zip(*seen, strict=True)]
        speed = total[0] / max(total[1], 1e-9) if seen else GUESS * self._actors
        return START + work(e) / speed


def model_bytes(e: Experiment) -> int:
    """Disk for one version of all clients' models."""
    return _model_bytes(e.replace(seed=0, output=""))


def state_bytes(e: Experiment) -> int:
    """Disk, at most, for one version of the states that lie beside the server's checkpoint: with `sharing=none`, one a client."""
    return _state_bytes(e.replace(seed=0, output="")) if e.sharing == "none" else 0


def upload_bytes(e: Experiment) -> int:
    """Disk, at most, for the uploads that `audit.uploads` keeps, and for the state that each round began with."""
    if not e.audit_uploads:
        return 0
    method = methods.make(e, task_of(e))
    return (
        e.rounds
        * (e.sampled + 1)
        * method.largest_upload(method.state_init(derive(e.seed, "state")))
    )


def disk(runs: Iterable[Experiment], *, kept: bool = True) -> int:
    """Disk for the runs: each has up to three versions of its models and states while it runs; one, if they are `kept`, when it is done.
    What `audit.uploads` keeps stays."""
    runs = list(runs)
    sizes = [model_bytes(e) + state_bytes(e) for e in runs]
    running, uploads = max(sizes, default=0), sum(upload_bytes(e) for e in runs)
    return uploads + (
        sum(sizes) + (_KEPT_WHILE_RUNNING - 1) * running if kept else _KEPT_WHILE_RUNNING * running
    )


@lru_cache(maxsize=256)
def _model_bytes(e: Experiment) -> int:
    method = methods.make(e, task_of(e))
    sizes = []
    for k in range(len(method.model_names)):
        kept = method.private_init(k, 0).state_dict().values()
        sizes.append(sum(t.numel() * t.element_size() for t in kept))
    return sum(sizes[k % len(sizes)] for k in range(e.clients))


@lru_cache(maxsize=256)
def _state_bytes(e: Experiment) -> int:
    method = methods.make(e, task_of(e))
    first = method.state_init(derive(e.seed, "state"))
    grown = 0 if method.averages else method.largest_upload(first)  # a table begins empty
    return e.clients * (payload_bytes(first) + grown)
