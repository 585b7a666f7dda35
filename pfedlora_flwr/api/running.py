"""A run from Python: its keys from arguments, carried out in this process or by Flower."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain, count
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedlora_flwr import config
from pfedlora_flwr.api.objects import Given
from pfedlora_flwr.api.process import as_it_was
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.launch.checks import Say, nothing
from pfedlora_flwr.launch.execute import Show, execute
from pfedlora_flwr.models.given import available
from pfedlora_flwr.ops.progress_text import round_line
from pfedlora_flwr.ops.run import configured
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.layout import Row
from pfedlora_flwr.runs.lines import SoFar
from pfedlora_flwr.runs.rows import Result

if TYPE_CHECKING:
    from pfedlora_flwr.api.typed_keys import named as named
else:
    named = dict

Rows = Any
"""A pandas DataFrame where pandas is installed, else a list of dicts."""
Conf = str | PathLike[str] | Mapping[str, Any]
"""A YAML file, the name of a configuration that comes with the package, or its keys."""


def trained(
    path: Path | None,
    of_conf: dict[str, object],
    options: dict[str, object],
    given: Given,
    *,
    engine: str,
    progress: bool,
) -> Path:
    """The directory of the run that these keys mean, carried out. Raises UserError, and
    KeyboardInterrupt after Ctrl-C."""
    say = saying(progress)
    given.check_here(engine)
    with available(given.objects), as_it_was():
        wanted = configured(path, of_conf, options, "conf", say)
        if not {"output", "resume", "overwrite"} & {*of_conf, *options}:
            place = first_of(Path(wanted.execution.output), lambda path: not path.exists())
            wanted = wanted.executed(output=str(place))
        directory = Path(wanted.execution.output)
        result = execute(wanted, _lines(wanted, say), say, engine=engine)
        keep_sources(directory, given)
    _judge(result, directory, given)
    return directory


def first_of(place: Path, serves: Callable[[Path], bool]) -> Path:
    """The directory, or the first of NAME-2, NAME-3, … that serves."""
    others = (place.with_name(f"{place.name}-{n}") for n in count(2))
    return next(path for path in chain([place], others) if serves(path))


def _judge(result: Result, directory: Path, given: Given) -> None:
    """Raises what a run that did not complete ends with."""
    after = f" after round {result['rounds']}" if "rounds" in result else ""
    again = f"; to continue: {_resuming(directory, given)}" if after else ""
    if result["status"] == "failed":
        raise UserError(f"the run failed{after}: {result['error']}" + again)
    if result["status"] == "stopped" and result.get("stopped_by") in ("user", "system"):
        raise KeyboardInterrupt(f"{result['error']}{after}{again}")


def _resuming(directory: Path, given: Given) -> str:
    """The call that goes on with a run, with the names of the objects that it needs again."""
    keys = RunDirectory(directory).saved_keys()
    needed = [k for k, value in keys.items() if given.objects.keys() & {*str(value).split(",")}]
    first = [k for k in needed if k in ("method", "models", "dataset")]
    place = ", ".join([repr(str(directory)), *(f"{key}=…" for key in first)])
    return f"pfedlora_flwr.load({place}).resume({'observers=…' if needed != first else ''})"


def keep_sources(directory: Path, given: Given) -> None:
    """Leaves the sources of the given objects that the run's keys name in its `source`, by their
    hashes."""
    run = RunDirectory(directory)
    if not (run.holds_run and given.sources):
        return
    named = " ".join(map(str, run.saved_keys().values()))
    for name, text in given.sources.items():
        if name in named:
            run.source.mkdir(exist_ok=True)
            file = re.sub(r"[^\w.-]", "-", name)
            (run.source / f"{file}.txt").write_text(text, encoding="utf-8")


def _lines(wanted: RunConfig, say: Say) -> Show:
    """Prints a line for each round that is done."""
    directory, say = RunDirectory(Path(wanted.execution.output)), in_place(say)
    shown = len(directory.rounds()) if wanted.execution.resume else 0

    def show(state: Row | None, so_far: SoFar) -> None:
        nonlocal shown
        if so_far.lines > shown:
            shown = so_far.lines
            say(round_line(wanted.experiment, so_far))

    return show


def saying(progress: bool) -> Say:
    """How a call prints a line: not at all without progress."""
    return _printed if progress else nothing


def in_place(say: Say) -> Say:
    """How it says lines of which only the last one counts: in a notebook each in the place of the
    one before."""
    shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
    if say is nothing or not getattr(shell, "kernel", None):
        return say
    from IPython.display import display

    shown: list[Any] = []

    def update(line: str) -> None:
        told = {"text/plain": line}
        if shown:
            shown[0].update(told, raw=True)
        else:
            shown.append(display(told, raw=True, display_id=True))

    return update


def _printed(line: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding))


def conf_of(conf: Conf | None, given: Given) -> tuple[Path | None, dict[str, object]]:
    """The file of a configuration, where it is one, and its keys."""
    if conf is None:
        return None, {}
    if isinstance(conf, Mapping):
        return None, mapped(conf, given)
    if not isinstance(conf, str | PathLike):
        told = "expected a file, a configuration's name or a mapping"
        raise UserError(f"conf is {conf!r:.60}; {told}")
    path = config.find_conf(fspath(conf))
    return path, config.read_run(path)


def mapped(conf: Mapping[str, Any], given: Given) -> dict[str, object]:
    """The keys of a mapping, flat or nested as in a file, as `keys_of` has them."""
    rest = {name: value for name, value in conf.items() if name != "dataset"}
    if not any(isinstance(value, Mapping) for value in rest.values()):
        return keys_of(conf, given)
    dataset = {"dataset": conf["dataset"]} if "dataset" in conf else {}
    return keys_of(config.flatten(rest) | dataset, given)


def keys_of(keys: Mapping[str, Any], given: Given) -> dict[str, object]:
    """Keys by the names of the documents, with values as a file would have them."""
    found: dict[str, object] = {}
    for name, value in keys.items():
        key = key_of(name)
        if key in found:
            raise UserError(f"{key} is there twice")
        found[key] = given.value(key, plain(value))
    return found


def key_of(name: str) -> str:
    """A key by its name in the documents; what is none as it is."""
    if not isinstance(name, str):
        return name
    return _keys_by_argument().get(re.sub(r"[.-]", "_", name), name)


@cache
def _keys_by_argument() -> dict[str, str]:
    return {re.sub(r"[.-]", "_", key): key for key in config.all_keys()}


def plain(value: Any) -> Any:
    """Python's own in the place of NumPy's numbers, text in that of a path."""
    if isinstance(value, PathLike):
        return fspath(value)
    return value.item() if getattr(value, "shape", None) == () else value


def table(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """The rows as a frame, where there can be one."""
    found = [dict(row) for row in rows]
    try:
        import pandas
    except ImportError:
        return found
    return pandas.DataFrame(found)
