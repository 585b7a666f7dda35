"""A client's own guard around Flower's SecAgg+ mod: it decides what leaves the client, on which
terms, and what never does."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message

from pfedlora_flwr.errors import UserError, brief, for_users, told
from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.experiment import Experiment, at_least
from pfedlora_flwr.features.masks.keys import LEVELS
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.flower_compat import (
    ClientAppCallable,
    ErrorCode,
    FitIns,
    FitRes,
    Key,
    Stage,
    all_are_neighbours,
    forget_keys,
    hide_samples,
    kept_for,
    kept_threshold,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
    secagg_record,
    secaggplus_mod,
)
from pfedlora_flwr.federation.messages import failure_in
from pfedlora_flwr.federation.secure import masks, unmasked
from pfedlora_flwr.federation.secure.figures import SIZE, Words, figures_of
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.clear import in_the_clear
from pfedlora_flwr.site.policy import policy_for

logger = logging.getLogger(__name__)
MODULUS = 2**32
"""Sums are taken modulo this."""
_ALL_SHARES, _SHARES = 20, 21
"""Up to so many clients each holds a share of every other's keys; beyond, so many neighbours do."""


def terms(e: Experiment, x: Execution, clients: int) -> dict[str, int | float]:
    """The settings of Flower's protocol for a round of so many clients: those that the server sends
    and each client expects.

    More than two thirds of the shares unmask: with fewer, clients that are told different lists of
    lost ones could together hand out the keys of all of a client's neighbours and its own mask."""
    shares = min(x.secagg_shares or (clients if clients <= _ALL_SHARES else _SHARES), clients)
    return {
        Key.SAMPLE_NUMBER: clients,
        Key.SHARE_NUMBER: shares,
        Key.THRESHOLD: max(at_least(x.secagg_threshold, shares), 2 * shares // 3 + 1),
        Key.CLIPPING_RANGE: e.secagg.clip,
        Key.TARGET_RANGE: LEVELS,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: float(e.masked_weight),
    }


class Guard:
    """A mod of the ClientApp. What it refuses is one line in the reply, and nothing else leaves the
    client.

    A site's scores are told in the clear if its rules say `scores="told"`; else they are in the sum
    alone, and it is not evaluated outside a visit.

    config_of: the run's keys, from the context.
    """

    def __init__(self, config_of: Callable[[Context], RunConfig]) -> None:
        self._config_of = config_of

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        config = self._config_of(context)
        e = config.experiment
        try:
            if e.secagg.enabled and message.metadata.message_type == wire.EVALUATE:
                raise UserError(
                    "the server asks for the scores of one client; under masks they are only in the"
                    " sum of a round"
                )
            if e.secagg.enabled and message.metadata.message_type == wire.TRAIN:
                return self._in_stage(config, message, context, call_next)
        # ours, Flower's, the cipher's or a user's: none may carry anything out
        except Exception as error:
            said = for_users(error)
            logger.warning("%s", said or brief(error), exc_info=not said)
            line = said or f"{told(error)} (see the node's log)"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, line), reply_to=message)
        return call_next(message, context)

    def _in_stage(
        self, config: RunConfig, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """Flower's mod, between the checks of what it is asked and of what it answers."""
        record = secagg_record(message.content)
        if record is None:
            raise UserError("the server asks for a plain upload; secagg.enabled is set here")
        masks.install()
        policy = policy_for(context.node_config)
        e, stage, drawn, sent = config.experiment, record.get(Key.STAGE), None, b""
        figures = np.zeros(0, np.int64)

        def visit(message: Message, context: Context) -> Message:
            nonlocal drawn, figures
            ins, answer = wire.fit_instruction(message), call_next(message, context)
            told = policy.masks.scores == "told" and policy.egress.scores == "each"
            clear = in_the_clear(e, scores_told=told)
            reply, seed, masked = _update(e, message, ins, answer, clear)
            figures = figures_of(wire.fit_answer(answer).metrics)
            masked += figures.tobytes()
            unmasked.begin(context, str(ins.config["token"]), int(ins.config["round"]), masked)
            drawn = np.random.get_state()
            # for the rounding, so that the sum's bits are those of the updates
            np.random.seed(seed % 2**32)
            return reply

        try:
            if stage == Stage.SETUP:
                _check_terms(config, record, policy.masks.fewest)
            elif stage == Stage.COLLECT_MASKED_VECTORS:
                node = message.metadata.dst_node_id
                _check_sources(node, record, context)
                members = {*record[Key.SOURCE_LIST], node} if all_are_neighbours(context) else ()
                sent = masks.received(e, wire.fit_instruction(message), members)
            elif stage == Stage.UNMASK:
                _check_unmasking(message.metadata.dst_node_id, record, context, policy.masks.fewest)
                unmasked.hand_out(context, record[Key.ACTIVE_NODE_ID_LIST])
            with masks.bound_to(sent):
                reply = secaggplus_mod(message, context, visit)
        finally:
            if drawn is not None:
                np.random.set_state(drawn)
            if stage == Stage.UNMASK:  # keys and shares serve once
                forget_keys(context)
        if stage == Stage.COLLECT_MASKED_VECTORS:
            _finish(reply, figures)
        return reply


def _check_terms(config: RunConfig, record: Mapping[str, Any], least: int) -> None:
    e, x = config.experiment, config.execution
    clients = record.get(Key.SAMPLE_NUMBER)
    if type(clients) is not int or clients < least:
        raise UserError(
            f"the server sums {clients!r} clients; a sum of fewer than {least} hides nobody"
        )
    fewest = x.enough_of(e.sampled)
    if not fewest <= clients <= e.sampled:
        raise UserError(
            f"the server sums {clients} clients; this run samples {e.sampled} and needs {fewest} of"
            " them"
        )
    for name, expected in terms(e, x, clients).items():
        if record.get(name) != expected:
            raise UserError(
                f"the server sets {name} to {record.get(name)!r}, this node expects {expected!r}"
            )


def _check_sources(node: int, record: Mapping[str, Any], context: Context) -> None:
    """Each neighbour's mask once: one twice leaves fewer keys to learn than the threshold says."""
    sources = record[Key.SOURCE_LIST]
    neighbours = _kept(context, "public_keys_dict", Stage.SHARE_KEYS) - {node}
    if len({*sources}) < len(sources):
        raise UserError(
            "the server names a source of shares twice: so few masks would hide nothing"
        )
    if not neighbours.issuperset(sources):
        raise UserError("the server names a source of shares that is not a neighbour of this node")
    needed = kept_threshold(context)
    if len(sources) + 1 < needed:
        raise UserError(
            f"the server names {len(sources)} sources of shares; {needed} with this node's own are"
            " needed"
        )


def _check_unmasking(node: int, record: Mapping[str, Any], context: Context, least: int) -> None:
    active, dead = record[Key.ACTIVE_NODE_ID_LIST], record[Key.DEAD_NODE_ID_LIST]
    if len({*active, *dead}) < len(active) + len(dead):
        raise UserError(
            "the server calls a node both active and dead, or names it twice: that would unmask it"
        )
    if node not in active:
        raise UserError("the server asks a node for shares whose upload it calls lost")
    if {*active, *dead} != _kept(context, "rd_seed_share_dict", Stage.COLLECT_MASKED_VECTORS):
        raise UserError(
            "the server asks for shares of other nodes than those whose masks this node added"
        )
    if len(active) < least:
        raise UserError(
            f"the server unmasks a sum of {len(active)} clients; one of fewer than {least} hides"
            " nobody"
        )


def _kept(context: Context, name: str, stage: str) -> set[int]:
    """The nodes in a dictionary of Flower's mod, which a stage writes. Raises UserError if that
    stage was skipped."""
    found = kept_for(context, name)
    if found is None:
        raise UserError(f"the server skips the stage {stage}")
    return found


def _update(
    e: Experiment, message: Message, ins: FitIns, reply: Message, clear: Set[str]
) -> tuple[Message, int, bytes]:
    """The reply to a visit with Δ = θ_k − θ, as one vector in float64, in the place of θ_k, and
    zeros for its figures; the seed of its rounding; and all that the masked Δ depends on but the
    mask.

    ins: the instruction in `message`. clear: what of the report is told. Raises UserError for an
    update that must not be masked: a sum of it would be wrong, and nobody could see that."""
    answer = wire.fit_answer(reply)
    if (failed := failure_in(answer.metrics)) is not None:
        raise UserError(failed[0])
    before = parameters_to_ndarrays(ins.parameters)
    after = parameters_to_ndarrays(answer.parameters)
    names, asked = (json.loads(str(said["names"])) for said in (answer.metrics, ins.config))
    if names != asked:  # it may be a part, in a round that renews no more
        received = dict(zip(asked, before, strict=True))
        before = [array for name, array in received.items() if name in names]
        names = names if [n for n in received if n in names] == names else []
    if not names or [a.shape for a in after] != [b.shape for b in before]:
        raise UserError(
            "its upload has another layout than its download, so it cannot be summed under masks"
        )
    delta = np.concatenate(
        [np.subtract(a, b, dtype=np.float64).ravel() for a, b in zip(after, before, strict=True)]
    )
    largest = float(np.abs(delta).max(initial=0.0))
    if not largest <= e.secagg.clip:  # NaN is not
        logger.warning("this node's update reaches %g", largest)  # here alone: it is under the mask
        raise UserError(f"its update is beyond secagg.clip, {e.secagg.clip:g}")
    if answer.num_examples > e.masked_weight:
        logger.warning("this node has %d training samples", answer.num_examples)
        raise UserError(
            f"it has more than secagg.max-samples training samples, {e.secagg.max_samples}"
        )
    if answer.num_examples < 1:
        raise UserError("it has no training samples")
    metrics = {name: value for name, value in answer.metrics.items() if name in clear}
    summed = ndarrays_to_parameters([delta, np.zeros(SIZE)])
    content = wire.fit_content(FitRes(answer.status, summed, answer.num_examples, metrics))
    seed = derive(e.seed, "rounding", int(ins.config["client"]), int(ins.config["round"]))
    # a server may tell each client another configuration
    scale = [answer.num_examples, e.masked_weight, e.secagg.clip, seed]
    return Message(content, reply_to=message), seed, repr(scale).encode() + delta.tobytes()


def _finish(reply: Message, figures: Words) -> None:
    """The figures under the masks on their zeros, as they are, for the sum to be exact. The arrays
    in 4 bytes an element, of Flower's 8; and without n_k, which is under the mask."""
    record = secagg_record(reply.content)
    assert record is not None
    found = [wire.decode(blob, len(blob)) for blob in record[Key.MASKED_PARAMETERS]]
    found[-1] = (found[-1] + figures) % MODULUS
    record[Key.MASKED_PARAMETERS] = ndarrays_to_parameters(
        [array.astype(np.uint32) for array in found]
    ).tensors
    hide_samples(reply.content)
