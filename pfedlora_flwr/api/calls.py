"""The functions of the Python API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from pfedlora_flwr.api import newcomers
from pfedlora_flwr.api.comparing import NAMELESS, content_of, placed, runs_of
from pfedlora_flwr.api.objects import Given, check_same
from pfedlora_flwr.api.process import as_it_was
from pfedlora_flwr.api.results import Comparison, Run
from pfedlora_flwr.api.running import (
    Conf,
    Rows,
    conf_of,
    in_place,
    keep_sources,
    keys_of,
    named,
    plain,
    saying,
    table,
    trained,
)
from pfedlora_flwr.comparison.plan import Plan
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import absolute
from pfedlora_flwr.models.given import available
from pfedlora_flwr.ops import compare as comparing
from pfedlora_flwr.ops import known
from pfedlora_flwr.ops.decide import decide as planned
from pfedlora_flwr.runs.directory import RunDirectory

if TYPE_CHECKING:
    from pfedlora_flwr.api.typed_keys import CompareKeys, DecideKeys, RunKeys

Kind = TypeVar("Kind", Run, Comparison, newcomers.Newcomer)


def run(
    conf: Conf | None = None,
    *,
    engine: str = "local",
    progress: bool = True,
    **keys: Unpack[RunKeys],
) -> Run:
    """Train one federation, as `pfedlora run` does, to the same bits.

    Args:
        conf: The run's keys: the path of a YAML file, the name of one that comes with the package
            (`quickstart`), or a mapping, nested or with dots. None: all keys at their defaults.
        engine: `local` trains in this process, `lanes` clients at a time. `flower` starts `flwr
            run` with an actor for each core; models, method and dataset then need an import path.
        progress: Whether anything is printed: a line for each round, in a notebook one for all, and
            before the first what there is to say of the keys and the data.
        keys: Keys that win over `conf`, with `_` for `-` and `.`: `rounds=5`,
            `adapter_hidden_dim=30`. `models`, `method` and `dataset` also take objects: a class or
            a function; for `models` a list of them in turn; for `dataset` (inputs, labels) or
            (inputs, labels, class names). Inputs are images, uint8 [n, height, width, 1 or 3],
            series [n, channels, time] or vectors [n, features], whose columns keep their names
            if they are a data frame; labels are integers [n].
            `output` is the run's directory, otherwise runs/NAME, or NAME-2 where that is taken.

    Returns:
        The run. Its status is `completed`, `stopped` if `max-hours` or an observer ended it, or
        `diverged` if training did.

    Raises:
        UserError: A key or an object is wrong, or the run has failed; in one line.
        KeyboardInterrupt: Ctrl-C. What is done stays, and `load(output).resume()` goes on.
    """
    given = Given()
    options = keys_of(named(**keys), given)
    path, of_conf = conf_of(conf, given)
    return Run(trained(path, of_conf, options, given, engine=engine, progress=progress), given)


def compare(
    conf: Conf | None = None,
    *,
    methods: Sequence[Any] = (),
    seeds: Sequence[int] = (),
    output: str | PathLike[str] | None = None,
    engine: str | None = None,
    jobs: int | None = None,
    drop_models: bool = False,
    superlink: str = "",
    progress: bool = True,
    **keys: Unpack[CompareKeys],
) -> Comparison:
    """Run what is missing of a comparison, methods × scenarios × seeds, as `pfedlora compare` does.

    Args:
        conf: The comparison: the path of a YAML file, the name of one that comes with the package
            (`quick/table2`), or a mapping with `methods`, `seeds`, `base` and `axes`. None:
            `methods` and `seeds` are all there is.
        methods: Only these of its methods; without `conf` those to compare, names or classes.
        seeds: Only these of its seeds; without `conf` those to run, otherwise 0.
        output: The comparison's directory, otherwise runs/NAME; of a mapping, or without `conf`,
            runs/comparison, or comparison-2 where that holds runs that this one does not have.
        engine: `local` or `flower`; None: as the command chooses.
        jobs: Runs at once; None: as the command chooses. Objects without an import path run in this
            process, one after the other.
        drop_models: Whether completed runs keep their results alone, and not their models.
        superlink: A connection in Flower's config.toml, on whose nodes the runs are done.
        progress: Whether a line is printed for each run, in a notebook one for all.
        keys: Keys of all runs, as `run` takes them.

    Returns:
        The comparison, with all of its runs that are completed. Its `report` writes the report
        that the command writes by itself.

    Raises:
        UserError: A key is wrong, or runs have failed; the same call tries these again.
        KeyboardInterrupt: Ctrl-C. The same call goes on where it was.
    """
    given = Given()
    base = keys_of(named(**keys), given)
    chosen = [str(given.value("method", method)) for method in methods]
    numbers, say = [plain(seed) for seed in seeds], saying(progress)
    if isinstance(conf, Mapping):
        conf = content_of(conf, given)
    with available(given.objects), as_it_was():
        whole, place = placed(conf, base, chosen, numbers, output)
        if output is None and place.name.startswith(f"{NAMELESS}-"):
            say(f"runs/{NAMELESS} holds the runs of another comparison: this one is in {place}")
        given.check_here("flower" if superlink else engine or "local")
        done = comparing.compare(
            whole,
            place,
            methods=chosen,
            seeds=numbers,
            drop_models=drop_models,
            engine="local" if given.objects else engine or comparing.AUTO,
            jobs=comparing.AUTO if jobs is None else jobs,
            here=bool(given.objects),
            superlink=superlink,
            say=say,
            warn=say,
            ended=in_place(say),
        )
    for folder in runs_of(place):
        keep_sources(folder, given)
    if done.stopped:
        raise KeyboardInterrupt("stopped; the same call goes on where it was")
    if failed := done.work.failed:
        first, why = next(iter(failed.items()))
        raise UserError(
            f"{len(failed)} runs failed; the same call tries them again:"
            f" {first.relative_to(done.work.output)}: {why}"
        )
    return Comparison(place, given)


def decide(
    table: str | PathLike[str] | None = None,
    *,
    sites: str = "",
    label: str = "",
    superlink: str = "",
    rows: int = 0,
    minutes: float | None = None,
    seeds: Sequence[int] = (),
    output: str | PathLike[str] | None = None,
    progress: bool = True,
    **keys: Unpack[DecideKeys],
) -> Comparison:
    """Plan the comparison by which the sites of a table can decide, and run it, as `pfedlora
    decide` does.

    Args:
        table: A CSV or Parquet file.
        sites: The column that names each row's site.
        label: The column that is to be predicted.
        superlink: In the place of a table and its sites: a connection in Flower's config.toml, at
            whose nodes the tables are.
        rows: With `superlink`: about the rows of a site.
        minutes: What all runs may take, by estimate; None: 10, or 60 at nodes.
        seeds: The seeds to run; none: five, or as many as fit.
        output: The comparison's directory, otherwise runs/decide-TABLE. Its file, an ordinary
            comparison, is decide-TABLE.yaml, or OUTPUT.yaml.
        progress: Whether the plan is printed, and a line for each run.
        keys: Keys of all runs, as `run` takes them.

    Returns:
        The comparison, with all of its runs. Its `report` writes the report.

    Raises:
        UserError: The table cannot serve, a key is wrong, or runs have failed.
        KeyboardInterrupt: Ctrl-C. The same call goes on where it was.
    """
    given = Given()
    options = keys_of(named(**keys), given)
    with available(given.objects), as_it_was():
        found = planned(
            None if table is None else Path(table),
            sites=sites,
            label=label,
            superlink=superlink,
            rows=rows,
            minutes=minutes,
            seeds=[plain(seed) for seed in seeds],
            output=None if output is None else absolute(output),
            options=options,
        )
    for line in found.said:
        saying(progress)(line)
    return compare(
        found.file,
        output=found.output,
        engine=None if superlink else "local",
        superlink=superlink,
        progress=progress,
        **keys,
    )


@overload
def load(
    path: str | PathLike[str],
    kind: None = None,
    *,
    method: Any = None,
    models: Any = None,
    dataset: Any = None,
) -> Run | Comparison | newcomers.Newcomer: ...


@overload
def load(
    path: str | PathLike[str],
    kind: type[Kind],
    *,
    method: Any = None,
    models: Any = None,
    dataset: Any = None,
) -> Kind: ...


def load(
    path: str | PathLike[str],
    kind: Any = None,
    *,
    method: Any = None,
    models: Any = None,
    dataset: Any = None,
) -> Any:
    """A run, a comparison or an adapted client that is on disk.

    Args:
        path: Its directory.
        kind: `Run`, `Comparison` or `Newcomer`, which then comes back; None: whatever is there.
        method: The method's class, where the run was given one without an import path; of a
            comparison a list of them. Another than that is refused.
        models: The same of the client models.
        dataset: The same of the dataset.

    Returns:
        A `Comparison` where the directory holds a plan of one, a `Newcomer` where `adapt` wrote it,
        else a `Run`.

    Raises:
        UserError: There is neither, or another kind, or an object is not the one that the run was
            made with.
    """
    found = _found(absolute(path), {"method": method, "models": models, "dataset": dataset})
    if kind and not isinstance(found, kind):
        told = f"is a {type(found).__name__}; expected a {kind.__name__}"
        raise UserError(f"{absolute(path)} {told}")
    return found


def _found(place: Path, wanted: Mapping[str, Any]) -> Run | Comparison | newcomers.Newcomer:
    given = Given()
    names = {key: given.value(key, one) for key, one in wanted.items() if one is not None}
    if Plan.read(place):
        return Comparison(place, given)
    if newcomer := newcomers.found(place, given, names):
        return newcomer
    directory = RunDirectory(place)
    if not directory.holds_run:
        raise UserError(f"{place} holds neither a run nor a comparison, and no adapted client")
    check_same(directory.saved_keys(), names)
    return Run(place, given)


def list_keys(word: str = "") -> Rows:
    """The keys with a word in their name, part or meaning; without one all.

    Returns:
        A row a key: `key`, `part`, `default`, `allowed`, `meaning`.

    Raises:
        UserError: No key has the word.
    """
    return table(known.find_keys(word))


def list_methods() -> Rows:
    """The methods: `method`, `title`, `idea`, `shares` (what clients share), `assumes`, `paper`."""
    return table(known.methods())


def list_datasets() -> Rows:
    """The kinds of datasets: `dataset`, `classes`, `samples`, `about`, and the `keys` that say how
    one is read."""
    return table(known.datasets())
