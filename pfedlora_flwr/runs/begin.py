"""How a run begins: each way is a class with its checks, what it does in the run's directory, and
what it says. `find` finds the way by the run's keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from pfedlora_flwr import config
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError, counted, some
from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features import records
from pfedlora_flwr.features.records import RECORDS, outliving
from pfedlora_flwr.features.rules import GROWING
from pfedlora_flwr.files import LOOK, absolute
from pfedlora_flwr.runs import code_copy
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.data_name import data_name
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.layout import FILES, FOREIGN, OBSERVED, RESULT, RunFiles
from pfedlora_flwr.runs.output import from_here, of_run
from pfedlora_flwr.runs.provenance import read_about
from pfedlora_flwr.runs.renewal import Renewal

Flat = Mapping[str, object]
_DYING = 60.0
"""Seconds that a server may need to notice that its SuperLink was restarted, and to let go of its
run."""


@dataclass(frozen=True)
class Begin:
    """A way to begin. run: the directory. wanted: the keys that it is begun with."""

    run: RunDirectory
    wanted: RunConfig
    goes_on: ClassVar[bool] = False
    """Whether a run that is there goes on."""
    replaces: ClassVar[bool] = False

    @property
    def config(self) -> RunConfig:
        """The run's keys. Raises UserError."""
        return self.wanted

    @property
    def after(self) -> int:
        """The round after which it begins."""
        return 0

    @property
    def is_done(self) -> bool:
        """Whether all rounds are done: nothing will be trained."""
        return False

    def check(self) -> None:
        """Raises UserError unless the run may begin so. Changes nothing."""
        raise NotImplementedError

    def claim(self, *, simulated: bool = False) -> None:
        """Has the directory for this process alone, with nothing in it but what the run goes on
        with. Raises UserError; simulated: when its clients' models are gone, too."""
        raise NotImplementedError

    def take_up(self) -> ServerState | None:
        """The state that it begins with, in a directory that is claimed; None: the method's."""
        return self.run.take_up(self.config.experiment)

    def words(self) -> list[str]:
        """What is said of it before it starts. Raises UserError where it cannot."""
        return []


class Fresh(Begin):
    """In a directory of its own, from nothing or from an earlier run's models (`start-from`)."""

    @cached_property
    def renewal(self) -> Renewal | None:
        return Renewal.of(self.wanted)

    @property
    def after(self) -> int:
        return self.renewal.after if self.renewal else 0

    def words(self) -> list[str]:
        return self.renewal.words() if self.renewal else []

    def check(self) -> None:
        if self.renewal:
            self.renewal.check()
        self._check_place()

    def _check_place(self) -> None:
        run, path = self.run, str(self.run.path)
        inside = run.path.iterdir() if run.path.is_dir() else iter(())
        found = {p.name for p in inside if not any(p.match(foreign) for foreign in FOREIGN)}
        folders = run.server, run.clients, run.logs, run.source, run.events, run.rows
        ours = {*FILES, *(p.name for p in (*folders, run.uploads.folder))}
        foreign = not found <= ours | {run.report.name, *OBSERVED}
        if foreign and (self.replaces or not run.holds_run):
            so = ", so it is not overwritten" if self.replaces else "; choose another"
            raise UserError(f"output {path!r} is not a run's directory{so}")
        if run.path.is_file():
            raise UserError(f"output {path!r} is a file; choose a directory")
        never_began = found <= {run.logs.name, RESULT} or (found <= ours and run.is_void)
        if not self.replaces and not never_began:
            raise UserError(
                f"output {path!r} exists; continue it with resume=true, replace it with"
                " overwrite=true, or choose another"
            )

    def claim(self, *, simulated: bool = False) -> None:
        run = self.run
        run.lock(LOOK)
        e = None
        with suppress(UserError):  # no run is here, or none that can be read
            e = run.experiment()
        run.clear(outliving(run, e))
        run.write_token()
        if (begins := self.renewal) and (old := begins.old):
            for record in RECORDS:
                record.carry(old, begins.saved, run, self.wanted.experiment)
        if begins:
            begins.hand_over(run, simulated=simulated)
        run.write_config(self.config, last_round=self.after)  # last: now it can be resumed


class Replace(Fresh):
    """In the place of the run that is there, if one is."""

    replaces = True


@dataclass(frozen=True)
class Resume(Begin):
    """Goes on with the run that is there: perhaps to more rounds, with sites that join, or without
    those that leave."""

    goes_on = True

    @cached_property
    def config(self) -> RunConfig:
        return records.resumed(self.run, self.wanted)

    @property
    def after(self) -> int:
        return self.run.last_round()

    @property
    def is_done(self) -> bool:
        return self.run.is_completed(self.wanted.experiment)

    def check(self) -> None:
        run, wanted = self.run, self.wanted.experiment
        run.check_resumable()
        run.check_whole()
        saved = run.experiment()
        same = records.as_before(wanted, saved)
        check_same(run, same, "resume it with its own keys; only more rounds extend it")
        check_extension(run, wanted)
        for record in RECORDS:
            record.check_extension(run, saved, wanted)
        code_copy.check_unchanged(run, self.config)

    def claim(self, *, simulated: bool = False) -> None:
        """Adds to the run's history; for more rounds than it had, as if it had had them from the
        start."""
        run = self.run
        if simulated:
            check_models(run, self.config.experiment)
        run.lock(_DYING)
        last = self.after
        if last < self.config.experiment.rounds:
            history = read_about(run.config).get("history", ())
            once = dict.fromkeys(("resume", "overwrite", "accept_changed_code"), False)
            begun, saved = self.config.executed(**once), run.run_config().executed(**once)
            now, before = begun.execution.flat(), saved.execution.flat()
            was = {name: text for name, text in before.items() if now[name] != text}
            run.write_config(begun, history, last, was)

    def words(self) -> list[str]:
        run, e = self.run, self.wanted.experiment
        check_models(run, e)
        before = run.experiment().rounds
        line = (
            f"continuing {e.method} on {data_name(run, e)} in {from_here(run.path)}:"
            f" rounds {self.after + 1} to {e.rounds}"
        )
        more = f" (it was to end at {before})" if e.rounds != before else ""
        return [line + more]


def find(run: RunDirectory, wanted: RunConfig) -> Begin:
    """The way that the keys ask for."""
    x = wanted.execution
    way = Resume if x.resume else Replace if x.overwrite else Fresh
    return way(run, wanted)


def continued(config: RunConfig) -> RunConfig:
    """The run as it goes on from what its directory holds. What one that was killed before its
    first line leaves is nothing to resume, and one that has rounds left and no longer has any of
    its models begins anew."""
    run = RunDirectory(Path(config.execution.output))
    begun = run.holds_run
    with suppress(UserError):  # a checkpoint that cannot be read: the run itself says so
        if begun:
            faults = _faults(run, config.experiment, run.checkpoints.load())
            # one that is whole ends the search
            begun = not (next(faults, "") and all(faults))
    return config.executed(resume=begun, overwrite=not begun)


def resumed_output(named: Flat, conf: Path | None) -> Path:
    """The directory of the run that these keys mean, which need not be all of its keys. Raises
    UserError for a wrong one."""
    values = config.parse(named)
    execution = Execution.of(values)
    config.check_way(execution)
    output = of_run(RunConfig(Experiment.of(values), execution), conf)
    absolute(output)
    return output.expanduser()


def resumed(run: RunDirectory, conf: Flat, options: Flat, conf_name: str) -> tuple[RunConfig, str]:
    """The keys of `run` with those that a resumed run may change, and a line on the
    `rounds` of CONF where they are not used.

    conf: the keys that CONF names. options: those given by -o, which win; `rounds` among them
    extends the run. Raises UserError, with the names, for any other key that can change a result
    and is not what the run has."""
    run.check_resumable()
    saved = run.experiment()
    named = {
        name: value
        for name, value in {**conf, **options}.items()
        if name != "rounds" or name in options
    }
    if (clients := config.parse(named).get("clients", saved.clients)) != saved.clients:
        records.check_clients(run, saved, clients)
    check_unchanged(saved, named, run.path)
    going_on = config.run_config(
        {**run.saved_keys(), "overwrite": False, "accept-changed-code": False, **named}
    )
    wanted, rounds = config.parse({} if "rounds" in options else conf), saved.rounds
    if (of_conf := wanted.get("rounds", rounds)) == rounds:
        return going_on, ""
    line = f"{conf_name} says rounds={of_conf}; this run ends at {rounds}"
    return going_on, line + (f"; rounds={of_conf} extends it" if of_conf > rounds else "")


def check_unchanged(saved: Experiment, named: Flat, path: Path) -> None:
    """Raises UserError, with the keys as `key: was → is`, where a named one differs and can change
    a result; `rounds`, and what features let grow, are not looked at."""
    before, changed = saved.keys(), []
    for name, value in config.parse(named).items():
        # of the Execution, or another method's option: a run leaves it out
        if name not in before or name == "rounds" or name in GROWING:
            continue
        key, was = before[name]
        wanted = config.located_value(key, value)
        if wanted != was:
            changed.append(f"{name}: {key.text(was)!r} → {key.text(wanted)!r}")
    _check_none(changed, path, f"resume it with its own keys: without CONF, by output={path}")


def check_same(run: RunFiles, new: Experiment, advice: str) -> None:
    """Raises UserError, with the keys that differ, when the run is of another Experiment."""
    a, b = run.experiment().flat(), new.flat()
    pairs = ((name, a.get(name), b.get(name)) for name in a | b)
    changed = [f"{name}: {was!r} → {wanted!r}" for name, was, wanted in pairs if was != wanted]
    _check_none(changed, run.path, advice)


def _check_none(changed: Sequence[str], path: Path, advice: str) -> None:
    if changed:
        told = f"output {str(path)!r} holds a different Experiment ({'; '.join(changed)})"
        raise UserError(f"{told}; {advice}")


def check_extension(run: RunFiles, wanted: Experiment) -> None:
    """Raises UserError unless the run can go on to the rounds of `wanted` and be what that one is
    from the start."""
    config, path = run.run_config(), run.path
    saved = config.experiment
    if wanted.rounds < saved.rounds:
        raise UserError(
            f"rounds is {wanted.rounds}; the run in {str(path)!r} ends at {saved.rounds}: it can be"
            f" extended, not shortened; rounds={saved.rounds} is its length"
        )
    if wanted.rounds == saved.rounds:
        return
    whose = f"lr-schedule={saved.lr_schedule}" if saved.lr_schedule != "constant" else ""
    if Setup.of(config).method.uses_rounds:
        whose = f"method {saved.method}"
    if whose:
        raise UserError(
            f"rounds is {wanted.rounds}; with {whose} each round depends on how many there are: "
            f"a run of {saved.rounds} cannot be extended; start a new one"
        )


def check_models(run: RunFiles, e: Experiment) -> None:
    """Raises UserError where rounds are left and a simulated client's model, or its state on the
    server, is missing or not what the checkpoint knows: it would begin anew, and the run come to
    other bits."""
    state = run.checkpoints.load()
    found = [*_faults(run, e, state)]
    faults = [fault for fault in found if fault]
    if state is None or not faults:
        return
    ways = ["restore what is missing or damaged"] if len(faults) < len(found) else []
    with suppress(UserError):  # of a checkpoint that cannot be read
        before = run.checkpoints.load(before=state.round)
        if before and before.versions and not any(_faults(run, e, before)):
            ways.append(f"remove {run.checkpoints.paths()[-1]} to go on after round {before.round}")
    ways.append("begin a new run")
    raise UserError(
        f"output {str(run.path)!r} does not hold the models of {counted(len(faults), 'client')}"
        f" after round {state.round}, from which more rounds would go on ({some(faults, 1)}):"
        f" {', or '.join(ways)}; real nodes keep their own (superlink=…), and `compare` removes"
        " them"
    )


def _faults(run: RunFiles, e: Experiment, state: ServerState | None) -> Iterator[str]:
    """Of each client that is to go on why it cannot; empty where it can. Of nobody if no round is
    left."""
    if state is None or state.round >= e.rounds:
        return
    gone = e.gone(state.round + 1)
    for client, version in state.versions.items():
        if client not in gone:
            fault = run.client_store(client).fault(version, state.models.get(client))
            if not fault and client in state.states:
                fault = run.server_store(client).fault(version, state.states[client])
            yield fault
