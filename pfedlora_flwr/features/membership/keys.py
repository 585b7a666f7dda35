"""The keys of clients that join later, or leave."""

from __future__ import annotations

from dataclasses import dataclass

from pfedlora_flwr.keys import Form, Listed, Section, key


def _joined(word: str) -> tuple[int, int]:
    last, clients = word.split(":")
    return int(last), int(clients)


def _left(word: str) -> tuple[int, int | str]:
    last, _, client = word.partition(":")
    if not (client and last.isascii() and last.isdigit()):
        last, client = "-1", word
    if not client:
        raise ValueError(word)
    return int(last), int(client) if client.isascii() and client.isdigit() else client


@dataclass(frozen=True)
class Members(Section):
    """Who joins a federation after its first round, and who leaves it."""

    joined: Listed[tuple[int, int]] = key(
        "",
        "clients that joined after round 1, as R:N: only the first N clients take part up to"
        " round R. Set by --resume with more `clients`",
        name="clients-joined",
        form=Form("R:N, or several of them", _joined, empty=True),
    )
    left: Listed[tuple[int, int | str]] = key(
        "",
        "clients that left, as R:K: client K is in no round after round R. K alone: in none, or"
        " with --resume in none after the run's last one, and K may be its site's name",
        name="clients-left",
        form=Form("R:K or K, or several of them", _left, empty=True),
    )

    def gone_after(self, round: int) -> set[int]:
        """The clients that are in no round after `round`; who is a site's name there has no number
        yet."""
        found = {client for last, client in self.left if last <= round}
        return {client for client in found if not isinstance(client, str)}
