"""Uploads that are kept: what goes together with them."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.feature import Feature
from pfedlora_flwr.methods.method import Method


class Audit(Feature):
    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        if x.audit_uploads and e.secagg.enabled:
            raise UserError(
                "audit.uploads is true and secagg.enabled, too: under masks no upload can be kept;"
                " audit such a run from its sum"
            )

    def unused(self, name: str, e: Experiment) -> str:
        if name == "audit.uploads" and e.method == "standalone":
            return "method standalone sends nothing"
        return ""

    def one_mean(self, e: Experiment, x: Execution) -> str:
        return "audit.uploads" if x.audit_uploads else ""
