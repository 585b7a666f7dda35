"""The checks before a run starts: one function each, and their list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data.partition import NATURAL
from pfedlora_flwr.errors import UserError, some, user_code
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.features import plans
from pfedlora_flwr.features.records import notes_of
from pfedlora_flwr.federation.reach import unreached
from pfedlora_flwr.launch.processes import check_port
from pfedlora_flwr.launch.resources import check_engine, device_here, resources
from pfedlora_flwr.launch.trainable import check_trainable
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models.named import RANDOM_WEIGHTS, random_encoders
from pfedlora_flwr.models.spec import specs_of
from pfedlora_flwr.observers.registry import observers_of
from pfedlora_flwr.runs.begin import Begin, find
from pfedlora_flwr.runs.code_copy import collect
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.training.device import emulates_bf16
from pfedlora_flwr.training.metrics import SENSITIVITY

_WAYS_OUT = (
    "the ways out: neck=always, train=all, or a method that shares the head (lg_fedavg, fedssa) or"
    " adds to it (pfedlora_plus with adapter.predict=sum)"
)
"""Of a head that learns alone. It is a valid control."""

Say = Callable[[str], None]
"""Takes a line for the user."""


def nothing(_: object) -> None:
    """Takes it, and says nothing."""


@dataclass(frozen=True)
class Start:
    """A run that is about to start. port: of its SuperLink; 0: a free one."""

    config: RunConfig
    engine: str = "flower"
    port: int = 0

    @property
    def run(self) -> RunDirectory:
        return self.begin.run

    @cached_property
    def begin(self) -> Begin:
        """How it begins, in its directory."""
        return find(RunDirectory(Path(self.config.execution.output)), self.config)

    @cached_property
    def setup(self) -> Setup:
        return Setup.of(self.config)

    @cached_property
    def done(self) -> bool:
        """Whether it is a completed run that is resumed: nothing will be trained."""
        return self.begin.is_done


def check(start: Start, say: Say) -> None:
    """Goes through CHECKS, and passes on what they say. Raises UserError for the first that
    fails."""
    for one in CHECKS:
        for line in () if start.done and one in OF_TRAINING else one(start) or ():
            say(line)


def of_scenario(start: Start) -> Iterable[str]:
    """What a comparison says of one of its runs before it starts: a list of checks as `run` has
    them, without those of the run's own directory. Raises UserError."""
    return (line for one in OF_SCENARIO for line in one(start) or ())


def of_nodes(start: Start) -> Iterable[str]:
    """The same of a run on real nodes, whose data is not here."""
    yield from (line for one in (_reach, _method, _privacy) for line in one(start))
    yield from plans.of_nodes(start.config)


def preflight(config: RunConfig) -> None:
    """Whether the run could train here: device, observers, data, models and method. Raises
    UserError."""
    device_here(config)
    observers_of(config.execution)
    check_trainable(config)


def _engine(start: Start) -> Iterable[str]:
    check_engine(start.engine, start.config.execution)
    if start.port and start.engine == "local":
        raise UserError(f"port={start.port} is for the engine flower: the local engine opens none")
    if start.engine == "flower":
        return
    x = start.config.execution
    if x.actors:
        yield "warning: actors is not used: the local engine is one process"
    if x.lanes != 1 and not start.done and (device := device_here(start.config)):
        what = "auto is 1" if x.lanes is None else "they take turns"
        if device.type == "cpu":
            yield f"warning: lanes gain nothing on a CPU: {what}"


def _trainable(start: Start) -> None:
    preflight(start.config)


def _reach(start: Start) -> Iterable[str]:
    e, names = start.config.experiment, list[str]()
    if {*e.train} != {"all"}:
        with user_code("method", e.method):
            names = [*unreached(start.setup.method)]
    if names:
        yield (
            f"warning: {e.method} trains clients of {', '.join(names)} as standalone does: nothing"
            " before their head is trained, and what is shared cannot reach a prediction;"
            f" {_WAYS_OUT}"
        )


def _precision(start: Start) -> Iterable[str]:
    """A line where this machine is many times slower with the run's `precision` than without."""
    wanted = start.config.experiment.precision == "bf16"
    if wanted and (device := device_here(start.config)) and emulates_bf16(device):
        yield (
            "warning: precision is bf16, for which this processor has no instructions: a round"
            " takes many times as long as with fp32"
        )


def _method(start: Start) -> Iterable[str]:
    return of_method(start.setup.method)


def of_method(method: Method) -> list[str]:
    """What is to be known of the run's models, and what its method has to say of them, a line
    each."""
    e = method.experiment
    frozen = () if "all" in e.train else random_encoders(specs_of(e))
    told = [f"{name} is frozen (train={e.train}), and {RANDOM_WEIGHTS}" for name in frozen]
    return [f"warning: {line}" for line in (*told, *method.remarks())]


def _resources(start: Start) -> None:
    if start.engine == "flower":
        resources(start.config, anew=True)


def _begin(start: Start) -> None:
    start.begin.check()


def check_score(score: str, names: Sequence[str]) -> None:
    """Raises UserError where `verdict.score` is of a class that the data has not."""
    of = score.removeprefix(SENSITIVITY)
    if of != score and of not in names:
        raise UserError(
            f"verdict.score is {score}, and no class is {of!r}; the classes: {some(names)}"
        )


def _data(start: Start) -> Iterable[str]:
    e, x = start.config.experiment, start.config.execution
    if start.begin.goes_on and not start.done:
        start.run.check_partition(start.setup.partition.fingerprint)
    check_score(x.verdict_score, start.setup.dataset.class_names)
    told = start.setup.remarks
    if e.data.client_column and e.partition.kind != NATURAL:
        told = [
            f"data.client-column makes no clients: partition.kind is {e.partition.kind}, and"
            f" {NATURAL} does; the column is only left out of the inputs",
            *told,
        ]
    return [f"warning: {line}" for line in told]


def _port(start: Start) -> None:
    if start.port:
        check_port(start.port)


def _own_code(start: Start) -> Iterable[str]:
    left_out = collect(start.config.flat()).warning
    return [f"warning: {left_out}"] if left_out else ()


def _privacy(start: Start) -> Iterable[str]:
    return notes_of(start.config.experiment)


def _features(start: Start) -> Iterable[str]:
    return plans.of_run(start.begin)


CHECKS: tuple[Callable[[Start], Iterable[str] | None], ...] = (
    _engine,
    _trainable,
    _reach,
    _precision,
    _method,
    _resources,
    _begin,
    _data,
    _port,
    _own_code,
    _privacy,
    _features,
)
"""In order. Each may return lines for the user, or raises UserError; none changes anything."""
OF_TRAINING = (_trainable, _reach, _precision, _method, _resources, _own_code, _features)
"""Those of what will be trained: nothing is where a completed run is resumed."""
OF_RUNS = (_engine, _resources, _begin, _port)
"""Those of where one run is and how it is carried out: a comparison has its own."""
OF_SCENARIO = tuple(check for check in CHECKS if check not in OF_RUNS)
