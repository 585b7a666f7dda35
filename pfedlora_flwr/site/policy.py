"""A site's own rules: who may run what on its data, and what may leave it. They are the keys of one
schema, in a file that the site owns (`policy` in its node-config), and some of them in the
node-config itself; said twice, the stricter counts."""

from __future__ import annotations

import hashlib
import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors import UserError, as_line, meant, permissions
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.features import demands
from pfedlora_flwr.keys import Form, Key, Listed, Section, key, keys_of, section
from pfedlora_flwr.methods import registry

POLICY = "policy"
"""The key of a node-config that names the file."""
NODE_KEYS = (*permissions.NODE_KEYS, *demands.NODE_KEYS, "start-from")
"""The rules that a node-config may hold itself."""
_HOURS = re.compile(r"([01]?\d|2[0-3])-([01]?\d|2[0-4])")
_NAMES = Form("names", str, empty=True)


@dataclass(frozen=True)
class Egress(Section):
    """What may leave."""

    scores: str = key(
        "each", "scores: mean, in a masked sum alone; none", choices=("none", "mean", "each")
    )
    samples: str = key(
        "exact", "samples of a part that take part", choices=("exact", "rounded", "capped")
    )
    class_counts: str = key(
        "each", "samples of each class, rounded up or not", choices=("none", "rounded", "each")
    )
    step: int = key(10, "what `rounded` rounds to: samples down, counts of classes up", low=2)
    cap: int | None = key(None, "the most that `capped` tells", low=1)
    min_count: int = key(1, "the fewest samples of a count, a score or a class's row", low=1)
    feature_names: bool = key(True, "whether a table's column names leave")
    losses: bool = key(True, "whether losses leave")


@dataclass(frozen=True)
class Policy(demands.Demands):
    """The rules. file, sha256: of the policy; empty: there is none, so nothing is kept back, and a
    refusal's reason goes to the server. own: what the node-config itself names. sent: the
    folder of anchors that servers sent; empty: none are taken."""

    allow_code: Listed[str] = key("", "modules whose code a run may name", form=_NAMES)
    data_root: str = key("", "the folder below which a run may name data; empty: none")
    weights_root: str = key("", "the same for weights")
    allow_downloads: bool = key(False, "whether a run may name what is downloaded")
    runs_a_day: int | None = key(None, "the most runs in 24 hours", low=1)
    rounds: int | None = key(None, "the most rounds of a run, and uploads to it", low=1)
    bytes: int | None = key(None, "the most bytes that leave for a run", low=1)
    hours: str = key("", "local hours in which messages are answered, as 20-6; empty: all")
    methods: Listed[str] | None = key(None, "methods that may run; auto: all", form=_NAMES)
    models: Listed[str] | None = key(None, "models that may be trained; auto: all", form=_NAMES)
    start_from: str = key(
        "part",
        "what a run may send that begins from models of an earlier one. part: of what that sent",
        choices=("part", "any"),
    )
    evaluate: bool = key(True, "whether models are evaluated outside a visit")
    egress: Egress = section(Egress)
    file: str = ""
    sha256: str = ""
    own: frozenset[str] = frozenset()
    sent: str = ""

    @classmethod
    def of_node(cls, node_config: Mapping[str, Any]) -> Policy:
        """Of a node, its file read anew. Raises UserError with the first mistake."""
        said, mistakes = _parsed(
            {n: v for n, v in node_config.items() if n in NODE_KEYS}, "the node-config", texts=True
        )
        path, told, sha256 = str(node_config.get(POLICY, "")), dict[str, Any](), ""
        if POLICY in node_config:
            told, found, sha256 = _of_file(Path(path).expanduser())
            mistakes = found + mistakes
            if "state-path" not in node_config:
                mistakes = [f"{POLICY} needs a state-path in the node-config, for its log"]
        if mistakes:
            raise UserError(mistakes[0])
        both = told.keys() & said.keys()
        merged = told | said | {n: _stricter(_KEYS[n], told[n], said[n]) for n in both}
        named = "dataset", "data-path", permissions.ANCHORS
        own = {str(node_config[n]) for n in named if n in node_config}
        sent = str(permissions.sent_anchors(node_config) or "")
        made = cls.of(merged).replace(file=path, sha256=sha256, own=frozenset(own), sent=sent)
        for line in made.contradictions():
            raise UserError(line)
        for caps in filter(None, (demand.counting() for demand in made.demands())):
            if "state-path" not in node_config:
                raise UserError(
                    f"{caps} need a state-path in the node-config, where this node counts"
                )
        return made

    def permissions(self) -> permissions.Permissions:
        """What a run may name here."""
        return permissions.Permissions(
            code=frozenset(self.allow_code),
            data=self.data_root,
            weights=self.weights_root,
            downloads=self.allow_downloads,
            own=self.own,
            sent=self.sent,
        )

    def contradictions(self) -> Iterator[str]:
        """Rules of which no run keeps both, a line each."""
        out = self.egress
        hours = _HOURS.fullmatch(self.hours or "0-1")
        if not hours or int(hours[1]) == int(hours[2]) % 24:
            yield f"hours is {self.hours!r}; allowed: two different hours such as 20-6, or nothing"
        for demand in self.demands():
            yield from demand.contradictions(out.scores)
        if out.samples == "capped" and out.cap is None:
            yield "egress.samples is capped without egress.cap"

    def objections(self, config: RunConfig, asked: Mapping[str, Any], kind: str) -> Iterator[str]:
        """What stands against a message of this run, before anything is done for it.

        asked: what the message says. kind: of the message."""
        e = config.experiment
        if self.hours and not self.open_at(time.localtime().tm_hour):
            yield f"hours is {self.hours} here"
        for demand in self.demands():
            yield from demand.objections(config, asked, kind)
        if self.methods is not None and e.method not in self.methods:
            yield f"methods here are {self.methods.text}, and this run's is {e.method}"
        if self.models is not None:
            others = [name for name in e.models or ["auto"] if name not in self.models]
            if others:
                yield f"models here are {self.models.text}, and this run's are {others[0]}"
        if self.rounds and e.rounds > self.rounds:
            yield f"rounds is {self.rounds} here, and {e.rounds} in this run"
        if kind == "evaluate" and not (self.evaluate or asked.get("adapt")):
            yield "evaluate is false here"
        if self.egress.scores == "none" and e.hides_uploads:
            yield "egress.scores is none here, and a masked sum holds scores"
        rows = registry.find(e.method).rows_sent(e)
        if "counts" in rows and self.egress.class_counts == "none":
            yield "egress.class-counts is none here, and this run's uploads reveal them"
        if rows and "classes" not in rows:
            if self.egress.min_count > 1:
                yield "egress.min-count is set here, and this run's uploads mix all classes"
            if "sums" in rows and self.egress.class_counts != "each":
                yield "this run's uploads are exact sums, and egress rules round them"
            if "sums" in rows and self.egress.scores != "each" and not e.hides_uploads:
                yield f"egress.scores is {self.egress.scores} here, and this run sends some"
        shares = (e.partition.share, e.partition.samples_per_client)
        if self.egress.samples != "exact" and shares != (1, None):
            yield "egress.samples is not exact here, and shares of the samples tell their number"

    def open_at(self, hour: int) -> bool:
        """Whether messages are answered in this local hour."""
        first, last = (int(h) for h in self.hours.split("-"))
        return first <= hour < last if first < last else hour >= first or hour < last


_KEYS = keys_of(Policy)
_NOW: ContextVar[Policy | None] = ContextVar("_NOW", default=None)


@contextmanager
def held(policy: Policy) -> Iterator[None]:
    """Within it a message is answered under this policy."""
    token = _NOW.set(policy)
    try:
        yield
    finally:
        _NOW.reset(token)


def policy_for(node_config: Mapping[str, Any]) -> Policy:
    """The one under which the message is answered, read once. Raises UserError."""
    return _NOW.get() or Policy.of_node(node_config)


def ledger_for(node_config: Mapping[str, Any]) -> demands.Ledger | None:
    """What a real node has spent; None without a `state-path`."""
    policy = policy_for(node_config)
    if "state-path" not in node_config:
        return None
    return policy.noise.ledger(Path(str(node_config["state-path"])).expanduser())


def check_file(path: Path) -> tuple[Policy | None, list[str]]:
    """The policy in a file, and its mistakes, a line each."""
    values, mistakes, sha256 = _of_file(path)
    made = Policy.of(values).replace(file=str(path), sha256=sha256)
    mistakes += [f"policy {path}: {line}" for line in made.contradictions()]
    return (None if mistakes else made), mistakes


def _of_file(path: Path) -> tuple[dict[str, Any], list[str], str]:
    """What a file says, by key, its mistakes, and its hash."""
    where = f"policy {path}"
    try:
        blob = path.read_bytes()
        said = tomllib.loads(blob.decode())
    except OSError as error:
        return {}, [f"{where} cannot be read: {error.strerror}"], ""
    except ValueError as error:  # no UTF-8, or no TOML
        return {}, [f"{where} cannot be read: {as_line(str(error))}"], ""
    flat = {
        f"{name}.{inner}" if inner else name: value
        for name, found in said.items()
        for inner, value in (found.items() if isinstance(found, dict) else [("", found)])
    }
    return *_parsed(flat, where), hashlib.sha256(blob).hexdigest()


def _parsed(
    flat: Mapping[str, Any], where: str, *, texts: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The values of these keys, and a line for each mistake. texts: whether numbers and switches
    may be written as texts, as a node-config has them."""
    values, mistakes = dict[str, Any](), list[str]()
    for name, value in flat.items():
        if (k := _KEYS.get(name)) is None:
            told = meant(name.lower(), _KEYS, f"allowed: {', '.join(_KEYS)}")
            mistakes.append(f"{where}: unknown key {name!r}; {told}")
            continue
        if texts and isinstance(value, str):
            if k.kind is bool and value.lower() in ("true", "false"):
                value = value.lower() == "true"
            elif k.kind is int and value.isascii() and value.isdigit():
                value = int(value)
        if k.form:  # a list, or a text with blanks or commas
            words = value if isinstance(value, list) else str(value).replace(",", " ").split()
            value = ",".join(map(str, words))
        try:
            values[name] = k.parse(value)
        except UserError as error:
            mistakes.append(f"{where}: {error}")
    return values, mistakes


def _stricter(k: Key, one: Any, other: Any) -> Any:
    """Of two values of a key that a node-config may hold. Raises UserError where no run keeps
    both."""
    if one == other or other is None:
        return one
    if k.form:
        return k.parse(",".join(word for word in one if word in other))
    if k.kind in (bool, int, float):
        return other if one is None else min(one, other)
    if k.choices and "any" not in k.choices:
        return k.choices[-1]
    if k.choices and "any" in (one, other):
        return other if one == "any" else one
    if not k.choices:
        folders = [Path(text).expanduser().resolve() for text in (one, other)]
        for inner, outer, text in ((*folders, one), (*reversed(folders), other)):
            if "" in (one, other) or inner.is_relative_to(outer):
                return text if "" not in (one, other) else ""
    raise UserError(f"{k.name} is {one} in the policy and {other} in the node-config: choose one")
