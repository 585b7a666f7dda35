"""Uploads that are kept: what goes together with them."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.feature import Feature
from pfedlora_flwr.methods.method import Method

FILE = "audit.json"


class Audit(Feature):
    files = (FILE,)

    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        if x.keeps_uploads and e.hides_uploads:
            raise UserError(
                f"audit.uploads is true and {e.hides_uploads}, too: under masks no upload can be"
                " kept; audit such a run from its sum"
            )

    def unused(self, name: str, e: Experiment) -> str:
        if name == "audit.uploads" and e.method == "standalone":
            return "method standalone sends nothing"
        return ""

    def one_mean(self, e: Experiment, x: Execution) -> str:
        return "audit.uploads" if x.keeps_uploads else ""

    def unnoised(self, e: Experiment, kept: bool) -> list[str]:
        if not kept or not e.noises_rounds or e.noises_sums:
            return []
        return [
            "the uploads that are kept for an audit (audit.uploads), clipped and without noise,"
            " for whoever reads the run's files"
        ]
