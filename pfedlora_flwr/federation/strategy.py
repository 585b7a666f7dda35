"""The server's rounds: sample, send, admit, aggregate, checkpoint, record. One Strategy serves every method."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation import rows, wire
from pfedlora_flwr.federation.clients import Clients, Phase, Replies, RunFailed
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.federation.messages import Instruction, counts_from_metrics
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.federation.secagg import SecureUplink
from pfedlora_flwr.federation.sharing import BY_NAME
from pfedlora_flwr.federation.uplink import Collected, PlainUplink
from pfedlora_flwr.methods.method import Method, Refused
from pfedlora_flwr.rng import sample_clients
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.ledger import Cost, parameters, payload_bytes
from pfedlora_flwr.runs.rows import RoundRow
from pfedlora_flwr.training.flops import count_operations

logger = logging.getLogger(__name__)


class TimeIsOver(RuntimeError):
    """`max-hours` are over and rounds are left; what is done is on disk, and `--resume` continues it."""


class PersonalisedStrategy(Strategy):
    """Drives a `Method` over Flower's Message API. `state` is the server's memory, checkpointed after each round, of which
    `told` then gets the line.

    `complete` is this app's loop: it goes on from any checkpoint, bounds every wait and asks a client that failed once more. Flower's
    own `start` drives the same rounds of a new run, but for the evaluation of the initial models.
    """

    def __init__(
        self,
        experiment: Experiment,
        method: Method,
        run: RunDirectory,
        state: ServerState,
        told: Callable[[RoundRow], None] = lambda row: None,
    ) -> None:
        self.experiment = experiment
        self.method = method
        self.run = run
        self.state = state
        self.shared = BY_NAME[experiment.sharing](experiment, method, run, state)
        self.uplink: PlainUplink | SecureUplink = (
            SecureUplink(experiment, self.shared, run, self._fail, self._refuse_update)
            if experiment.secagg_enabled
            else PlainUplink(experiment, method, self.shared, self._refuse_update)
        )
        self._told = told
        self._started: tuple[Round, Clients] | None = None  # the round that Flower's `start` is in

    def complete(self, grid: Grid) -> None:
        """All rounds that are left.

        Raises RunFailed when too few nodes connect or too few clients succeed, TimeIsOver after `max-hours`.
        """
        e, began = self.experiment, time.monotonic()
        self.summary()
        if self.state.round >= e.rounds:  # a completed run is resumed without its nodes
            return
        clients, clock = self._connect(grid), Clock()
        if e.evaluate_initial and not self.state.counts:
            initial = Round(0, [], clock)
            self._evaluate(initial, clients)
            clock = self._finish(initial, clients)
        while self.state.round < e.rounds:
            clock.lap("record")  # the round before
            round = self._round(self.state.round + 1, clock)
            self._merge(round, self.uplink.train(round, clients))
            clock.lap("aggregate")
            if self.state.stale and e.evaluates(round.number):
                self._evaluate(round, clients)
            clock = self._finish(round, clients)
            if 0 < e.max_hours * 3600 <= time.monotonic() - began and self.state.round < e.rounds:
                raise TimeIsOver(f"stopped, since max-hours={e.max_hours:g} are over")

    def summary(self) -> None:
        """One line about the run in Flower's log."""
        e = self.experiment
        begins = f", going on after round {self.state.round}" if e.resume else ""
        text = "%s on %s: %d clients, %d a round, %d rounds, into %s%s"
        logger.info(
            text, e.method, e.dataset, e.clients, e.sampled, e.rounds, self.run.path, begins
        )
        if e.secagg_enabled:
            logger.info(
                "secure aggregation: no single update can be seen, nor refused for its size; in a simulation it protects nobody"
            )

    # Flower's `start`, which keeps the waits and hands the replies on

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The instructions to this round's sampled clients, as far as they are connected. The Experiment decides the rest."""
        if server_round != self.state.round + 1:
            raise RunFailed(
                f"Flower's start asks for round {server_round}, the run is after round {self.state.round}: `complete` goes on"
            )
        if not isinstance(self.uplink, PlainUplink):
            raise RunFailed(
                "secagg.enabled takes four stages a round, and Flower's start has one: `complete` goes through them"
            )
        clients = self._started[1] if self._started else self._connect(grid)
        round = self._round(server_round, Clock())
        self._started = round, clients
        return clients.messages(round, round.sampled, "training").values()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[None, MetricRecord]:
        """Merges what is admitted into `state`, which is not handed out. Raises RunFailed below `min-success`."""
        assert self._started is not None
        assert isinstance(self.uplink, PlainUplink)
        round, clients = self._started
        self._merge(
            round, self.uplink.admit(round, self._open(round, clients, round.sent, replies))
        )
        return None, MetricRecord({"admitted": len(round.visits)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The instructions to clients whose last evaluation is older than their model."""
        assert self._started is not None
        round, clients = self._started
        wanted = sorted(self.state.stale) if self.experiment.evaluates(server_round) else []
        return clients.messages(round, wanted, "evaluating").values()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        """Takes the counts that came, and writes the round."""
        assert self._started is not None
        round, clients = self._started
        wanted = self.state.stale if self.experiment.evaluates(server_round) else set()
        self._take_counts(round, self._open(round, clients, sorted(wanted), replies))
        self._finish(round, clients)
        return MetricRecord({"accuracy": self.state.mean_accuracy("test")})

    def _open(
        self, round: Round, clients: Clients, asked: Iterable[int], replies: Iterable[Message]
    ) -> Replies:
        """Those of the replies that are a client's and no error; who was asked and gave none has failed."""
        opened = {}
        for reply in replies:
            client = clients.roster.client_of.get(reply.metadata.src_node_id)
            if client is None:  # an error that does not say whose it is
                continue
            try:
                opened[client] = wire.read_reply(reply)
            except wire.Failed as failure:
                self._fail(round, client, str(failure))
        for client in asked:
            if client not in opened and client not in round.failures:
                self._fail(round, client, "no answer")
        return opened

    # A round

    def _connect(self, grid: Grid) -> Clients:
        return Clients(grid, self.experiment, self.run, self._message, self._fail, self._refuse)

    def _round(self, number: int, clock: Clock) -> Round:
        e = self.experiment
        return Round(number, sample_clients(e.seed, number, e.clients, e.sampled), clock)

    def _merge(self, round: Round, collected: Collected) -> None:
        """Merges the admitted uploads, in client order. Raises RunFailed below `min-success`."""
        e, state = self.experiment, self.state
        visits, uploads = collected.visits, collected.uploads
        state.round = round.number
        if not self._enough(
            round, f"round {round.number}", len(visits), e.sampled, collected.reason
        ):
            return
        state.failed_rounds = 0
        round.visits = visits
        if uploads:
            if e.audit_uploads:
                self.run.uploads.save(round.number, state.tensors, uploads)
            with count_operations() as operations:
                self.shared.merge(uploads, round.number)
            round.server_flops = operations.total
        for client, visit in visits.items():
            report = visit.report
            state.versions[client], state.models[client] = round.number, report.model_sha256
            state.stale.add(client)
            if report.counts is not None:
                state.counts[client] = report.counts
                state.stale.discard(client)
            if report.other_accuracies:
                state.other_accuracies[client] = report.other_accuracies
            if report.lost:
                logger.warning(
                    "client %d had lost its model: it started again from its initial one", client
                )

    def _evaluate(self, round: Round, clients: Clients) -> None:
        """Evaluates the clients whose last evaluation is older than their model: all of them before round 1."""
        wanted = range(self.experiment.clients) if round.number == 0 else sorted(self.state.stale)
        messages = clients.messages(round, wanted, "evaluating")
        self._take_counts(round, clients.ask(round, messages, "evaluating"))
        current = self.state.counts.keys() - self.state.stale
        trained = wanted if round.number == 0 else self.state.versions.keys() | current
        self._enough(round, f"the evaluation of round {round.number}", len(current), len(trained))
        round.clock.lap("evaluate")

    def _take_counts(self, round: Round, replies: Replies) -> None:
        for client, reply in replies.items():
            try:
                self.state.counts[client] = counts_from_metrics(reply.metrics)
                self.state.stale.discard(client)
            except Refused as refusal:
                self._refuse_update(round, client, str(refusal))

    def _enough(
        self, round: Round, what: str, succeeded: int, asked: int, reason: str = ""
    ) -> bool:
        """Whether the share of successes reaches `min-success`, and there is no other reason against it.

        Where it does not, the round is counted as failed. Raises RunFailed for the `max-failed-rounds`th in a row.
        """
        e = self.experiment
        wanted = e.enough_of(asked)
        if succeeded >= wanted and not reason:
            return True
        self.state.failed_rounds += 1
        if self.state.failed_rounds >= e.max_failed_rounds:
            told = (
                reason
                or f"{succeeded} of {asked} clients succeeded, min-success={e.min_success:g} wants {wanted}"
            )
            blamed = [f"client {client}: {why}" for client, why in round.failures.items()][:1]
            raise RunFailed("; ".join([f"{what}: {told}", *blamed]))
        if reason:
            logger.warning("%s: %s", what, reason)
            return False
        logger.warning("%s: only %d of %d clients succeeded", what, succeeded, asked)
        return False

    def _finish(self, round: Round, clients: Clients) -> Clock:
        """The round's lines, then its checkpoint: a resumed run drops the lines of a round that has none. The next round's clock."""
        state, next_clock = self.state, Clock()
        visits = rows.visit_rows(round)
        row = rows.round_row(round, state, visits)
        state.totals += round.cost()
        state.server_flops += round.server_flops
        state.seconds += row["seconds"] if round.number else 0.0
        state.training_seconds += row["training_seconds"]
        state.busy_seconds += row["training_seconds"] + row["evaluation_seconds"]
        clients.learn(visits, row["workers"])
        self.run.append_visits(visits)
        self.run.append_round(row)
        self.run.checkpoints.save(state)
        self._told(row)
        self.run.progress(phase="round", round=round.number, of=self.experiment.rounds)
        who = f"{len(visits)} of {len(round.sampled)} clients" if round.number else "initial models"
        text = "round %d/%d · accuracy %.4f · %s · %.1f s"
        logger.info(
            text, round.number, self.experiment.rounds, row["accuracy"], who, row["seconds"]
        )
        return next_clock

    # What the clients are told, and what they are refused

    def _message(self, round: Round, client: int, node: int, phase: Phase) -> tuple[Message, Cost]:
        e = self.experiment
        training = phase == "training"
        down = (
            self.method.download(self.shared.of(client), client, round.number) if training else {}
        )
        config = Instruction(
            round=round.number,
            client=client,
            version=self.state.versions.get(client, 0),
            token=self.run.token,
            run=str(self.run.path),
            evaluate=not training or e.evaluates(round.number),
            names=list(down),
        ).to_config()
        if not training:
            return wire.evaluate_message(node, round.number, config, e.round_timeout), Cost()
        message = wire.train_message(node, round.number, down, config, e.round_timeout)
        return message, Cost(
            parameters_down=parameters(down),
            bytes_down=payload_bytes(down),
            wire_down=wire.size_of(message.content),
        )

    def _refuse(self, reason: str) -> None:
        """A message or a node that is refused and belongs to no client."""
        self.state.refused += 1
        logger.warning("%s", reason)

    def _refuse_update(self, round: Round, client: int, reason: str) -> None:
        self.state.refused += 1
        self._fail(round, client, f"refused: {reason}")

    def _fail(self, round: Round, client: int, reason: str) -> None:
        logger.warning("round %d: client %d: %s", round.number, client, reason)
        round.failures[client] = reason
        self.run.append_visits([rows.failed_visit(round.number, client, reason)])
