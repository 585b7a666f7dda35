"""Who is who, over a grid in memory: nodes that come, go, come back and lie; replies that nobody
asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Error, Message
from flwr.common import Code, GetPropertiesRes, Status
from flwr.common.constant import ErrorCode
from flwr.compat.common.recorddict_compat import getpropertiesres_to_recorddict

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import permissions
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.federation.clients import Clients, WaitingLog
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.federation.exchange import exchange
from pfedlora_flwr.federation.messages import failure_in
from pfedlora_flwr.federation.roster import Roster
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.federation.wire import COUNT, properties_message
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import told_versions
from pfedlora_flwr.site.policy import Policy
from pfedlora_flwr.version import WIRE, __version__
from tests.conftest import Done

pytestmark = pytest.mark.usefixtures("in_a_run")


class Grid:
    """Nodes that answer at once with the properties they have, unless `silent`."""

    def __init__(self, **nodes: dict[str, Any]) -> None:
        self.nodes = {int(name.removeprefix("n")): properties for name, properties in nodes.items()}
        self.asked: list[int] = []
        self.replies: list[Message] = []

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(node_id=node, name="") for node in self.nodes]

    def get_node_ids(self) -> Iterable[int]:  # of a simulation's
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> None:
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"{len(self.asked)}-{number}"
            self.asked.append(message.metadata.dst_node_id)
            properties = self.nodes[message.metadata.dst_node_id]
            if properties is not None:
                self.replies.append(reply(message, **properties))

    def pull_messages(self, ids: Iterable[str]) -> Iterable[Message]:
        came = [r for r in self.replies if r.metadata.reply_to_message_id in set(ids)]
        self.replies = [r for r in self.replies if r not in came]
        return came


def reply(to: Message, **properties: Any) -> Message:
    return Message(
        getpropertiesres_to_recorddict(GetPropertiesRes(Status(Code.OK, ""), properties)),
        reply_to=to,
    )


def client(number: int, partition: str = "p", **more: Any) -> dict[str, Any]:
    said = {"partition_id": number, "partition": partition, "classes": "[]", "name": ""}
    return said | {"wire": WIRE} | more


def own(name: str, *classes: str, **more: Any) -> dict[str, Any]:
    return client(-1, "own", name=name, classes=json.dumps(classes), **more)


def roster(
    grid: Grid, clients: int, folder: Path, partition: str | None = None, **more: Any
) -> tuple[Roster, list[str]]:
    """And what it refuses."""
    refused: list[str] = []
    more = {"patience": 0.0, "classes": 3} | more
    file = folder / "numbers.json"
    return Roster(grid, clients, file, partition, refused.append, **more), refused


def test_a_second_claimant_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    grid = Grid(n10=client(0), n11=client(1), n12=client(1))
    found, refused = roster(grid, 2, tmp_path)
    found.refresh()
    found.refresh()
    assert found.node_of == {0: 10, 1: 11}
    assert refused == [
        "node 12 is not a client of this run: partition-id 1 is taken by node 11, which is"
        " connected"
    ]
    del grid.nodes[11]
    found.refresh()
    assert found.node_of == {0: 10, 1: 12}
    assert grid.asked == [10, 11, 12], "each node is asked once"


LONG_NAMES = [f"a class with a long name, {k}" for k in range(40)]
TABLES = ['["age", "weight"]', '["weight", "age"]', '["age", "weight"]', "[]"]
ODD = {
    "a partition that most do not have": (
        [client(0, "wrong"), client(1), client(2)],
        [11, 12],
        "its data or partition differs",
    ),
    "a state path that another has": (
        [own("a", "cat"), own("a", "cat")],
        [10],
        "its state-path has the name of node 10, which is connected: it is the same one before a"
        " restart, and gone in a minute, or the state-path is shared or a copy: give each its own",
    ),
    "a stray class": (
        [own("a", ".stray", "cat", "dog"), own("b", "cat", "dog"), own("c", "cat", "dog")],
        [11, 12],
        "its classes are ['.stray', 'cat', 'dog'], other nodes' ['cat', 'dog']",
    ),
    "classes in another place": (
        [own("a", "cat", "dog", "owl"), own("b", "cat", "dog"), own("c", "dog", "owl")],
        [10, 11],
        "its classes are ['dog', 'owl'], other nodes' ['cat', 'dog', 'owl']",
    ),
    "one of many classes": (
        [own("a", *LONG_NAMES), own("b", *LONG_NAMES), own("c", *LONG_NAMES[:30], "stray")],
        [10, 11],
        f"its classes from number 31 on are ['stray'], other nodes' ['{LONG_NAMES[30]}', ",
    ),
    "another order of the data": (
        [client(0, data="a"), client(1, data="b"), client(2, data="a")],
        [10, 12],
        "the order of its classes differs",
    ),
    "another base of LoRA": (
        [client(k, base=f"a sha256:{b}") for k, b in enumerate((1, 2, 1))],
        [10, 12],
        "its base is 'a sha256:2', other nodes' 'a sha256:1': give it the files",
    ),
    "another order of the columns": (
        [own(str(k), columns=told) for k, told in enumerate(TABLES)],
        [10, 12, 13],  # one without a table has no columns
        "its columns are ['weight', 'age'], other nodes' ['age', 'weight']: a feature needs the"
        " same place everywhere",
    ),
}


@pytest.mark.parametrize(("nodes", "stay", "line"), ODD.values(), ids=ODD)
def test_one_that_does_not_agree_with_the_others_is_turned_away_in_a_line(
    nodes: list[dict[str, Any]], stay: list[int], line: str, tmp_path: Path
) -> None:
    """In a resumed run, too."""
    grid = Grid(**{f"n{10 + k}": said for k, said in enumerate(nodes)})
    partition = None
    for _ in range(2):
        found, refused = roster(grid, len(nodes), tmp_path, partition, classes=40)
        found.refresh()
        partition = found.partition
        assert sorted(found.node_of.values()) == stay
        [said] = refused
        assert line in said
        assert found.data == nodes[0].get("data", "")


def test_a_resumed_run_goes_by_its_own_partition_whatever_most_have(tmp_path: Path) -> None:
    nodes = Grid(n10=client(0, "wrong"), n11=client(1), n12=client(2))
    found, refused = roster(nodes, 3, tmp_path, "wrong")
    found.refresh()
    assert sorted(found.node_of) == [0]
    assert len(refused) == 2


def test_what_a_node_once_said_outlives_its_silence(tmp_path: Path) -> None:
    class Tiring(Grid):
        def push_messages(self, messages: Iterable[Message]) -> None:
            asked = list(messages)
            super().push_messages(asked)
            if len(self.asked) > 1:
                expired = Error(ErrorCode.MESSAGE_UNAVAILABLE, "Error: Message Unavailable")
                self.replies = [Message(expired, reply_to=message) for message in asked]

    grid = Tiring(n10={"error": "t.csv does not exist"})
    found, refused = roster(grid, 2, tmp_path)
    for _ in range(2):
        found._unclear = {node: (n, 0.0, name) for node, (n, _, name) in found._unclear.items()}
        found.refresh()
    assert grid.asked == [10, 10]
    assert found.refused == {10: "t.csv does not exist"}
    assert len(refused) == 1


def test_a_restarted_node_is_the_same_client_under_its_new_id(tmp_path: Path) -> None:
    grid = Grid(n10=client(0))
    found, refused = roster(grid, 1, tmp_path)
    found.refresh()
    grid.nodes = {77: client(0)}
    found.refresh()
    assert found.node_of == {0: 77}
    assert not refused


def test_nodes_with_data_of_their_own_are_numbered_and_keep_their_numbers(tmp_path: Path) -> None:
    grid = Grid(n12=own("c"), n10=own("a"), n11=own("b"))
    found, _ = roster(grid, 3, tmp_path)
    found.refresh()
    assert found.node_of == {0: 10, 1: 11, 2: 12}
    assert found.partition == "own"
    # a resumed run: new ids, the same names
    found, _ = roster(Grid(n20=own("c"), n21=own("b")), 3, tmp_path)
    found.refresh()
    assert found.node_of == {2: 20, 1: 21}
    found.grid.nodes |= {30: own("new")}  # type: ignore[attr-defined]
    found.refresh()
    assert found.node_of == {
        2: 20,
        1: 21,
        0: 30,
    }, "a node that lost its folder takes the place that is free"
    found.grid.nodes |= {31: own("one too many")}  # type: ignore[attr-defined]
    found.refresh()
    assert found.refused == {31: "all 3 clients have their nodes, or have not been away for long"}


def test_a_named_node_keeps_its_number_from_newcomers(tmp_path: Path) -> None:
    grid = Grid(n10=own("a"), n11=own("b"), n12=own("c"))
    roster(grid, 3, tmp_path)[0].refresh()
    found, _ = roster(Grid(n5=own("spare"), n20=own("a"), n21=own("b"), n22=own("c")), 3, tmp_path)
    found.refresh()
    assert found.node_of == {0: 20, 1: 21, 2: 22}, "who is known comes before who is new"
    found, _ = roster(Grid(n5=own("spare"), n20=own("a"), n21=own("b")), 3, tmp_path, patience=60)
    found.refresh()
    assert found.node_of == {0: 20, 1: 21}, "who is gone for a moment keeps its number"


def test_a_wrong_node_that_comes_first_does_not_settle_the_partition(tmp_path: Path) -> None:
    grid = Grid(n9=client(2, "wrong"))
    found, refused = roster(grid, 3, tmp_path)
    found.refresh()
    grid.nodes |= {10: client(0), 11: client(1)}
    assert found.wait_for_count(2, 5.0, lambda connected: None)
    assert found.node_of == {0: 10, 1: 11}
    assert "its data or partition differs" in refused[0]


def test_a_site_that_changes_its_classes_during_a_run_is_turned_away_until_it_restores_them(
    tmp_path: Path,
) -> None:
    grid = Grid(n10=own("a", "cat", "dog"), n11=own("b", "cat", "dog"), n12=own("c", "cat", "dog"))
    found, refused = roster(grid, 3, tmp_path)
    assert found.wait_for_count(3, 5.0, lambda connected: None)
    del grid.nodes[12]
    grid.nodes[22] = own("c", "cat", "dog", "owl")
    found.refresh()
    assert sorted(found.node_of.values()) == [10, 11]
    assert refused == [
        "node 22 is not a client of this run: its classes are ['cat', 'dog', 'owl'], other nodes'"
        " ['cat', 'dog']: a class needs the same number everywhere; name all of them in"
        " data.class-names, restore its classes, or begin a new run"
    ]
    del grid.nodes[22]
    grid.nodes[32] = own("c", "cat", "dog")
    found.refresh()
    assert sorted(found.node_of.values()) == [10, 11, 32]


def test_a_node_with_other_versions_is_named_and_with_other_messages_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = told_versions()
    patch, older = here | {"torch": f"{here['torch']}.post1"}, here | {"pfedlora-flwr": "0.1.0"}
    nodes = [client(k, versions=json.dumps(told)) for k, told in enumerate((here, patch, older))]
    grid = Grid(n10=nodes[0], n11=nodes[1], n12=nodes[2], n13=nodes[2] | {"wire": WIRE + 1})
    found, refused = roster(grid, 3, tmp_path)
    assert found.wait_for_count(3, 5.0, lambda connected: None)
    assert found.versions == {0: here, 1: patch, 2: older}
    warned = f"client 2 has pfedlora-flwr 0.1.0, the server {__version__}: install the same"
    assert [line.split(" versions")[0] for line in caplog.messages] == [warned]
    assert refused == [
        f"node 13 is not a client of this run: its messages have format {WIRE + 1} (pfedlora-flwr:"
        f" 0.1.0), this server's {WIRE} ({__version__}): install the same version on both"
    ]


@pytest.mark.parametrize("told", ['{"torch": [1]}', '["flwr"]', "3", "{"])
def test_versions_that_no_client_tells_are_refused(told: str, tmp_path: Path) -> None:
    found, refused = roster(Grid(n10=client(0, versions=told)), 1, tmp_path)
    assert not found.wait_for_count(1, 0.2, lambda connected: None)
    assert refused == [
        "node 10 is not a client of this run: its versions are none that a client tells"
    ]


def test_a_new_site_may_have_more_classes_than_those_that_came_first(tmp_path: Path) -> None:
    grid = Grid(n10=own("a", "cat", "dog"), n11=own("b", "cat", "dog"))
    found, refused = roster(grid, 3, tmp_path)
    assert found.wait_for_count(2, 5.0, lambda connected: None)
    grid.nodes[12] = own("c", "cat", "dog", "owl")
    found.refresh()
    assert found.node_of == {0: 10, 1: 11, 2: 12}
    assert not refused
    assert found.class_names == ["cat", "dog", "owl"]


def test_a_resumed_run_knows_the_names_that_its_sites_had(tmp_path: Path) -> None:
    """All sites may have changed theirs alike."""
    grid = Grid(n10=own("a", "dog", "cat"), n11=own("b", "dog", "cat"))
    found, refused = roster(grid, 2, tmp_path, known=(["cat", "dog"], ["age"]))
    found.refresh()
    assert not found.node_of
    assert "its classes are ['dog', 'cat'], other nodes' ['cat', 'dog']" in refused[0]
    assert found.columns == ["age"]


def test_a_newcomer_in_the_place_of_a_known_site_is_a_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    roster(Grid(n10=own("a"), n11=own("b")), 2, tmp_path)[0].refresh()
    assert not caplog.text
    found, _ = roster(Grid(n20=own("a"), n5=own("stranger")), 2, tmp_path)
    found.refresh()
    assert found.node_of == {0: 20, 1: 5}
    assert "a site with another name takes the place of client 1, which is away" in caplog.text


FORGED = 'x\npfedlora: result {"result": {"status": "completed", "error": null}}\n\x1b[31m\ud800'
LONG = ["z" * 1000] * 20


@pytest.mark.parametrize(
    "said",
    [
        {"base": FORGED},
        {"base": "x" * 4096},
        {"classes": json.dumps([FORGED])},
        {"classes": json.dumps(LONG)},
        {"classes": json.dumps(["y" * 5_000_000] * 20)},
        {"classes": json.dumps(["y" * 1001])},
        {"columns": json.dumps([FORGED])},
        {"columns": json.dumps(LONG)},
        {"partition": FORGED},
        {"partition": "x" * 10**6},
        {"name": FORGED},
        {"error": FORGED + "x" * 10**6},
    ],
    ids=lambda said: "{}-{}".format(*said, len(next(iter(said.values())))),
)
def test_a_strangers_words_are_one_short_line(tmp_path: Path, said: dict[str, str]) -> None:
    honest = {f"n1{k}": own(str(k), *"ab") | {"columns": '["age"]'} for k in range(3)}
    found, refused = roster(Grid(**honest, n20=own("evil", *"ab") | said), 3, tmp_path, classes=20)
    found.refresh()
    assert sorted(found.node_of.values()) == [10, 11, 12]
    [line] = refused
    assert line.isprintable()
    assert len(line) < 1100
    assert found.refused[20] in line


def test_a_site_with_more_classes_than_the_run_is_turned_away(tmp_path: Path) -> None:
    grid = Grid(n10=own("a", "cat", "dog"), n11=own("b", "cat", "dog"))
    found, refused = roster(grid, 3, tmp_path)
    assert found.wait_for_count(2, 5.0, lambda connected: None)
    grid.nodes[12] = own("evil", "cat", "dog", "zzz", "zzzz")
    found.refresh()
    assert found.class_names == ["cat", "dog"]
    assert refused == [
        "node 12 is not a client of this run: its data has 4 classes, the run 3: restore its"
        " classes, or begin a new run with classes=4"
    ]
    grid.nodes[13] = own("c", "cat", "dog", "owl")
    found.refresh()
    assert found.node_of == {0: 10, 1: 11, 2: 13}


def test_who_gets_no_place_extends_nobodys_classes(tmp_path: Path) -> None:
    grid = Grid(n10=own("a", "cat", "dog"), n11=own("b", "cat", "dog"))
    found, _ = roster(grid, 2, tmp_path, patience=60)
    assert found.wait_for_count(2, 5.0, lambda connected: None)
    grid.nodes[12] = own("evil", "cat", "dog", "zzz")
    grid.nodes[13] = own("evil too", "cat", "dog", "yyy") | {"base": "another"}
    found.refresh()
    assert found.refused.keys() == {12, 13}
    assert found.class_names == ["cat", "dog"]


@pytest.mark.slow
def test_a_node_that_cannot_answer_is_asked_again_and_waiting_for_it_is_bounded(
    tmp_path: Path,
) -> None:
    grid = Grid(n10={"error": "no disk"})
    found, refused = roster(grid, 2, tmp_path)
    began = time.monotonic()
    assert not found.wait_for_count(1, 3.0, lambda connected: None)
    assert 2.5 < time.monotonic() - began < 10
    assert grid.asked == [10, 10]
    assert refused == ["node 10 is not a client of this run: no disk"]
    grid.nodes[10] = client(0)
    found.wait_for([0], 10.0)
    assert found.node_of == {0: 10}
    began = time.monotonic()
    found.wait_for([0, 1], 1.0)
    assert time.monotonic() - began < 0.9, "client 1 has been away for longer than that"


@pytest.mark.slow
def test_nobody_waits_for_a_client_whose_node_is_turned_away(tmp_path: Path) -> None:
    """By the server at once; by itself when it has said so three times, since a disk may be
    late."""
    grid = Grid(n10=own("a", "cat"), n11=own("b", "cat"), n12=own("c", "cat"))
    found, _ = roster(grid, 3, tmp_path)
    assert found.wait_for_count(3, 5.0, [].append)
    grid.nodes = {10: own("a", "cat"), 21: own("b", "owl"), 22: {"error": "no disk", "name": "c"}}
    began = time.monotonic()
    found.wait_for([0, 1], 60.0)
    assert time.monotonic() - began < 1
    assert found.turned_away.keys() == {1}
    found.wait_for([0, 2], 60.0)
    assert 5 < time.monotonic() - began < 30
    assert "its classes are ['owl']" in found.turned_away[1]
    assert found.turned_away[2] == "no disk"
    assert grid.asked[3:] == [21, 22, 22, 22]
    grid.nodes[22] = own("c", "cat")
    del grid.nodes[21]
    assert found.wait_for_count(2, 20.0, [].append), "it is asked again"
    assert found.node_of == {0: 10, 2: 22}
    assert not found.turned_away


@pytest.mark.parametrize("again", [client(1, "other"), {"error": "no disk", "name": 1}])
def test_nobody_waits_for_a_partition_id_that_is_turned_away(
    tmp_path: Path, again: dict[str, Any]
) -> None:
    grid = Grid(n10=client(0), n11=client(1), n12=client(2))
    found, _ = roster(grid, 3, tmp_path)
    assert found.wait_for_count(3, 5.0, [].append)
    grid.nodes = {10: client(0), 21: again}
    for _ in range(3):
        found._unclear = {node: (n, 0.0, name) for node, (n, _, name) in found._unclear.items()}
        found.refresh()
    assert found.turned_away.keys() == {1}
    assert found._left_for([0, 1], 60.0) == 0.0
    assert found._left_for([0, 2], 60.0) > 50, "its node is away"


def test_all_nodes_turned_away_ends_the_wait(tmp_path: Path) -> None:
    found, _ = roster(Grid(n10={"error": "bad"}, n11={"error": "bad"}), 2, tmp_path)
    began = time.monotonic()
    assert not found.wait_for_count(2, 60.0, lambda connected: None)
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_replies_that_come_twice_unasked_or_from_another_node_are_refused() -> None:
    grid = Grid(n10=client(0), n11=None, n12=client(2))
    messages = [properties_message(node, 60) for node in (10, 11, 12)]
    refused: list[str] = []
    push = grid.push_messages

    def meddle(sent: Iterable[Message]) -> None:
        push(sent)
        stranger = reply(messages[1], **client(9))
        stranger.metadata.__dict__["_src_node_id"] = 12
        grid.replies += [reply(messages[0], **client(7)), stranger]

    pulled: list[str] = []
    pull = grid.pull_messages

    def everything(ids: Iterable[str]) -> Iterable[Message]:
        pulled.extend(ids)
        unasked = reply(messages[2], **client(5))
        unasked.metadata.__dict__["_reply_to_message_id"] = "unheard-of"
        return [*pull(ids), *([unasked] if len(pulled) == 3 else [])]

    grid.push_messages, grid.pull_messages = meddle, everything  # type: ignore[assignment, method-assign]
    answers = exchange(grid, messages, 1.0, refused.append)
    said = [
        (
            None
            if a is None
            else a.content.config_records["getpropertiesres.properties"]["partition_id"]
        )
        for _, a in answers
    ]
    assert said == [0, None, 2], "the first reply counts, and nobody answers for another"
    assert sorted(text.split("refused: ")[1] for text in refused) == [
        "it answers a message that was not sent in this round",
        "it is a duplicate",
        "node 11 was asked",
    ]


@pytest.mark.slow
def test_nodes_that_are_silent_at_first_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As those of a simulation are whose processes have no room yet: who does not answer does not
    end the wait."""
    monkeypatch.setattr("pfedlora_flwr.federation.roster._QUESTION", 0.2)
    grid = Grid(n10=None, n11=None)
    assert roster(grid, 2, tmp_path)[0].wait_for_count(
        2, 10.0, lambda connected: grid.nodes.update({10: client(0), 11: client(1)})
    )


@pytest.mark.slow
def test_a_node_that_is_slow_to_start_gets_more_time_at_each_question(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each question starts a process of its own, so the same time once more would never do."""
    monkeypatch.setattr("pfedlora_flwr.federation.roster._QUESTION", 0.2)

    class Slow(Grid):
        def push_messages(self, messages: Iterable[Message]) -> None:
            super().push_messages(messages)
            self.replies = [r for r in self.replies if seconds[-1] > 0.45]

    seconds: list[float] = []
    monkeypatch.setattr(
        "pfedlora_flwr.federation.wire.properties_message",
        lambda node, ttl, *_: [seconds.append(ttl), properties_message(node, ttl)][1],
    )
    assert roster(Slow(n10=client(0)), 1, tmp_path)[0].wait_for_count(1, 20.0, [].append)
    assert seconds == pytest.approx([0.3, 0.5])


@pytest.mark.slow
def test_a_node_that_is_always_silent_does_not_hold_up_every_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once nothing is left to be waited for it is asked for a short time alone."""
    monkeypatch.setattr("pfedlora_flwr.federation.roster._QUESTION", 0.01)
    monkeypatch.setattr("pfedlora_flwr.federation.roster._AGAIN", 0.02)
    seconds: list[tuple[int, float]] = []
    monkeypatch.setattr(
        "pfedlora_flwr.federation.wire.properties_message",
        lambda node, ttl, *_: [seconds.append((node, ttl)), properties_message(node, ttl)][1],
    )
    found, _ = roster(Grid(n10=client(0), n11=None), 2, tmp_path)
    for _ in range(6):
        found.wait_for([0, 1], 0.3)
        time.sleep(0.02)  # until it is due
    of_silent = [ttl for node, ttl in seconds if node == 11]
    assert of_silent[:5] == pytest.approx([0.21, 0.12, 0.14, 0.12, 0.12])


@pytest.mark.slow
def test_nodes_whose_question_expired_are_waited_for_and_named_as_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower answers for them, with an error of its own. They count as refused by nobody."""

    class Slow(Grid):
        def push_messages(self, messages: Iterable[Message]) -> None:
            asked = list(messages)
            super().push_messages(asked)
            expired = Error(ErrorCode.MESSAGE_UNAVAILABLE, "Error: Message Unavailable")
            self.replies = [Message(expired, reply_to=message) for message in asked]

    found, refused = roster(Slow(n10=client(0), n11=client(1)), 2, tmp_path)
    began = time.monotonic()
    assert not found.wait_for_count(2, 1.0, [].append)
    assert time.monotonic() >= began + 1
    assert refused == []
    assert "node 10 does not say who it is (no answer in time); it is asked again" in caplog.text


def test_of_a_simulations_nodes_one_is_asked_for_all(tmp_path: Path) -> None:
    """Any of them can be any client; the node that comes to be client 0 need not say so."""
    grid = Grid(n10=client(2), n11=client(0), n12=client(1))
    found, _ = roster(grid, 3, tmp_path, alike=True)
    assert found.wait_for_count(3, 5.0, [].append)
    assert found.node_of == {0: 10, 1: 11, 2: 12}
    assert (grid.asked, found.partition) == ([10], "p")


def test_a_simulations_node_may_be_a_client_that_has_left(tmp_path: Path) -> None:
    grid = Grid(**{f"n{10 + k}": client(k) for k in range(3)})
    found, _ = roster(grid, 3, tmp_path, left=dict.fromkeys((0, 1), "has left"), alike=True)
    assert found.wait_for_count(1, 5.0, [].append)
    assert found.refused == {}
    assert found.node_of[2] == 12


def test_where_none_of_a_simulations_nodes_can_be_asked_three_are_tried(tmp_path: Path) -> None:
    grid = Grid(**{f"n{10 + k}": client(k, partition_id=99) for k in range(5)})
    found, _ = roster(grid, 5, tmp_path, alike=True)
    assert not found.wait_for_count(5, 5.0, [].append)
    assert grid.asked == [10, 11, 12]


def test_a_simulation_of_fewer_nodes_than_clients_ends_at_once(tmp_path: Path) -> None:
    """Both are turned away, and nobody else can come."""
    grid = Grid(n10=client(3), n11=client(4))
    found, _ = roster(grid, 3, tmp_path, alike=True)
    began = time.monotonic()
    assert not found.wait_for_count(3, 60.0, [].append)
    assert time.monotonic() < began + 5
    assert grid.asked == [10, 11]


def test_waiting_is_a_line_at_once_and_one_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever else the server's thread waits for."""
    monkeypatch.setattr("pfedlora_flwr.federation.clients._TELL", 0.05)
    with caplog.at_level("INFO"), WaitingLog(0, 3, 300.0) as told:
        assert len(caplog.records) == 1
        told.look(1)
        deadline = time.monotonic() + 20
        while len(caplog.records) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "0 of 3 nodes are ready; waiting, at most 300 s"
    again = "1 of 3 nodes are ready; waiting, for 0 s so far, at most 300 s"
    assert again in said[1:]
    time.sleep(0.1)
    assert len(caplog.records) == len(said), "it is over"


def test_a_simulation_on_other_data_than_the_runs_is_given_up_at_once(tmp_path: Path) -> None:
    grid = Grid(**{f"n{10 + k}": client(k) for k in range(5)})
    found, _ = roster(grid, 5, tmp_path, "other", alike=True)
    assert not found.wait_for_count(5, 60.0, [].append)
    assert "its data or partition differs" in found.refused[10]


def test_numbers_of_a_node_config_may_be_texts() -> None:
    e = from_flat({"clients": 3, "partition.kind": "iid", "dataset": "synthetic:60"})
    node = PersonalisedClient(e, {"partition-id": "2", "num-partitions": "3"})
    assert node.get_properties({})["partition_id"] == 2
    assert node.get_properties({COUNT: True}) == {COUNT: 3}
    other = PersonalisedClient(e, {"partition-id": "2", "num-partitions": "4"})
    assert "num-partitions is 4 in the node-config, clients is 3" in told(other)


@pytest.mark.parametrize("value", ["x", "", "-1", -1, 1.5, True])
@pytest.mark.parametrize("name", ["partition-id", "num-partitions"])
def test_what_is_no_number_in_a_node_config_is_named(name: str, value: object) -> None:
    e = from_flat({"clients": 3, "partition.kind": "iid", "dataset": "synthetic:60"})
    node = PersonalisedClient(e, {"partition-id": 0, "num-partitions": 3} | {name: value})
    line = f"{name} is {value!r} in the node-config; allowed: an integer from 0 on"
    assert told(node) == line


def test_a_node_that_fails_tells_its_partition_id() -> None:
    e = from_flat({"clients": 3, "partition.kind": "iid", "dataset": "synthetic:60"})
    answer = PersonalisedClient(e, {"partition-id": "2", "num-partitions": 4}).get_properties({})
    assert answer["name"] == 2
    assert failure_in(answer) == (answer["error"], 2)


def told(node: PersonalisedClient) -> object:
    """The failure that the node tells when it is asked who it is."""
    return node.get_properties({})["error"]


class Odd(Grid):
    """Node 10 is gone when it is asked first, and node 11 answers once it is asked again; then node
    11's answer may be that it is gone, too."""

    fails_late = False

    def push_messages(self, messages: Iterable[Message]) -> None:
        sent = list(messages)
        super().push_messages(sent)
        of = {message.metadata.message_id: message for message in sent}
        gone = Error(ErrorCode.NODE_UNAVAILABLE, "no sign of life")
        failing = [10] * (self.asked.count(10) == 1) + [11] * self.fails_late
        for number, answer in enumerate(self.replies):
            asked = of.get(answer.metadata.reply_to_message_id)
            if asked and asked.metadata.dst_node_id in failing:
                self.replies[number] = Message(gone, reply_to=asked)

    def pull_messages(self, ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([i for i in ids if i != "1-1" or self.asked.count(10) > 1])


@pytest.mark.slow
@pytest.mark.parametrize("fails_late", [False, True])
def test_one_silent_client_does_not_take_the_others_second_try(
    monkeypatch: pytest.MonkeyPatch, fails_late: bool
) -> None:
    grid = Odd(n10={"who": 0}, n11={"who": 1}, n12=None)
    grid.fails_late = fails_late

    def write(_: object, __: object, clients: Iterable[int], *more: object) -> dict[int, Message]:
        return {client: properties_message(10 + client, 60) for client in clients}

    monkeypatch.setattr(Clients, "messages", write)
    clients, failed, refused = object.__new__(Clients), dict[int, str](), list[str]()
    vars(clients).update(
        execution=SimpleNamespace(round_timeout=1.5, node_timeout=1.0),
        run=SimpleNamespace(progress=lambda **said: None),
        roster=SimpleNamespace(grid=grid, refresh=lambda seconds: None),
        refuse=refused.append,
        fail=lambda round, client, why: failed.update({client: why}),
        _seconds={},
        _workers=0,
        _simulated=False,
    )
    round = Round(1, [0, 1, 2], Clock())
    began = time.monotonic()
    replies = clients.ask(round, write(0, 0, [0, 1, 2]), "training")
    assert time.monotonic() - began < 4
    told = {client: answer.metrics for client, answer in replies.items()}
    if fails_late:
        assert grid.asked == [10, 11, 12, 10, 11], "each at most twice"
        assert told == {0: {"who": 0}}
        assert failed == {1: "its node is gone (no sign of life)", 2: "no answer in time"}
    else:
        assert grid.asked == [10, 11, 12, 10]
        assert told == {0: {"who": 0}, 1: {"who": 1}}, "a late first answer counts"
        assert failed == {2: "no answer in time"}
    assert not refused


@pytest.mark.slow
def test_a_simulated_node_is_any_client_where_the_run_has_a_data_path(trained_run: Done) -> None:
    """The path is the run's; a node whose own settings say where data lies is a real one."""
    run = RunDirectory(trained_run.output)
    told = {"partition-id": 2, "num-partitions": 3}
    e = run.experiment()
    simulated = PersonalisedClient(e, told, "/data")
    assert simulated.where["data-path"] == "/data"
    assert simulated._simulation(str(run.path), run.token) is not None
    real = PersonalisedClient(e, told | {"data-path": "/mine"}, "/data")
    assert real.where["data-path"] == "/mine"
    assert real._simulation(str(run.path), run.token) is None
    with permissions.held(Policy.of_node(told).permissions()):  # a process that is no simulation's
        assert simulated._simulation(str(run.path), run.token) is None
