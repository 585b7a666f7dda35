"""What a call leaves of the process that it is made in: nothing but its files."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from pfedlora_flwr import client_app
from pfedlora_flwr.data.local import forget


@contextmanager
def as_it_was() -> Iterator[None]:
    """Afterwards threads, precision, random states and the log are as they were before. Signal
    handlers are put back by who sets them.

    Within it the next run prepares the process anew, as the first one does, and files that have
    changed are read anew."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    log = logging.getLogger("pfedlora_flwr")
    level, handlers = log.level, [*log.handlers]
    client_app.prepare_process.cache_clear()
    forget()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        log.setLevel(level)
        log.handlers[:] = handlers
        client_app.prepare_process.cache_clear()
