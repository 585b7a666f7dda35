"""The tables of the features in a report, in its order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pfedlora_flwr.features.audit.table import audits
from pfedlora_flwr.features.held_out import table as held_out
from pfedlora_flwr.report import privacy
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.table import Table

TABLES: tuple[Callable[[Study], Table], ...]
TABLES = held_out.table, privacy.sent, privacy.known, privacy.table, audits

FIGURES: tuple[Callable[[Study, Path], list[Picture]], ...] = (held_out.figures,)
OF_GAINS = ("held_out",)
"""What shows who gains: the names of figures and tables."""
