"""The tables of the features in a report, in its order."""

from __future__ import annotations

from collections.abc import Callable

from pfedlora_flwr.features.audit.table import audits
from pfedlora_flwr.features.held_out import table as held_out
from pfedlora_flwr.report import privacy
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.table import Table

TABLES: tuple[Callable[[Study], Table], ...]
TABLES = held_out.table, privacy.sent, privacy.known, privacy.table, audits
