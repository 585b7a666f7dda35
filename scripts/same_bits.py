"""Whether this tree computes what another commit computed, to the last bit: `make same-bits
BASE=COMMIT`.

    python scripts/same_bits.py COMMIT [--jobs 2] [--only WORD]

Runs a fixed matrix of small federations (the embedded digits, `pfedlora run`) at the commit, in a
checkout of its own with its own `scripts/own.py`, and here, in the same environment, and prints a
table of hashes. Exit code 0 only if all are equal. What a commit gave is kept in `.same-bits/`, a
file a case by commit, PyTorch and the case's keys, and not run again.

The runs of one side are forks of one process that has imported what a run needs."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Keys = dict[str, object]
LOCAL, FLOWER = ("--engine", "local"), ("--engine", "flower")
COMMON: Keys = {"rounds": 2, "batch-size": 32, "device": "cpu"}
METHODS = ("pfedlora", "standalone", "fd", "fedproto", "fml", "fedkd", "lg_fedavg")
NEWER = ("fedmrl", "pfedes", "pfedmoe", "pfedafm", "fedgh", "fedssa", "fedtgp", "fedre", "fedorgp")
SMALL: Keys = {"models": "cnn5"}
MASKED: Keys = SMALL | {"clients": 5, "secagg.enabled": True, "secagg.max-samples": 512}
MATRIX: dict[str, Keys] = {
    **{method: {"method": method} for method in METHODS},
    "fedavg": {"method": "fedavg", "setting": "homogeneous"},
    "homogeneous, reduced adapter": {"setting": "homogeneous"},
    "participation 0.5": {"participation": 0.5, "rounds": 3},
    "fedproto, participation 0.5": {"method": "fedproto", "participation": 0.5, "rounds": 3},
    "augment": {"augment": True, "local-epochs": 2},
    "bf16": {"precision": "bf16"},
    "dirichlet": {"partition.kind": "dirichlet"},
    "own model": {"models": "own:Strided,cnn5"},
    "own method": {"method": "own:NearHead"},
    **{method: {"method": method} for method in NEWER},
    "fedproto, without sharing": {"method": "fedproto", "sharing": "none"},
    "adamw": {"optimizer": "adamw", "lr": 0.001, "adapter-lr": 0.001},
    "masks": MASKED,
    "masks, participation 0.8": MASKED | {"participation": 0.8, "rounds": 3},
    "masks, lg_fedavg": MASKED | {"method": "lg_fedavg"},
    "audit, pfedlora": SMALL | {"audit.uploads": True},
    "audit, fedproto": SMALL | {"method": "fedproto", "audit.uploads": True},
    "resume, fedtgp": SMALL | {"method": "fedtgp", "participation": 0.5},
    "resume, own model": {"models": "own:Strided,cnn5"},
    "resume, masks": MASKED,
    "flower, participation 0.5, 2 actors": {"participation": 0.5, "rounds": 3, "actors": 2},
    "flower, own method, 1 actor": SMALL | {"method": "own:NearHead", "actors": 1},
    "two engines, fml": SMALL | {"method": "fml", "actors": 2},
}
"""By case its keys, beside COMMON. The name says the rest, as `commands` reads it."""
Hashes = dict[str, str]
WHAT = ("models", "shared", "uploads")
"""The trained models, what the server shared at the end, and the uploads that are kept with what
their audit found."""


def commands(name: str) -> Iterator[list[str]]:
    """The words of the case's commands behind `pfedlora`, one after the other, for a run in the
    folder `run`."""
    keys = COMMON | MATRIX[name]
    words = [word for key, value in keys.items() for word in ("-o", f"{key}={value}")]
    yield ["run", *(FLOWER if name.startswith("flower") else LOCAL), "-o", "output=run", *words]
    if name.startswith(("resume", "two engines")):
        then = FLOWER if name.startswith("two engines") else LOCAL
        yield ["run", "--resume", *then, "-o", "output=run", "-o", "rounds=4"]
    if name.startswith("audit"):
        yield ["audit", "run"]


def main() -> int:
    cli = argparse.ArgumentParser()
    cli.add_argument("base", help="the commit to compare with")
    cli.add_argument("--jobs", type=int, default=2, help="runs at a time")
    cli.add_argument("--only", default="", help="only the cases whose name has this word")
    cli.add_argument("--side", nargs="+", help=argparse.SUPPRESS)
    a = cli.parse_args()
    if a.side:
        side(a.side, a.jobs)
        return 0
    commit = git("rev-parse", f"{a.base}^{{commit}}")
    names = [name for name in MATRIX if a.only in name]
    if not names:
        raise SystemExit(f"no case has {a.only!r} in its name; there are {', '.join(MATRIX)}")
    memory = ROOT / ".same-bits" / f"{commit}-torch-{version('torch')}"
    memory.mkdir(parents=True, exist_ok=True)
    left = [name for name in names if not kept(memory, name).exists()]
    with tempfile.TemporaryDirectory(prefix="same-bits-") as folder:
        if left:
            tree = Path(folder) / "base"
            git("worktree", "add", "--detach", str(tree), commit)
            try:
                for name, found in run_all(tree, left, a.jobs):
                    written = memory / f"{os.getpid()}.new"  # other trees may keep theirs there
                    written.write_text(json.dumps(found))
                    written.rename(kept(memory, name))
            finally:
                git("worktree", "remove", "--force", str(tree))
        here = dict(run_all(ROOT, names, a.jobs))
    base = {name: json.loads(kept(memory, name).read_text()) for name in names}
    print(
        f"\n{commit[:10]} and this tree, PyTorch {version('torch')}, Flower {version('flwr')}; the"
        " first 8 digits of each hash, base and here\n"
    )
    print(f"| {'case':<36} |{''.join(f' {what:<17} |' for what in WHAT)}       |")
    rule = "-" * 17
    print(f"| {'-' * 36} |{f' {rule} |' * len(WHAT)} ----- |")
    for name in names:
        pairs = (f"{base[name][what][:8]:<8} {here[name][what][:8]:<8}" for what in WHAT)
        equal = "equal" if base[name] == here[name] else "OTHER"
        print(f"| {name:<36} | {' | '.join(pairs)} | {equal} |")
    same = all(base[name] == here[name] for name in names)
    print(f"\n{'all equal' if same else 'NOT all equal'}: {len(names)} cases")
    return 0 if same else 1


def kept(memory: Path, name: str) -> Path:
    """The file of what the base gave in a case."""
    words = json.dumps([*commands(name)])
    return memory / f"{hashlib.sha256(words.encode()).hexdigest()[:16]}.json"


def run_all(tree: Path, names: list[str], jobs: int) -> Iterator[tuple[str, Hashes]]:
    """The cases by the code in `tree`, each as it is done. Its modules come before those that are
    installed, in every process that a run starts."""
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'scripts'}"}
    command = [sys.executable, "-P", __file__, "-", "--jobs", str(jobs), "--side", *names]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, found = json.loads(line)
            print(f"{tree.name}: {name}", file=sys.stderr)
            yield name, found
    if process.returncode:
        raise SystemExit(f"{tree.name} failed")


def side(names: list[str], jobs: int) -> None:
    """One tree's cases, each in a process of its own; a line of JSON each, on the standard
    output."""
    context = get_context("forkserver")
    context.set_forkserver_preload(
        ["pfedlora_flwr.cli", "pfedlora_flwr.client_app", "pfedlora_flwr.server_app"]
    )
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        for name, found in zip(names, pool.map(run, names), strict=True):
            print(json.dumps([name, found]), flush=True)


def run(name: str) -> Hashes:
    """One federation, in this process and, with Flower's engine, those that it starts."""
    signal.alarm(900)  # the longest that a case may take, in seconds
    with tempfile.TemporaryDirectory(prefix="same-bits-run-") as folder:
        os.chdir(folder)
        for words in commands(name):
            log = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if code := pfedlora(words):
                raise RuntimeError(f"{name}: exit code {code}\n{Path('log').read_text()}")
        result = json.loads(Path("run/result.json").read_text())
        return {
            "models": result.get("models_sha256"),
            "shared": result["shared_sha256"],
            "uploads": uploads(Path("run")),
        }


def pfedlora(words: list[str]) -> int:
    from pfedlora_flwr import cli

    sys.argv = ["pfedlora", *words]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def uploads(run: Path) -> str:
    """The hash of the tensors of all uploads that are kept, and of the audit's AUCs; empty where
    there are none."""
    from safetensors.torch import load_file

    files = sorted((run / "uploads").rglob("*.safetensors"))
    if not files:
        return ""
    digest = hashlib.sha256()
    for path in files:
        for tensor_name, tensor in sorted(load_file(path).items()):
            digest.update(f"{path.relative_to(run)} {tensor_name} ".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    aucs = [*values_of("auc", json.loads((run / "audit.json").read_text()))]
    digest.update(json.dumps(aucs).encode())
    return digest.hexdigest()


def values_of(name: str, found: object) -> Iterator[object]:
    """What stands under that name, anywhere in what was read from JSON."""
    if isinstance(found, dict):
        yield from ([found[name]] if name in found else [])
        found = [*found.values()]
    for inner in found if isinstance(found, list) else []:
        yield from values_of(name, inner)


def git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
