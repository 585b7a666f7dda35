"""What a call leaves of the process that it is made in: nothing but its files."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pfedlora_flwr import client_app
from pfedlora_flwr.data.local import forget
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.given import UNNAMED
from pfedlora_flwr.rng import generators_kept
from pfedlora_flwr.runs.checkpoint import warn_once

_GIVEN = re.compile(f"{UNNAMED}:")


@contextmanager
def as_it_was() -> Iterator[None]:
    """Afterwards threads, precision, random states and the log are as they were before. Signal
    handlers are put back by who sets them.

    Within it the next run prepares the process anew, as the first one does, and files that have
    changed are read anew."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    log = logging.getLogger("pfedlora_flwr")
    level, handlers = log.level, [*log.handlers]
    client_app.prepare_process.cache_clear()
    forget()
    warn_once.cache_clear()
    try:
        with generators_kept():
            yield
    except UserError as error:
        # the names of objects that have none are ours
        told = _GIVEN.sub("", str(error))
        raise (error if told == str(error) else type(error)(told)) from error.__cause__
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        log.setLevel(level)
        log.handlers[:] = handlers
        client_app.prepare_process.cache_clear()
