"""Methods that go wrong and rounds that last, for tests through the command line."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.observers.observer import Observer
from pfedlora_flwr.runs.rows import RoundRow
from pfedlora_flwr.training.loop import Samples, Visit


class ClientRaises(PFedLoRA):
    """Client 2 raises at every visit."""

    def local_update(self, model: object, received: Tensors, data: Samples, visit: Visit) -> Upload:
        if visit.client == 2:
            raise RuntimeError("the disk of client 2 is on fire")
        return super().local_update(model, received, data, visit)


class ServerRaises(PFedLoRA):
    """The server raises when it aggregates round `at`, until there is the file `mended`."""

    @dataclass(frozen=True)
    class Options(PFedLoRA.Options):
        at: int = key(1, "the round")
        mended: str = key("", "a file; empty: it raises for ever")

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        mended = self.options.mended
        if round == self.options.at and not (mended and Path(mended).exists()):
            raise ZeroDivisionError("the server divides by nothing")
        return super().aggregate(uploads, state, round)


class Slow(Observer):
    """Rounds last half a second longer, so that a test finds their run going on. Where there is the
    file `dies`, the worker ends that carries the run out."""

    def round(self, row: RoundRow) -> None:
        if Path("dies").exists():
            Path("dies").unlink()
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(0.5)
