"""Estimates a run's operations, seconds and disk from its Experiment. The estimates are rough: for
plans, never for results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data import datasets
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.federation.server_state import first_state
from pfedlora_flwr.models.cost import sample_flops
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.models.registry import of_client
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.ledger import payload_bytes

START = 12.0
"""Seconds until a run's first round: a SuperLink, Ray, and an actor's imports."""
WARM_START = 0.5
"""The same in a process that has imported everything already."""
GUESS = 40e9
"""Operations a second of one actor before any run has been timed."""
_VISIT = 1.6e9
"""Operations that stand for what a visit takes beside its training, mostly reading, writing and
evaluation: 40 ms at this guess, measured with small tables."""
_KEPT_WHILE_RUNNING = 3
NODES_START, NODES_ROUNDS = 30.0, 0.1
"""Of a run on real nodes: the seconds until its first round, and rounds a second before any has
been timed, by Flower's polling alone."""


def work(config: RunConfig) -> float:
    """The operations of a run of plain local training: every method's are of this size. A frozen
    encoder's outputs are kept, so every sample passes it once."""
    e, setup = config.experiment, Setup.of(config)
    held = 0.8 * datasets.count_samples(e.dataset, setup.reading) / e.clients
    samples = min(held, e.partition.samples_per_client or held)
    forward, visits = sample_flops(e, setup.task), e.rounds * e.sampled
    if {*e.train} == {"head"} and not e.augment:
        return e.clients * (samples + held / 4) * forward + visits * _VISIT
    return visits * (samples * e.local_epochs * 3 * forward + _VISIT)


class Speed:
    """Operations a second, from finished runs: the same method's where there are any."""

    def __init__(
        self,
        actors: int,
        start: float = START,
        work: Callable[[RunConfig], float] = work,
        guess: float = GUESS,
    ) -> None:
        """start: seconds until a run's first round. work: of a run; guess: of it a second, of one
        actor, before any has been timed."""
        self._actors, self._start, self._work, self._guess = actors, start, work, guess
        self._seen: dict[str, list[tuple[float, float]]] = {}

    def learn(self, config: RunConfig, seconds: float) -> None:
        """A run took `seconds` in its rounds."""
        self._seen.setdefault(config.experiment.method, []).append((self._work(config), seconds))

    def learn_whole(self, config: RunConfig, seconds: float) -> None:
        """A run took `seconds` of wall-clock time from its start to its end, whatever else the
        machine did."""
        self.learn(config, max(0.0, seconds - self._start))

    @property
    def guessed(self) -> bool:
        """Whether no run has been timed yet."""
        return not self._seen

    def seconds(self, config: RunConfig) -> float:
        """What a run will take, its start included."""
        own = self._seen.get(config.experiment.method)
        seen = own or [pair for pairs in self._seen.values() for pair in pairs]
        total = [sum(parts) for parts in zip(*seen, strict=True)]
        speed = total[0] / max(total[1], 1e-9) if seen else self._guess * self._actors
        return self._start + self._work(config) / speed


def of_nodes() -> Speed:
    """That of real nodes, in rounds: what the sites have, only they know."""
    return Speed(1, NODES_START, lambda config: config.experiment.rounds + 1.0, NODES_ROUNDS)


def traffic(config: RunConfig) -> tuple[int, int]:
    """Bytes of one client in a round, at most: up and down."""
    e = config.experiment
    method = Setup.of(config).method
    state = first_state(e, method)
    up = method.largest_upload(state)
    clients = range(min(e.clients, len(method.model_names)))
    down = max(up, *(payload_bytes(method.download(state, k, 1)) for k in clients))
    # each round before adds at most its uploads
    return up, down + min(method.download_growth(state), (e.rounds - 1) * e.sampled * up)


def model_bytes(config: RunConfig) -> int:
    """Disk for one version of all clients' models."""
    return _model_bytes(_seedless(config))


def state_bytes(config: RunConfig) -> int:
    """Disk, at most, for one version of the states that lie beside the server's checkpoint: of
    clients that have one each."""
    return _state_bytes(_seedless(config)) if config.experiment.state_per_client else 0


def upload_bytes(config: RunConfig) -> int:
    """Disk, at most, for the uploads that `audit.uploads` keeps, and for the state that each round
    began with."""
    if not config.execution.keeps_uploads:
        return 0
    e, method = config.experiment, Setup.of(config).method
    largest = method.largest_upload(method.state_init(derive(e.seed, "state")))
    return e.rounds * (e.sampled + 1) * largest


def disk(runs: Iterable[RunConfig], *, kept: bool = True) -> int:
    """Disk for the runs: each has up to three versions of its models and states while it runs; one,
    if they are `kept`, when it is done. What `audit.uploads` keeps stays."""
    runs = list(runs)
    sizes = [model_bytes(run) + state_bytes(run) for run in runs]
    running, uploads = max(sizes, default=0), sum(upload_bytes(run) for run in runs)
    return uploads + (
        sum(sizes) + (_KEPT_WHILE_RUNNING - 1) * running if kept else _KEPT_WHILE_RUNNING * running
    )


def _seedless(config: RunConfig) -> Setup:
    """Of runs that differ in their seed alone, the same."""
    return Setup(config.experiment.replace(seed=0), config.execution.data_path)


@lru_cache(maxsize=256)
def _model_bytes(setup: Setup) -> int:
    method = setup.method
    sizes = [payload_bytes(kept(method.private_init(k, 0))) for k in range(len(method.model_names))]
    return sum(of_client(k, sizes) for k in range(setup.experiment.clients))


@lru_cache(maxsize=256)
def _state_bytes(setup: Setup) -> int:
    e, method = setup.experiment, setup.method
    first = method.state_init(derive(e.seed, "state"))
    grown = 0 if method.averages else method.largest_upload(first)  # a table begins empty
    return e.clients * (payload_bytes(first) + grown)
