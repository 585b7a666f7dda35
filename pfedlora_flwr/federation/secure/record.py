"""Where a message says something of secure aggregation."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from flwr.app import RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS


def secagg_record(content: RecordDict) -> MutableMapping[str, Any] | None:
    """What a message says of it; None of a plain one."""
    return content.config_records.get(RECORD_KEY_CONFIGS)
