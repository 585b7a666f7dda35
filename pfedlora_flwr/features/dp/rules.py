"""Differential privacy: what goes together with it."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.feature import Feature, check_mean
from pfedlora_flwr.keys import said
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method


class Privacy(Feature):
    told = frozenset({"epsilon"})
    learns_otherwise = frozenset({"dp.clip", "dp.noise", "dp.epsilon"})

    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        if e.dp.of_users:
            _of_users(e, method)
        if e.noises_gradients:
            _of_records(e, method)
        elif e.dp.enabled and e.max_weight:
            raise wrong("max-weight", e.max_weight, "0, for every update weighs the same", "dp")

    def unused(self, name: str, e: Experiment) -> str:
        if name.startswith("dp.") and not e.dp.enabled:
            return "none of dp.clip, dp.noise and dp.epsilon is set"
        if name == "dp.trained-down" and not _consents(e):
            return "noise is on no two matrices of an adapter here"
        if name in ("clip-norm-factor", "max-samples") and e.dp.of_users:
            return "with dp all updates are clipped and weigh the same"
        return ""

    def one_mean(self, e: Experiment, x: Execution) -> str:
        return e.noises if e.noises_rounds else ""


def _of_users(e: Experiment, method: type[Method]) -> None:
    check_mean(e, method, "dp")
    if e.dp.delta * e.clients >= 1:
        raise wrong("dp.delta", e.dp.delta, f"below 1/clients, which is {1 / e.clients:g}")
    if e.secagg.enabled and e.dp.norm > e.secagg.clip:
        most = f"at most secagg.clip, which is {e.secagg.clip:g}"
        raise wrong("dp.clip", e.dp.norm, most, "secagg.enabled")


def _of_records(e: Experiment, method: type[Method]) -> None:
    if changed := e.loss.changed():
        what = f"loss.{next(iter(changed))}"
        raise UserError(f"{what} is set, and noise of records is only for the mean cross entropy")
    # one that inherits it may send more
    if "record_epochs" not in vars(method):
        raise UserError(
            f"method {e.method} does not say that what it sends reveals a record by noised"
            " gradients only; allowed with dp.level=record: pfedlora_plus"
        )
    rules = {
        "train": (
            {*e.train} == {"head"},
            "head, because an encoder that is trained on a record changes every record's gradient",
        ),
        "neck": (e.neck == "auto", "auto, because a neck is trained"),
        "normalise": (
            e.normalise == "model" or e.data.text_column is not None,
            "model, because the mean and deviation of the federation's data are functions of every"
            " record",
        ),
        "augment": (not e.augment, "false"),
        "secagg.enabled": (
            not e.hides_uploads,
            "false, because a round that is repeated has fresh noise, and a client masks one update"
            " a round",
        ),
    }
    for name, (fine, allowed) in rules.items():
        if not fine:
            raise UserError(f"{said(*e.keys()[name])}; allowed with dp.level=record: {allowed}")


def _consents(e: Experiment) -> bool:
    """Whether the method would be refused without `dp.trained-down`."""
    try:
        registry.find(e.method).check_experiment(e.replace(**{"dp.trained_down": False}))
    except UserError:
        return True
    return False
