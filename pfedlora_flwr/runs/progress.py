"""`server/progress.json`: what a server says that it does, for whoever watches."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.runs.rows import Phase, Progress


def write_progress(file: Path, phase: Phase, round: int, done: int, of: int) -> None:
    """Replaces the file by what this process does now."""
    now: Progress = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "time": time.time(),
        "phase": phase,
        "round": round,
        "done": done,
        "of": of,
    }
    write_atomically(file, json.dumps(now).encode(), durable=False)
