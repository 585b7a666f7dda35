"""A run begun anew without one of its sites, from the newest state in which nothing of it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.features.membership.record import LATER, text_of
from pfedlora_flwr.runs.begin import Begin
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import read_about
from pfedlora_flwr.runs.rows import Origin


@dataclass(frozen=True)
class Without(Begin):
    """Of the run `old` with all but one of its clients: goes on from the newest state that is kept
    of it in which nothing of this client is. `wanted` has the old keys."""

    old: RunDirectory
    client: int
    goes_on = True

    @classmethod
    def of(cls, old: RunDirectory, client: int, run: RunDirectory) -> Without:
        """Raises UserError where `old` holds no run that can go on."""
        old.check_resumable()
        old.check_whole()
        return cls(run, old.run_config(), old, client)

    def check(self) -> None:
        old, e, told = self.old, self.wanted.experiment, f"without is {self.client}"
        if not 0 <= self.client < e.trained_clients:
            raise UserError(
                f"{told}; allowed: a client of {old.path}, 0 to {e.trained_clients - 1}"
            )
        if old.partition != OWN:
            raise UserError(
                f"{told}, and the clients of {old.path} share one dataset, of which every client's"
                " part would change; only sites with data of their own can be forgotten, and"
                f" {LATER} are not trained"
            )
        if e.start_from:
            raise UserError(
                f"{told}, and {old.path} began from {e.start_from}, which may hold something of"
                " this client: train that one without it, and begin from there"
            )
        if e.fixes_clients:
            raise UserError(f"{told}; with {e.fixes_clients} begin a new run without its site")
        leave = f"resume=true and clients-left={self.client} lets it leave"
        if e.state_per_client:
            raise UserError(
                f"{told}, and with {e.control} no other client's model knows of it; {leave}"
            )
        if self._first is None:
            raise UserError(
                f"{told}, which took part in no round of {old.path}: nothing of it is there;"
                f" {leave}"
            )

    @cached_property
    def config(self) -> RunConfig:
        e, x = self.wanted.experiment, self.wanted.execution
        since = self.after if self._state else -1
        left = [(min(last, since), k) for last, k in e.members.left if k != self.client]
        left.append((since, self.client))
        fewer = x.min_clients and min(x.min_clients, e.clients - len(left))
        changed = replace(
            x, output=str(self.run.path), overwrite=False, resume=False, min_clients=fewer
        )
        return RunConfig(e.replace(**{"members.left": text_of(left)}), changed)

    @property
    def after(self) -> int:
        return self._state.round if self._state else 0

    @property
    def is_begun(self) -> bool:
        """Whether the new directory holds this run already."""
        last = self.run.origins()[-1:] if self.run.holds_run else []
        return [(o["run"], o.get("without")) for o in last] == [(str(self.old.path), self.client)]

    def words(self) -> list[str]:
        """What it keeps and what it costs."""
        if self.is_begun:
            last = self.run.last_round()
            return [f"{self.run.path} holds this run, and goes on after round {last}"]
        again = [row for row in self.old.rounds() if row["round"] > self.after]
        visits = sum(len(row["sampled"]) for row in again)
        seconds = sum(row["seconds"] for row in again)
        begins = "the run begins at the start, as a fresh run without this client"
        if self._state is not None:
            begins = f"the state after round {self.after} is kept, and the run begins there"
        elif self._first and self._first > 1:
            kept = "only those at which a site joined, and the last two"
            begins = f"no state before it is kept ({kept}): {begins}"
        return [
            f"client {self.client} first took part in round {self._first}; {begins}",
            f"rounds to repeat: {len(again)} with {visits} visits, which took {seconds:.0f} s",
        ]

    def claim(self, *, simulated: bool = False) -> None:
        """Makes the new directory, in which `Resume` goes on. Raises UserError where there is
        something."""
        new, old, state = self.run, self.old, self._state
        if new.path.exists():
            raise UserError(f"output {str(new.path)!r} exists; choose another")
        new.server.mkdir(parents=True)
        tokens = (o["token"] for o in old.origins() if o["round"] >= self.after)
        mine: Origin = {
            "run": str(old.path),
            "without": self.client,
            "round": self.after,
            "token": next(tokens, old.token),
        }
        # with the client's number, by which its node is known and turned away
        new.write_origin(old, mine)
        new.write_token()
        new.write_partition(OWN)
        if state is not None:
            for kept in old.checkpoints.pinned().values():
                if kept.round <= state.round:
                    new.checkpoints.save(kept)
                    new.checkpoints.pin(kept.round)
            new.checkpoints.save(state)
            for row in old.rounds():
                if row["round"] <= state.round:
                    new.append_round(row)
            new.append_visits(row for row in old.visits() if row["round"] <= state.round)
        history = read_about(old.config).get("history", ()) if state else ()
        new.write_config(self.config, history, self.after)

    @cached_property
    def _first(self) -> int | None:
        """The round in which the client was first sampled, or 0: evaluated before round 1."""
        before = self.wanted.experiment.clients_in(0)
        took = {r["round"]: r["sampled"] if r["round"] else before for r in self.old.rounds()}
        return next((round for round, clients in took.items() if self.client in clients), None)

    @cached_property
    def _state(self) -> ServerState | None:
        first, checkpoints = self._first or 0, self.old.checkpoints
        kept = [state for r, state in checkpoints.pinned().items() if r < first]
        if any(r < first for r in checkpoints.rounds()):
            kept += filter(None, [checkpoints.load(before=first)])
        return max(kept, key=lambda state: state.round, default=None)
