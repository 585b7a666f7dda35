"""A run that is trained anew without a client: from the newest kept state in which nothing of this
client is, in a new directory."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import read_about
from pfedlora_flwr.runs.rows import Origin


@dataclass(frozen=True)
class Anew:
    """The run of `run` without `client`, which first took part in round `first`: state is the one
    that it begins with; None: the initial one."""

    run: RunDirectory
    client: int
    first: int
    state: ServerState | None

    @classmethod
    def plan(cls, run: RunDirectory, client: int) -> Anew:
        """Raises UserError where nothing can be forgotten, or not in this way."""
        run.check_resumable()
        run.check_whole()
        e, told = run.experiment(), f"without is {client}"
        if not 0 <= client < e.trained_clients:
            raise UserError(
                f"{told}; allowed: a client of {run.path}, 0 to {e.trained_clients - 1}"
            )
        if run.partition != OWN:
            raise UserError(
                f"{told}, and the clients of {run.path} share one dataset, of which every client's"
                " part would change; only sites with data of their own can be forgotten, and a new"
                " run has clients-held-out for clients that are not trained"
            )
        if e.fixes_clients:
            raise UserError(f"{told}; with {e.fixes_clients} begin a new run without its site")
        if e.sharing == "none":
            raise UserError(
                f"{told}, and with sharing=none no other client's model knows of it;"
                f" resume=true and clients-left={client} lets it leave"
            )
        # it was evaluated before round 1, or sampled
        took = {r["round"]: r["sampled"] if r["round"] else e.clients_in(0) for r in run.rounds()}
        first = next((round for round, clients in took.items() if client in clients), None)
        if first is None:
            raise UserError(
                f"{told}, which took part in no round of {run.path}: nothing of it is there;"
                f" resume=true and clients-left={client} lets it leave"
            )
        checkpoints = run.checkpoints
        kept = [state for r, state in checkpoints.pinned().items() if r < first]
        if any(r < first for r in checkpoints.rounds()):
            kept += filter(None, [checkpoints.load(before=first)])
        return cls(run, client, first, max(kept, key=lambda state: state.round, default=None))

    @property
    def round(self) -> int:
        """The round after which it begins."""
        return self.state.round if self.state else 0

    def words(self) -> list[str]:
        """What it keeps and what it costs."""
        again = [row for row in self.run.rounds() if row["round"] > self.round]
        visits = sum(len(row["sampled"]) for row in again)
        seconds = sum(row["seconds"] for row in again)
        came = f"client {self.client} first took part in round {self.first}"
        if self.state is not None:
            begins = f"the state after round {self.round} is kept, and the run begins there"
        elif self.first <= 1:
            begins = "the run begins at the start, as a fresh run without this client"
        else:
            begins = (
                "no state before it is kept (only those at which a site joined, and the last two):"
                " the run begins at the start, as a fresh run without this client"
            )
        return [
            f"{came}; {begins}",
            f"rounds to repeat: {len(again)} with {visits} visits, which took {seconds:.0f} s",
        ]

    def is_begun(self, new: RunDirectory) -> bool:
        """Whether `new` holds this run without this client already."""
        last = new.origins()[-1:] if new.holds_run else []
        return [(o["run"], o["without"]) for o in last] == [(str(self.run.path), self.client)]

    def begin(self, new: RunDirectory) -> None:
        """Makes the new directory, in which `--resume` goes on. Raises UserError where there is
        something."""
        if new.path.exists():
            raise UserError(f"output {str(new.path)!r} exists; choose another")
        old, e = self.run, self.run.experiment()
        since = self.round if self.state else -1
        left = [(min(last, since), k) for last, k in e.clients_left if k != self.client]
        names = [f"{r}:{k}" if r >= 0 else str(k) for r, k in [*left, (since, self.client)]]
        x = old.run_config().execution
        wanted = x.min_clients and min(x.min_clients, e.clients - len(names))
        config = RunConfig(
            e.replace(clients_left=",".join(names)),
            replace(x, output=str(new.path), overwrite=False, resume=False, min_clients=wanted),
        )
        new.server.mkdir(parents=True)
        write_atomically(new.origins_file, json.dumps(self._origins()).encode())
        if old.numbers_file.exists():
            # with the client's, by which its node is known and turned away
            write_atomically(new.numbers_file, old.numbers_file.read_bytes())
        new.write_token()
        new.write_partition(OWN)
        if self.state is not None:
            for kept in old.checkpoints.pinned().values():
                if kept.round <= self.round:
                    new.checkpoints.save(kept)
                    new.checkpoints.pin(kept.round)
            new.checkpoints.save(self.state)
            for row in old.rounds():
                if row["round"] <= self.round:
                    new.append_round(row)
            new.append_visits(row for row in old.visits() if row["round"] <= self.round)
        history = read_about(old.config).get("history", ()) if self.state else ()
        new.write_config(config, history, self.round)

    def _origins(self) -> list[Origin]:
        """The runs whose sites' models it goes on from, each up to a round."""
        held = self.run.origins()
        mine: Origin = {
            "run": str(self.run.path),
            "without": self.client,
            "round": self.round,
            "token": next((o["token"] for o in held if o["round"] >= self.round), self.run.token),
        }
        return [*(o for o in held if o["round"] < self.round), mine]
