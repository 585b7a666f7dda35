"""What a run's lines say of its clients: when each was last heard of, and how often it failed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from pfedlora_flwr.runs.lines import SoFar, Tail
from pfedlora_flwr.runs.rows import REFUSED, FailedVisitRow, RoundRow, VisitRow


@dataclass
class Client:
    """A client so far.

    round: the last one that admitted an update of it; 0: none. failures: visits without an admitted
    answer; in_a_row: those since the last that was admitted; refused: those of them whose answer
    came and was not admitted. reason: of the last failure."""

    round: int = 0
    failures: int = 0
    in_a_row: int = 0
    refused: int = 0
    reason: str | None = None


class Standing:
    """The rounds and the clients of a run that goes on; each line is read once.

    clients: only those that have a line. ended: by round, the Unix time of its end."""

    def __init__(self, rounds: Path, clients: Path) -> None:
        self._rounds = Tail(rounds, self._begin_rounds, self._take_round)
        self._clients = Tail(clients, self._begin_clients, self._take_visit)
        self._begin_rounds()
        self._begin_clients()

    def look(self) -> Standing:
        """Takes up what has been appended since the last look."""
        self._rounds.look()
        self._clients.look()
        return self

    def seen(self, client: int) -> float | None:
        """The Unix time at which the last round ended that admitted an update of the client; None:
        none has."""
        admitted = self.clients[client].round if client in self.clients else 0
        return self.ended.get(admitted) if admitted else None

    def _begin_rounds(self) -> None:
        self.so_far = SoFar()
        self.ended: dict[int, float] = {}

    def _begin_clients(self) -> None:
        self.clients: dict[int, Client] = defaultdict(Client)

    def _take_round(self, row: RoundRow) -> None:
        self.so_far = self.so_far.after(row)
        if "ended" in row:
            self.ended[row["round"]] = row["ended"]

    def _take_visit(self, row: VisitRow | FailedVisitRow) -> None:
        client = self.clients[row["client"]]
        if row["status"] == "ok":
            client.round, client.in_a_row = row["round"], 0
            return
        client.failures += 1
        client.in_a_row += 1
        client.refused += row["reason"].startswith(REFUSED)
        client.reason = row["reason"]
