"""Secure aggregation: what goes together with it."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment, at_least
from pfedlora_flwr.features.feature import Feature, check_mean
from pfedlora_flwr.methods.method import Method

_MOST = 1023
"""Clients whose masked updates can be summed: 1024 of the 2^22 levels would leave the 2^32."""


class Masks(Feature):
    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        if not e.secagg.enabled:
            return
        shares = x.secagg_shares
        check_mean(e, method, "secagg.enabled")
        if not 3 <= e.sampled <= _MOST:
            told = f"clients × participation gives {e.sampled}"
            raise UserError(f"secagg.enabled needs 3 to {_MOST} sampled clients, {told}")
        if shares is not None and shares % 2 == 0:
            raise wrong("secagg.shares", shares, "auto, or an odd integer ≥ 5")
        changing, least = getattr(e.options, "changing", None), x.secagg_threshold
        if changing is not None and not at_least(least, e.sampled) <= changing <= e.sampled:
            allowed = f"auto, or {at_least(least, e.sampled)}, by secagg.threshold, to {e.sampled}"
            raise wrong("sums.changing", changing, allowed, "secagg.enabled")
        if shares is not None and shares > e.sampled:
            raise wrong("secagg.shares", shares, f"at most the {e.sampled} sampled clients")
        if e.max_weight:
            why = "0, for the server sees no single claim; secagg.max-samples bounds them"
            raise wrong("max-weight", e.max_weight, why, "secagg.enabled")

    def unused(self, name: str, e: Experiment) -> str:
        if name == "secagg.max-samples" and e.noises:
            return f"with {e.noises} every update weighs the same"
        if not e.secagg.enabled:
            return ""
        if name == "evaluate-initial" and e.evaluate_initial:
            return "under masks clients are evaluated only at visits"
        if name in ("clip-norm-factor", "max-samples"):
            return "with secagg.enabled the server sees no single update"
        return ""

    def one_mean(self, e: Experiment, x: Execution) -> str:
        return e.hides_uploads

    def unnoised(self, e: Experiment, kept: bool) -> list[str]:
        if not e.secagg.enabled or not e.noises_rounds or e.noises_sums:
            return []
        return [
            "a hostile client that shifts the sum to the edge of secagg.clip: whether the round is"
            " refused then tells of the others, without noise"
        ]
