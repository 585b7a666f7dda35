"""A run of a comparison on real nodes: where its server keeps it, and how its lines come back to
the comparison, which may be on another host."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.layout import FILES
from pfedlora_flwr.runs.output import home
from pfedlora_flwr.runs.result import FILES_LINE

_HANDED = (*FILES, "server/sites.json", "server/numbers.json", "server/partition")
"""What a report is made of."""

_PLAIN = re.compile(r"(?!\.)[\w.-]+(/(?!\.)[\w.-]+)+")
"""Folders below the server's home."""


def taken_up(config: RunConfig) -> RunConfig:
    """The run with the directory that `comparison-run` names, and going on with what is there.
    Raises UserError for a name that is not of folders below the server's home."""
    x = config.execution
    if not x.comparison_run:
        return config
    place = home() / x.comparison_run
    if not _PLAIN.fullmatch(x.comparison_run) or not place.resolve().is_relative_to(
        home().resolve()
    ):
        raise UserError(
            f"comparison-run is {x.comparison_run!r}; allowed: COMPARISON/RUN, of letters, digits,"
            " '.', '_' and '-'"
        )
    begun = RunDirectory(place).holds_run and not x.overwrite
    return config.executed(output=str(place), comparison_run="", resume=begun, overwrite=not begun)


def name_of(run: RunDirectory, output: Path) -> str:
    """What `comparison-run` is for a run of the comparison whose directory is `output`."""
    return re.sub(r"[^\w./-]+", "-", f"{output.name}/{run.path.relative_to(output)}")


def number_sites(run: RunDirectory, name: str) -> None:
    """Gives the sites the numbers that they have in the comparison's other runs, so that a client
    is the same site in all of them. name: `comparison-run`; empty: it is of none."""
    if not name or run.numbers_file.exists():
        return
    others = (home() / Path(name).parts[0]).rglob(str(run.numbers_file.relative_to(run.path)))
    if newest := max(others, key=lambda file: file.stat().st_mtime, default=None):
        write_atomically(run.numbers_file, newest.read_bytes())


def line_of(run: RunDirectory) -> str:
    """The line of Flower's log that holds the run's files."""
    files = {name: run.path / name for name in _HANDED}
    texts = {name: file.read_text("utf-8") for name, file in files.items() if file.exists()}
    return FILES_LINE + base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode()


def keep(run: RunDirectory, log: Iterable[str]) -> bool:
    """Leaves the files that the last such line of a log holds in the run's directory; False where
    there is none, or it is damaged."""
    lines = [line for line in log if line.startswith(FILES_LINE)]
    try:
        packed = base64.b64decode(lines[-1].removeprefix(FILES_LINE))
        texts: dict[str, str] = json.loads(zlib.decompress(packed))
        found = {name: texts[name].encode() for name in _HANDED if name in texts}
    except (IndexError, ValueError, TypeError, AttributeError, zlib.error):
        return False
    for name, content in found.items():
        file = run.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)
    return True
