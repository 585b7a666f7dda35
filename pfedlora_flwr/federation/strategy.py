"""The server's rounds: sample, send, admit, aggregate, checkpoint, record. One Strategy serves every method."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.admission import Turn, admit, outliers, read_figures
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.federation.roster import Roster, exchange
from pfedlora_flwr.methods.method import Method, Refused
from pfedlora_flwr.rng import sample_clients
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import Row, RunDirectory
from pfedlora_flwr.runs.ledger import Entry, parameters, payload_bytes

logger = logging.getLogger(__name__)


class RunFailed(RuntimeError):
    """The run cannot go on; what it has done is on disk, and `--resume` continues it."""


class PersonalisedStrategy(Strategy):
    """Drives a `Method` over Flower's Message API, with a loop of its own: every wait is bounded and every round is on disk.

    `state` is the server's memory; after each round it is checkpointed, and a resumed run starts from it.
    """

    def __init__(self, experiment: Experiment, method: Method, run: RunDirectory, state: ServerState) -> None:
        self.experiment = experiment
        self.method = method
        self.run = run
        self.state = state
        self.roster: Roster
        self._asked: dict[str, int] = {}  # the client behind each message of this round
        self._sent: dict[int, Entry] = {}  # what this round has sent down, by client
        self._failures: dict[int, str] = {}  # this round's clients without an admitted answer, and why
        self._turns: dict[int, Turn] = {}
        self._seconds: dict[int, float] = {}  # by client, how long its last turn took: long ones start first
        self._workers = 0  # processes that trained in the last round
        self._clock = Clock()  # of this round

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Result:
        """All rounds that are left. The Experiment decides everything: Flower's other arguments are not used.

        Raises RunFailed when too few nodes connect or too few clients succeed.
        """
        e, nothing = self.experiment, (ArrayRecord(), ConfigRecord())
        self.summary()
        if self.state.round < e.rounds:  # a completed run is resumed without its nodes
            self._connect(grid)
            self._clock = Clock()
            if e.evaluate_initial and not self.state.figures:
                self._evaluate(grid, 0)
                self._clock.lap("evaluate")
                self._finish_round(0, [])
        while self.state.round < e.rounds:
            self._clock.lap("record")  # the round before
            round = self.state.round + 1
            self._asked, self._sent, self._failures, self._turns = {}, {}, {}, {}
            sampled = sample_clients(e.seed, round, e.clients, e.sampled)
            messages = self.configure_train(round, *nothing, grid)
            self._clock.lap("prepare")
            replies = self._ask(grid, round, messages, self._train_message)
            self._clock.lap("wait")
            self.aggregate_train(round, replies)
            self._clock.lap("aggregate")
            self.state.round = round
            if self.state.stale and self.experiment.evaluates(round):
                self._evaluate(grid, round)
                self._clock.lap("evaluate")
            self._finish_round(round, sampled)
        result = Result()
        result.arrays = ArrayRecord(wire.to_arrays(self.state.tensors))
        return result

    # Flower's Strategy, in the order of a round

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The instructions to this round's sampled clients, as far as they are connected."""
        e = self.experiment
        sampled = sample_clients(e.seed, server_round, e.clients, e.sampled)
        return [self._train_message(client, server_round) for client in self._connected(sampled, server_round)]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Admits the replies and merges the admitted uploads, in client order. Raises RunFailed below `min-success`."""
        e, state = self.experiment, self.state
        for reply in replies:
            client = self._asked[reply.metadata.reply_to_message_id]
            try:
                self._turns[client] = self._admit(wire.read_reply(reply), client, server_round)
            except Refused as refusal:
                self._refuse_update(client, server_round, str(refusal))
        uploads = {client: self._turns[client].upload for client in sorted(self._turns)}
        for client, reason in outliers(uploads, self.method, e.clip_norm_factor).items():
            self._refuse_update(client, server_round, reason)
        self._turns = {client: self._turns[client] for client in sorted(self._turns) if client not in self._failures}
        if not self._enough(len(self._turns), e.sampled, f"round {server_round}"):
            self._turns = {}
            return None, None
        state.failed_rounds = 0
        if self._turns:
            uploads = {client: turn.upload for client, turn in self._turns.items()}
            state.tensors = self.method.aggregate(uploads, state.tensors, server_round)
        for client, turn in self._turns.items():
            state.versions[client], state.models[client] = server_round, turn.model_sha256
            state.stale.add(client)
            if turn.figures is not None:
                state.figures[client] = turn.figures
                state.stale.discard(client)
            if turn.report.lost:
                logger.warning("client %d had lost its model: it started again from its initial one", client)
        return ArrayRecord(wire.to_arrays(state.tensors)), MetricRecord({"admitted": len(self._turns)})

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The instructions to clients whose last evaluation is older than their model: everyone in round 0."""
        wanted = range(self.experiment.clients) if server_round == 0 else sorted(self.state.stale)
        return [self._evaluate_message(client, server_round) for client in self._connected(wanted, server_round)]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Takes the figures that came."""
        for reply in replies:
            client = self._asked[reply.metadata.reply_to_message_id]
            try:
                self.state.figures[client] = read_figures(wire.read_reply(reply).metrics)
                self.state.stale.discard(client)
            except Refused as refusal:
                self._refuse_update(client, server_round, str(refusal))
        return MetricRecord({"accuracy": self.state.mean_accuracy("test")})

    def summary(self) -> None:
        """One line about the run in Flower's log."""
        e = self.experiment
        logger.info(
            "%s on %s: %d clients, %d a round, %d rounds, into %s",
            e.method,
            e.dataset,
            e.clients,
            e.sampled,
            e.rounds,
            self.run.path,
        )

    # The loop's own parts

    def _connect(self, grid: Grid) -> None:
        e = self.experiment
        memory, patience = self.run.numbers_file, min(60.0, e.node_timeout / 2)
        self.roster = Roster(grid, e.clients, memory, self.run.partition, self._refuse, patience)
        wanted = e.min_clients or e.clients

        def report(connected: int) -> None:
            self.run.progress(phase="connecting", done=connected, of=wanted)

        if not self.roster.wait_for_count(wanted, e.node_timeout, report):
            reasons = "; ".join(f"node {node}: {why}" for node, why in list(self.roster.refused.items())[:3])
            raise RunFailed(
                f"only {len(self.roster.node_of)} of {wanted} clients connected within node-timeout ({e.node_timeout:g} s); "
                + (f"turned away: {reasons}" if reasons else "start their nodes, or lower min-clients")
            )
        self.run.write_partition(self.roster.partition)

    def _connected(self, clients: Iterable[int], round: int) -> list[int]:
        """Those of the clients that are connected, waiting for the others, which count as failed once away for `node-timeout`."""
        clients = list(clients)
        if any(c not in self.roster.node_of for c in clients):
            self.roster.wait_for(clients, self.experiment.node_timeout)
        for client in clients:
            if client not in self.roster.node_of:
                self._fail(client, round, "not connected")
        return [c for c in clients if c in self.roster.node_of]

    def _refuse(self, reason: str) -> None:
        """A message or a node that is refused and belongs to no client."""
        self.state.refused += 1
        logger.warning("%s", reason)

    def _ask(self, grid: Grid, round: int, messages: Sequence[Message], again: Callable[[int, int], Message]) -> list[Message]:
        """The replies that are no errors. A client that failed is asked once more within the round."""
        deadline, done = time.monotonic() + self.experiment.round_timeout, 0
        replies: list[Message] = []
        of = len(messages)

        def arrived() -> None:
            nonlocal done
            done = min(done + 1, of)
            self.run.progress(phase="training" if again == self._train_message else "evaluating", round=round, done=done, of=of)

        for attempt in (1, 2):
            failed: dict[int, str] = {}
            clients = self.roster.client_of
            messages = sorted(messages, key=lambda m: -self._seconds.get(clients[m.metadata.dst_node_id], 0.0))
            for message, reply in exchange(grid, messages, max(1.0, deadline - time.monotonic()), self._refuse, arrived, 2 * self._workers):
                client = clients[message.metadata.dst_node_id]
                self._asked[message.metadata.message_id] = client
                try:
                    wire.read_reply(reply)
                except wire.Failed as failure:
                    failed[client] = str(failure)
                else:
                    assert reply is not None
                    replies.append(reply)
            if attempt == 2 or not failed or time.monotonic() >= deadline:
                break
            for client, reason in failed.items():
                logger.warning("round %d: client %d failed (%s); it is asked once more", round, client, reason)
            self.roster.refresh()
            messages = [again(client, round) for client in self._connected(failed, round)]
        for client, reason in failed.items():
            if client not in self._failures:
                self._fail(client, round, reason)
        return replies

    def _admit(self, reply: wire.Reply, client: int, round: int) -> Turn:
        e = self.experiment
        return admit(reply, self.method, self.state.tensors, client, round, e.max_samples, self.experiment.evaluates(round))

    def _evaluate(self, grid: Grid, round: int) -> None:
        messages = self.configure_evaluate(round, ArrayRecord(), ConfigRecord(), grid)
        self.aggregate_evaluate(round, self._ask(grid, round, messages, self._evaluate_message))
        current = self.state.figures.keys() - self.state.stale
        trained = range(self.experiment.clients) if round == 0 else self.state.versions.keys() | current
        self._enough(len(current), len(trained), f"the evaluation of round {round}")

    def _enough(self, succeeded: int, asked: int, what: str) -> bool:
        """Whether the share of successes reaches `min-success`. Raises RunFailed when it does not, `max-failed-rounds` times in a row."""
        e = self.experiment
        if succeeded >= math.ceil(e.min_success * asked - 1e-9):
            return True
        self.state.failed_rounds += 1
        if self.state.failed_rounds < e.max_failed_rounds:
            logger.warning("%s: only %d of %d clients succeeded", what, succeeded, asked)
            return False
        client, reason = next(iter(self._failures.items()), (-1, "it was not asked"))
        raise RunFailed(
            f"{what}: {succeeded} of {asked} clients succeeded, min-success={e.min_success:g} wants "
            f"{math.ceil(e.min_success * asked - 1e-9)}; client {client}: {reason}"
        )

    def _fail(self, client: int, round: int, reason: str) -> None:
        logger.warning("round %d: client %d: %s", round, client, reason)
        self._failures[client] = reason
        self.run.append_visits([{"round": round, "client": client, "status": "failed", "reason": reason}])

    def _refuse_update(self, client: int, round: int, reason: str) -> None:
        self.state.refused += 1
        self._fail(client, round, f"refused: {reason}")

    def _train_message(self, client: int, round: int) -> Message:
        down = self.method.download(self.state.tensors, client, round)
        config = self._instruction(client, round) | {"evaluate": self.experiment.evaluates(round)}
        message = wire.train_message(self.roster.node_of[client], round, down, config, self.experiment.round_timeout)
        sent = Entry(parameters_down=parameters(down), bytes_down=payload_bytes(down), wire_down=wire.size_of(message.content))
        self._sent[client] = self._sent.get(client, Entry()) + sent
        return message

    def _evaluate_message(self, client: int, round: int) -> Message:
        return wire.evaluate_message(self.roster.node_of[client], round, self._instruction(client, round), self.experiment.round_timeout)

    def _instruction(self, client: int, round: int) -> wire.Config:
        """What every instruction names: the round, the model version to take up, and where a simulated client keeps it."""
        version = self.state.versions.get(client, 0)
        return {
            "round": round,
            "client": client,
            "version": version,
            "token": self.run.token,
            "run": str(self.run.path),
        }

    def _finish_round(self, round: int, sampled: list[int]) -> None:
        """The round's lines, then its checkpoint: a resumed run drops the lines of a round that has none."""
        state = self.state
        laps, self._clock = self._clock.laps, Clock()
        seconds = sum(laps.values())
        rows, total, work = [], Entry(), {"train": 0.0, "evaluate": 0.0}
        for client, turn in self._turns.items():
            row, entry = self._client_row(round, client, turn)
            rows.append(row)
            total += entry
            work = {k: work[k] + row["seconds"].get(k, 0.0) for k in work}
        total += sum((self._sent[c] for c in self._sent if c not in self._turns), Entry())
        self._workers = len({turn.report.worker for turn in self._turns.values()})
        self._seconds |= {row["client"]: sum(row["seconds"].values()) for row in rows}
        state.totals += total
        state.seconds += seconds if round else 0.0
        state.training_seconds += work["train"]
        state.busy_seconds += sum(work.values())
        losses = [row["loss"] for row in rows]
        self.run.append_visits(rows)
        self.run.append_round(
            {
                "round": round,
                "sampled": sampled,
                "admitted": list(self._turns),
                "refused": sorted(self._failures),
                "accuracy": state.mean_accuracy("test"),
                "validation_accuracy": state.mean_accuracy("validation"),
                "evaluated": len(state.figures),
                "second": self._mean_second(),
                "loss": statistics.fmean(losses) if losses else None,
                **total.as_dict(),
                "seconds": seconds,
                "server_seconds": laps,
                "training_seconds": work["train"],
                "evaluation_seconds": work["evaluate"],
                "workers": self._workers,
            }
        )
        self.run.checkpoints.save(state)
        self.run.progress(phase="round", round=round, of=self.experiment.rounds)
        accuracy = state.mean_accuracy("test")
        admitted = f"{len(self._turns)} of {len(sampled)} clients" if round else "initial models"
        logger.info("round %d/%d · accuracy %.4f · %s · %.1f s", round, self.experiment.rounds, accuracy, admitted, seconds)

    def _client_row(self, round: int, client: int, turn: Turn) -> tuple[Row, Entry]:
        report, up = turn.report, turn.upload.tensors
        entry = replace(
            self._sent[client],
            parameters_up=parameters(up),
            bytes_up=payload_bytes(up),
            wire_up=turn.wire_bytes,
            flops=sum(report.flops.values()),
        )
        if report.second:
            self.state.second[client] = report.second
        row: Row = {
            "round": round,
            "client": client,
            "status": "ok",
            "model": report.model,
            "samples": turn.upload.samples,
            "lost": report.lost,
            "loss": report.loss,
            "losses": report.losses,
        }
        if turn.figures is not None:
            f = turn.figures
            row |= {
                "accuracy": f.test_correct / max(1, f.test),
                "validation_accuracy": f.validation_correct / max(1, f.validation),
            }
        return row | {
            "second": report.second,
            **entry.as_dict(),
            "flops_by_phase": report.flops,
            "seconds": report.seconds,
        }, entry

    def _mean_second(self) -> dict[str, float]:
        """Each second figure's mean over the clients that have it."""
        names = dict.fromkeys(name for figures in self.state.second.values() for name in figures)
        return {n: statistics.fmean(f[n] for f in self.state.second.values() if n in f) for n in names}
