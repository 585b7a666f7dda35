"""A site's policy: its file, the node-config beside it, what each rule refuses, and the log."""

from __future__ import annotations

import errno
import os
import re
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flwr.app import Context, Message, RecordDict

from pfedlora_flwr import client_app
from pfedlora_flwr.cli import commands
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.dp.accountant import epsilon
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.messages import Instruction, written
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.report import pdf
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.site.egress import NEUTRAL
from pfedlora_flwr.site.log import Log
from pfedlora_flwr.site.policy import Policy, check_file
from tests.conftest import keys_in

PAGE = Path(__file__).parents[2] / "docs" / "site.md"
BASE: dict[str, Any] = keys_in(
    "clients=3 rounds=2 dataset=synthetic:120 partition.kind=iid device=cpu method=fedavg "
    "models=tests.methods.narrow:Narrow"
)
DP = {"dp.clip": 0.3, "dp.noise": 5.0}
MASKS = {"secagg.enabled": True, "secagg.max-samples": 128}


class Node:
    """A real node's ClientApp with this policy, asked by hand."""

    def __init__(self, folder: Path, text: str, **node_config: Any) -> None:
        self.file, self.state = folder / "policy.toml", folder / "state"
        self.file.write_text(text)
        home = {"partition-id": 0, "state-path": str(self.state), "policy": str(self.file)}
        self.config = home | node_config

    def ask(self, keys: dict[str, Any], message: Message | None = None, run: int = 1) -> str:
        """What the server is told; empty where the node answers."""
        LocalGrid(client_app.app, [{}], {})  # messages take a run
        message = message or wire.properties_message(2, 60.0)
        context = Context(run, 2, self.config, RecordDict(), BASE | keys)
        reply = client_app.app(message, context)
        if reply.has_error():
            return reply.error.reason or ""
        return str((wire.told_in(reply.content) or {}).get("error", ""))

    def log(self) -> list[dict[str, Any]]:
        return [*Log(self.state).lines()]


def instruction(**more: Any) -> Any:
    told: dict[str, Any] = {"round": 1, "client": 0, "version": 0, "token": "a1", "run": ""}
    return written(Instruction(**(told | {"evaluate": True, "names": []} | more)))


EVALUATE = wire.evaluate_message
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "secagg": ('secagg = "required"', {}, "secagg is required here"),
    "min-sites implies it": ("min-sites = 3", {}, "secagg is required here"),
    "min-sites": ("min-sites = 4", MASKS, "min-sites is 4 here, and this run sums 3 clients"),
    "dp": ('dp = "user"', {}, "dp is demanded here, and no dp is set"),
    "dp of another level": ('dp = "record"', DP, "dp of level record is demanded here"),
    "epsilon-cap": ("epsilon-cap = 3.0", {}, "epsilon-cap is demanded here"),
    "methods": ('methods = ["fedrep"]', {}, "methods here are fedrep, and this run's is fedavg"),
    "models": ('models = ["cnn1"]', {"models": "cnn5"}, "models here are cnn1, and this run's are"),
    "rounds": ("rounds = 1", {"rounds": 2}, "rounds is 1 here, and 2 in this run"),
    "audit": ("audit = false", {"audit.uploads": True}, "audit is false here"),
    "code": ('allow-code = ""', {"method": "os:system"}, "is code, of which this node allows"),
    "data": (
        'data-root = "/srv"',
        {"dataset": "csv:/etc/passwd"},
        "allows only files below its",
    ),
    "class counts": (
        '[egress]\nclass-counts = "none"',
        {"method": "fedproto"},
        "egress.class-counts is none here",
    ),
    "class rows": ("[egress]\nmin-count = 5", {"method": "fedridge"}, "egress.min-count is set"),
    "sums": ('[egress]\nclass-counts = "rounded"', {"method": "fedncm"}, "are exact sums"),
    "scores in a sum": ('[egress]\nscores = "none"', MASKS, "a masked sum holds scores"),
    "few samples": (
        "[egress]\nmin-count = 1000",
        {"models": "cnn5"},
        "egress.min-count is 1000 here",
    ),
}


SHOWN = {
    *("secagg", "min-sites", "dp of another level", "methods", "code", "data"),
    *("class counts", "few samples"),
}


def refused(name: str, folder: Path) -> tuple[Node, str]:
    """A node that has refused this attempt, and its row for docs/site.md, which shows SHOWN."""
    text, keys, _ = REFUSED[name]
    allowed = "" if "allow-code" in text else 'allow-code = "tests.methods.narrow"\n'
    node, train = Node(folder, allowed + text), None
    if name == "few samples":
        state = client_app_state()
        train = wire.train_message(2, 1, state, instruction(names=[*state]), 60)
    assert node.ask(keys, train) == NEUTRAL
    asked = {k: v for k, v in (keys or {"method": "fedavg"}).items() if k != "secagg.max-samples"}
    words = " ".join(f"{k}={str(v).lower() if v is True else v}" for k, v in asked.items())
    rule = text.replace("[egress]\n", "egress.")
    return node, f"| `{rule}` | `{words}` | {node.log()[0]['refused']} |"


@pytest.mark.parametrize("name", REFUSED)
def test_each_rule_refuses_its_run_before_data_are_read_and_tells_why_at_the_site_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, keys, line = REFUSED[name]
    if name not in ("few samples", "data"):  # permissions are asked where data would be opened
        read = "pfedlora_flwr.data.local.Site.find"
        monkeypatch.setattr(read, lambda *_: pytest.fail("data were read"))
    node, row = refused(name, tmp_path)
    assert line in node.log()[0]["refused"]
    assert (row in PAGE.read_text()) == (name in SHOWN), "see `python -m tests.site.test_policy`"
    node.file.write_text('allow-code = "tests.methods.narrow"')
    if "csv" in str(keys) or "os:" in str(keys):
        return
    monkeypatch.undo()
    assert node.ask(keys) == "", "another rule refuses it, too"
    hashes = [entry["policy"] for entry in node.log()]
    assert len({*hashes}) == 2, "the file was not read anew, or its change is not in the log"


def test_evaluation_and_adaptation_outside_a_visit_are_rules_of_their_own(tmp_path: Path) -> None:
    node = Node(tmp_path, "evaluate = false")
    keys = {"models": "cnn5"}
    assert node.ask(keys, EVALUATE(2, 1, instruction(), 60)) == NEUTRAL
    node.file.write_text("adapt = false")
    assert node.ask(keys, EVALUATE(2, 1, instruction(), 60)) == ""
    assert node.ask(keys, EVALUATE(2, 1, instruction(adapt=True), 60)) == NEUTRAL
    said = [entry.get("refused", "") for entry in node.log()]
    assert said == ["evaluate is false here", "", "adapt is false here"]


@pytest.mark.slow
def test_bytes_uploads_and_runs_of_a_day_are_counted_by_the_log(tmp_path: Path) -> None:
    node, keys = Node(tmp_path, "runs-a-day = 1"), {"models": "cnn5"}
    assert [node.ask(keys, run=run) for run in (1, 1, 2)] == ["", "", NEUTRAL]
    assert node.log()[2]["refused"] == "runs-a-day is 1 here, and 1 runs were here today"
    node.file.write_text(f"bytes = {node.log()[0]['bytes'] * 2 + 1}")
    assert node.ask(keys) == NEUTRAL, "a third reply would make more"
    node.file.write_text("rounds = 2")
    for expected in ("", "", NEUTRAL):
        state = client_app_state()
        assert node.ask(keys, wire.train_message(2, 1, state, instruction(names=[*state]), 60)) == (
            expected
        )
    assert "this run has had 2 uploads" in node.log()[-1]["refused"]
    state = client_app_state()
    for run, token, expected in ((9, "a1", NEUTRAL), (1, "b2", NEUTRAL), (9, "b2", "")):
        told = instruction(names=[*state], token=token)
        said = node.ask(keys, wire.train_message(2, 1, state, told, 60), run)
        assert said == expected, "resumed, renamed, and another run"


def client_app_state() -> dict[str, Any]:
    from tests.plain import Plain

    return Plain(BASE | {"models": "cnn5"}).state


def test_hours_hold_over_midnight(tmp_path: Path) -> None:
    night, day = Policy(hours="20-6"), Policy(hours="8-18")
    assert [night.open_at(hour) for hour in (19, 20, 23, 0, 5, 6)] == [0, 1, 1, 1, 1, 0]
    assert [day.open_at(hour) for hour in (7, 8, 17, 18)] == [0, 1, 1, 0]
    now = time.localtime().tm_hour
    node = Node(tmp_path, f'hours = "{(now + 2) % 24}-{(now + 4) % 24}"')
    assert node.ask({"models": "cnn5"}) == NEUTRAL


WRONG = {
    'dp = "yes"': "dp is 'yes'; allowed: any | user | record",
    'secag = "required"': "unknown key 'secag'; did you mean 'secagg'?",
    "rounds = 0": "rounds is 0; allowed: auto, or an integer ≥ 1",
    "rounds = true": "rounds is True; allowed: auto, or an integer ≥ 1",
    'min-sites = "3"': "min-sites is '3'; allowed: auto, or an integer ≥ 3",
    "[egress]\nscore = 1": "unknown key 'egress.score'; did you mean 'egress.scores'?",
    "rounds = ": "cannot be read: Invalid value",
    'hours = "25-3"': "hours is '25-3'; allowed: two different hours such as 20-6",
    'hours = "6-6"': "hours is '6-6'; allowed: two different hours",
    'secagg = "required"\n[egress]\nscores = "none"': "whose sums hold scores: set mean",
    '[egress]\nsamples = "capped"\nclass-counts = "none"': "is capped without egress.cap",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_policy_with_a_mistake_is_a_line_and_its_node_takes_part_in_nothing(
    text: str, tmp_path: Path
) -> None:
    node = Node(tmp_path, text)
    assert node.ask({"models": "cnn5"}) == NEUTRAL
    told, mistakes = check_file(node.file)
    assert told is None
    assert len(mistakes) == 1
    assert WRONG[text] in mistakes[0]
    assert WRONG[text] in node.log()[0]["refused"]
    done = CliRunner().invoke(commands(), ["site", "check", str(node.file)])
    assert done.exit_code == 2


def test_a_policy_that_is_missing_or_unreadable_refuses_all_messages(tmp_path: Path) -> None:
    node = Node(tmp_path, "")
    assert node.ask({"models": "cnn5"}) == ""
    for break_it, why in ((node.file.unlink, "No such file"), (node.file.mkdir, "Is a directory")):
        break_it()
        assert node.ask({"models": "cnn5"}) == NEUTRAL
        assert why in node.log()[-1]["refused"]
    with pytest.raises(UserError, match="policy needs a state-path"):
        Policy.of_node({"policy": str(node.file)})


SAID_TWICE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("epsilon-cap = 3.0", {"epsilon-cap": 2.0}, {"epsilon-cap": 2.0}),
    ("epsilon-cap = 1.0", {"epsilon-cap": "2"}, {"epsilon-cap": 1.0}),
    ("runs-cap = 3", {"runs-cap": 4}, {"runs-cap": 3}),
    ('secagg = "any"', {"secagg": "required"}, {"secagg": "required"}),
    ('scores = "summed"', {"scores": "told"}, {"scores": "summed"}),
    ('dp = "any"', {"dp": "record"}, {"dp": "record"}),
    ("allow-downloads = true", {"allow-downloads": "false"}, {"allow-downloads": False}),
    ('allow-code = ["a", "b"]', {"allow-code": "b c"}, {"allow-code": "b"}),
    ('data-root = "/srv/a"', {"data-root": "/srv"}, {"data-root": "/srv/a"}),
    ('data-root = "/srv"', {"data-root": "/srv/a"}, {"data-root": "/srv/a"}),
    ('weights-root = ""', {"weights-root": "/srv"}, {"weights-root": ""}),
    ("", {"scores": "told", "runs-cap": 2}, {"scores": "told", "runs-cap": 2}),
]


@pytest.mark.parametrize(("text", "node_config", "expected"), SAID_TWICE)
def test_what_is_said_twice_counts_as_the_stricter_says(
    text: str, node_config: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    node = Node(tmp_path, text, **node_config)
    found = Policy.of_node(node.config)
    values = {name: str(value) for name, (_, value) in found.keys().items()}
    assert {name: values[name] for name in expected} == {
        name: str(value) for name, value in expected.items()
    }


@pytest.mark.parametrize(
    ("text", "node_config"),
    [('dp = "user"', {"dp": "record"}), ('data-root = "/srv"', {"data-root": "/data"})],
)
def test_what_no_run_keeps_is_refused(text: str, node_config: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="in the node-config: choose one"):
        Policy.of_node(Node(tmp_path, text, **node_config).config)


def test_a_log_that_was_changed_is_seen_and_one_that_cannot_be_written_stops_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, "")
    for _ in range(4):
        assert node.ask({"models": "cnn5"}) == ""
    path = node.state / "egress.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    assert "refused" not in node.log()[0]
    damaged = {
        "changed": [whole[0], whole[1].replace(b'"bytes": ', b'"bytes": 1'), *whole[2:]],
        "taken out": [whole[0], *whole[2:]],
        "turned": [whole[1], whole[0], *whole[2:]],
        "cut off": [*whole[:1], whole[1][:40] + b"\n"],
    }
    for name, lines in damaged.items():
        path.write_bytes(b"".join(lines))
        with pytest.raises(UserError, match="is not as it was written"):
            node.log()
        done = CliRunner().invoke(commands(), ["site", "log", str(node.state)])
        assert isinstance(done.exception, UserError), name
    path.write_bytes(b"".join(whole))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        assert node.ask({"models": "cnn5"}) == NEUTRAL, "the system itself writes no more"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"".join(whole), "half a line was left"

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert node.ask({"models": "cnn5"}) == NEUTRAL
    del node.config["policy"]
    assert "egress.jsonl, cannot be written (No space left on device): it sends nothing" in (
        node.ask({"models": "cnn5"})
    )
    monkeypatch.undo()
    assert path.read_bytes() == b"".join(whole), "half a line was left"
    assert node.ask({"models": "cnn5"}) == ""


@pytest.mark.slow
def test_a_site_s_pages_tell_what_left_it_and_what_it_refused(tmp_path: Path) -> None:
    node = Node(tmp_path, 'methods = ["fedavg", "<b>"]')
    assert node.ask({"models": "cnn5"}) == ""
    assert node.ask({"models": "cnn5", "method": "fedrep"}) == NEUTRAL
    page = tmp_path / "site.html"

    def site(*words: str) -> str:
        done = CliRunner().invoke(commands(), ["site", *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "methods is fedavg,<b>" in site("check", str(node.file))
    rows = site("log", str(node.state), "--csv").splitlines()
    assert rows[0].startswith("time,run,round,asked,method,left,bytes,under,refused")
    assert "methods here are fedavg,<b>, and this run's is fedrep" in rows[2]
    assert "2 lines, each as it was written" in site("log", str(node.state))
    assert "ε of all runs together: 0" in site("status", str(node.state))
    site("report", str(node.state), "--output", str(page))
    text = page.read_text()
    assert "1 message left this site, 1 was refused" in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert str(tmp_path) not in text
    files = [tmp_path / "a.pdf", tmp_path / "b.pdf"]
    for file in files:
        site("report", str(node.state), "--output", str(file))
        assert (file.read_bytes()[:5], pages(file)) == (b"%PDF-", 1)
    assert files[0].read_bytes() == files[1].read_bytes(), "it has a date"


def pages(file: Path) -> int:
    return len(re.findall(rb"/Type /Page\b", file.read_bytes()))


@pytest.mark.slow
def test_a_pdf_has_every_line_of_a_table_on_as_many_pages_as_that_takes(tmp_path: Path) -> None:
    rows = [{"run": str(n), "why": f"$\\x_{n} " + "word " * 12} for n in range(100)]
    lines = pdf.below("All", Table("a", "b", rows))
    starts = [f"{n:<3}  $\\x_{n} word word word word word word" for n in range(100)]
    assert all(line.startswith(s) for line, s in zip(lines[3::2], starts, strict=True))
    assert sum(line.count("word") for line in lines) == 1200
    assert max(map(len, lines)) <= 45
    (tmp_path / "a.pdf").write_bytes(pdf.pdf("A", [("All", Table("a", "b", rows)), ("", ["c"])]))
    assert pages(tmp_path / "a.pdf") == 5


def test_at_its_cap_in_mid_run_a_site_steps_out_with_a_neutral_line(tmp_path: Path) -> None:
    node = Node(tmp_path, f"epsilon-cap = {epsilon(5.0, 1, 1e-5) + 0.01}")
    keys = BASE | DP | {"models": "cnn5"}
    state = client_app_state()
    train = instruction(names=[*state])
    said = [node.ask(keys, wire.train_message(2, r, state, train, 60)) for r in (1, 2)]
    assert said == ["", NEUTRAL]
    first, second = node.log()
    assert first["epsilon"] == pytest.approx(epsilon(5.0, 1, 1e-5))
    assert first["protection"] == ["dp of level user"]
    assert "epsilon-cap is set here, and this visit would exceed it" in second["refused"]


def test_the_policies_to_copy_hold() -> None:
    files = sorted((PAGE.parent / "policies").glob("*.toml"))
    assert [file.stem for file in files] == ["hospital", "plant", "research"]
    page = PAGE.read_text()
    for file in files:
        told, mistakes = check_file(file)
        assert (mistakes, told is not None) == ([], True)
        assert f"(policies/{file.name})" in page
    assert files[0].read_text().strip() in page, "site.md has another hospital"


if __name__ == "__main__":
    for attempt in SHOWN:
        with tempfile.TemporaryDirectory() as place:
            print(refused(attempt, Path(place))[1])
