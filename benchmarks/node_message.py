"""What a message costs a node that answers it in the process that Flower starts for it, and one
with a warm worker: processor seconds, seconds, and memory.

    python -m benchmarks.node_message [MESSAGES]"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import psutil

KEYS: dict[str, Any] = {
    "clients": 3,
    "rounds": 9,
    "dataset": "digits",
    "partition.kind": "iid",
    "device": "cpu",
}


def ask(state: Path, keys: dict[str, Any], node_config: dict[str, Any]) -> dict[str, Any]:
    """Answers one message in this process as `flwr-clientapp` does, node 0's first visit to a run.
    The answer, and what it cost here."""
    import_module("flwr.supernode.runtime.run_clientapp")  # as Flower's own process has it
    from flwr.app import Context, RecordDict

    from pfedlora_flwr.client_app import app
    from pfedlora_flwr.federation.flower_compat import be_node_task, decoded

    sys.argv[0] = "flwr-clientapp"
    be_node_task(1, 1, 2)
    told: dict[str, Any] = {"partition-id": 0, "state-path": str(state)} | node_config
    context = Context(1, 2, told, RecordDict(), keys)
    found: dict[str, Any]
    try:
        reply = app(decoded((state / "message").read_bytes()), context)
        found = {"error": reply.error.reason} if reply.has_error() else _of(reply)
    except Exception as error:
        found = {"error": f"{type(error)}:{error}"}
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return found | {
        "processor": time.process_time(),
        "memory": int(peak[1]) / 1024 if peak else 0.0,
        "torch": "torch" in sys.modules,
    }


def _of(reply: Any) -> dict[str, Any]:
    """An answer's hash and metrics."""
    import hashlib

    arrays = next(iter(reply.content.array_records.values()))
    blob = b"".join(array.data for array in arrays.values())
    return {
        "sha256": hashlib.sha256(blob).hexdigest(),
        **next(iter(reply.content.config_records.values())),
    }


def write_message(state: Path, keys: dict[str, Any], seconds: float = 600) -> None:
    """The instruction to train in round 1, valid for so long, as a file."""
    from pfedlora_flwr.config import from_flat
    from pfedlora_flwr.config.setup import Setup
    from pfedlora_flwr.federation import wire
    from pfedlora_flwr.federation.flower_compat import be_task, encoded
    from pfedlora_flwr.federation.messages import Instruction, written
    from pfedlora_flwr.rng import derive

    experiment = from_flat(keys)
    tensors = Setup(experiment, "").method.state_init(derive(experiment.seed, "state"))
    told = Instruction(
        round=1, client=0, version=0, token="a1", run="", evaluate=True, names=[*tensors]
    )
    be_task(1, 1)
    message = wire.train_message(2, 1, tensors, written(told), seconds)
    state.mkdir(parents=True, exist_ok=True)
    (state / "message").write_bytes(encoded(message))


def asked(state: Path, keys: dict[str, Any], node_config: dict[str, Any]) -> subprocess.Popen[str]:
    """A process that answers the message, as Flower starts one; it prints a line."""
    words = [str(state), json.dumps(keys), json.dumps(node_config)]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.node_message", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def measure(state: Path, messages: int, node_config: dict[str, Any]) -> None:
    """Prints what each message cost, its visit in the worker included."""
    worker: psutil.Process | None = None
    rows, before = list[dict[str, Any]](), 0.0
    for _ in range(messages + 1):
        began = time.monotonic()
        out, _ = asked(state, KEYS, node_config).communicate(timeout=300)
        row = json.loads(out.splitlines()[-1]) | {"seconds": time.monotonic() - began}
        if not row["torch"]:
            worker = worker or next(
                p for p in psutil.process_iter() if str(state / "worker" / "socket") in p.cmdline()
            )
            times = worker.cpu_times()
            visits = times.children_user + times.children_system
            row["processor"], before = row["processor"] + visits - before, visits
        rows.append(row)
    for name in ("processor", "seconds", "memory"):
        after = median(row[name] for row in rows[1:])
        print(f"{node_config}: {name}: first {rows[0][name]:.2f}, then {after:.2f}")
    print(f"{node_config}: upload {rows[-1]['sha256'][:12]}, PyTorch {rows[-1]['torch']}")
    if worker:
        held = worker.memory_full_info()
        print(f"the worker: {held.rss / 2**20:.0f} MiB, its own {held.uss / 2**20:.0f}", end="")
        print(f"; its start: {sum(worker.cpu_times()[:2]):.2f} processor seconds")
        worker.terminate()


def main(messages: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_message(Path(folder), KEYS)
        for node_config in ({"warm": False}, {"warm-seconds": 60}):
            measure(Path(folder), messages, node_config)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(ask(Path(sys.argv[1]), *map(json.loads, sys.argv[2:]))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
