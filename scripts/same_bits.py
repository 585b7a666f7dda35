"""Whether this tree computes what another commit computed, to the last bit: `make same-bits BASE=COMMIT`.

    python scripts/same_bits.py COMMIT [--jobs 2] [--only WORD]

Runs a fixed matrix of small federations (the embedded digits, `pfedlora run`) at the commit, in a checkout of its own, and here, in
the same environment, and prints one table of `models_sha256` and `shared_sha256`. Exit code 0 only if all are equal. What a commit
gave is kept in `.same-bits/`, by commit and PyTorch, and not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMON = {"rounds": 2, "batch-size": 32, "actors": 2, "device": "cpu"}
METHODS = ("pfedlora", "standalone", "fd", "fedproto", "fml", "fedkd", "lg_fedavg")
NEWER = ("fedmrl", "pfedes", "pfedmoe", "pfedafm", "fedgh", "fedssa", "fedtgp", "fedre", "fedorgp")
MATRIX: dict[str, dict[str, object]] = {
    **{method: {"method": method} for method in METHODS},
    "fedavg": {"method": "fedavg", "setting": "homogeneous"},
    "homogeneous, reduced adapter": {"setting": "homogeneous"},
    "participation 0.5": {"participation": 0.5, "rounds": 3},
    "augment": {"augment": True, "local-epochs": 2},
    "bf16": {"precision": "bf16"},
    "dirichlet": {"partition.kind": "dirichlet"},
    "own model": {"models": "own:Strided,cnn5"},
    "own method": {"method": "own:NearHead"},
    "pfedlora, 1 actor": {"actors": 1},
    "fedkd, 1 actor": {"method": "fedkd", "actors": 1},
    "fedproto, participation 0.5, 1 actor": {
        "method": "fedproto",
        "participation": 0.5,
        "rounds": 3,
        "actors": 1,
    },
    "fedproto, participation 0.5, 2 actors": {
        "method": "fedproto",
        "participation": 0.5,
        "rounds": 3,
    },
    **{method: {"method": method, "engine": "local"} for method in NEWER},
    "fedproto, without sharing": {"method": "fedproto", "sharing": "none", "engine": "local"},
    "adamw": {"optimizer": "adamw", "lr": 0.001, "adapter-lr": 0.001, "engine": "local"},
}
"""By case its keys, beside COMMON, and its engine."""
Hashes = dict[str, str]


def main() -> int:
    cli = argparse.ArgumentParser()
    cli.add_argument("base", help="the commit to compare with")
    cli.add_argument("--jobs", type=int, default=2, help="runs at a time")
    cli.add_argument("--only", default="", help="only the cases whose name has this word")
    a = cli.parse_args()
    commit = git("rev-parse", f"{a.base}^{{commit}}")
    names = [name for name in MATRIX if a.only in name]
    memory = ROOT / ".same-bits" / f"{commit}-torch-{version('torch')}.json"
    base: dict[str, Hashes] = json.loads(memory.read_text()) if memory.exists() else {}
    base = {
        name: found for name, found in base.items() if found.get("keys") == keys_of(name)
    }  # the matrix may have changed since
    left = [name for name in names if name not in base]
    with tempfile.TemporaryDirectory(prefix="same-bits-") as folder:
        if left:
            tree = Path(folder) / "base"
            git("worktree", "add", "--detach", str(tree), commit)
            try:
                base |= run_all(tree, left, a.jobs)
            finally:
                git("worktree", "remove", "--force", str(tree))
            memory.parent.mkdir(exist_ok=True)
            memory.write_text(json.dumps(base, indent=1))
        here = run_all(ROOT, names, a.jobs)
    same = True
    print(
        f"\n{commit[:10]} and this tree, PyTorch {version('torch')}, Flower {version('flwr')}; the first 12 digits of each hash\n"
    )
    print(f"| {'case':<38} | models, base | models, here | shared, base | shared, here |       |")
    print(f"| {'-' * 38} | ------------ | ------------ | ------------ | ------------ | ----- |")
    for name in names:
        pairs = [
            (base[name][what], here[name][what]) for what in ("models_sha256", "shared_sha256")
        ]
        equal = all(one == other for one, other in pairs)
        same = same and equal
        print(
            f"| {name:<38} | {' | '.join(digest[:12] for pair in pairs for digest in pair)} | {'equal' if equal else 'OTHER'} |"
        )
    print(f"\n{'all equal' if same else 'NOT all equal'}: {len(names)} cases")
    return 0 if same else 1


def keys_of(name: str) -> str:
    """The case's keys, and its engine, in one line."""
    return " ".join(f"{key}={value}" for key, value in (COMMON | MATRIX[name]).items())


def run_all(tree: Path, names: list[str], jobs: int) -> dict[str, Hashes]:
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(names, pool.map(lambda name: run(tree, name), names), strict=True))


def run(tree: Path, name: str) -> Hashes:
    """One federation, by the code in `tree`."""
    with tempfile.TemporaryDirectory(prefix="same-bits-run-") as folder:
        # the modules of the tree come before those that are installed, in every process that the run starts
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(tree), str(ROOT / "scripts")])
        }
        keys = COMMON | MATRIX[name]
        options = ["--engine", str(keys.pop("engine", "flower")), "-o", f"output={folder}/run"]
        words = [word for key, value in keys.items() for word in ("-o", f"{key}={value}")]
        command = [sys.executable, "-m", "pfedlora_flwr.cli", "run", "--quiet", *options, *words]
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode:
            raise SystemExit(f"{name} at {tree} failed:\n{done.stdout}\n{done.stderr}")
        result: Mapping[str, str] = json.loads((Path(folder) / "run" / "result.json").read_text())
    print(f"{tree.name}: {name}", file=sys.stderr)
    return {
        "keys": keys_of(name),
        "models_sha256": result["models_sha256"],
        "shared_sha256": result["shared_sha256"],
    }


def git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
