"""A site joins a federation of sites with data of their own, or leaves it; where every client's
part would change, none can join. Real server and client code, with the local engine's grid in the
place of SuperNodes."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from flwr.app import Error, Message
from rich.console import Console

from pfedlora_flwr import client_app, config
from pfedlora_flwr.commands.start_run import start
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.local import LocalData, Site, forget
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.membership import record
from pfedlora_flwr.features.membership.rules import joined_after, left_after
from pfedlora_flwr.features.membership.without import Without
from pfedlora_flwr.federation.clients import RunFailed
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.runs.begin import find, resumed
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import Call, key_words, keys_in, named_keys, result_of, run_locally
from tests.plain import Plain
from tests.served import run_over

KEYS = keys_in(  # 2 of 3 clients, then 2 of 4
    "rounds=2 participation=0.7 batch-size=16 dataset=digits evaluate-initial=false"
    " models=tests.methods.narrow:Narrow"
)


@pytest.fixture
def sites(tmp_path: Path) -> list[dict[str, Any]]:
    """The node-configs of four sites with 60 digits each, and a state-path of its own."""
    shared, found = datasets.load("digits"), []
    for site in range(4):
        part = slice(60 * site, 60 * (site + 1))
        np.savez(
            tmp_path / f"own{site}.npz", images=shared.inputs[part], labels=shared.labels[part]
        )
        place = f"npz:{tmp_path}/own{site}.npz"
        found.append({"dataset": place, "state-path": str(tmp_path / f"state{site}")})
    return found


def serve(output: Path, nodes: list[dict[str, Any]], **keys: object) -> dict[str, Any]:
    """A run on these nodes, as a submitted one; its result."""
    given = KEYS | {"clients": len(nodes), "output": str(output), **named_keys(keys)}
    flat = dict(config.run_config(given).flat())
    run_over(LocalGrid(client_app.app, nodes, flat), flat)
    return result_of(output)


class OwnData(Plain):
    """The plain federation, on the sites' data."""

    def __init__(self, places: dict[int, str], **keys: object) -> None:
        super().__init__(KEYS, **keys)
        self.places = places

    def data(self, client: int) -> LocalData:
        where = {"dataset": self.places[client]}
        return Site.find(self.experiment, client, where).load(torch.device("cpu"))


def places(output: Path, nodes: list[dict[str, Any]]) -> dict[int, str]:
    """Where the data of each client is."""
    numbers = json.loads((output / "server" / "numbers.json").read_text())
    names = [(Path(node["state-path"]) / "name").read_text() for node in nodes]
    return {numbers[name]: node["dataset"] for name, node in zip(names, nodes, strict=True)}


def said(run: Path, new: Path, client: int, *, dry_run: bool = True) -> list[str]:
    """The lines of `pfedlora run RUN --resume --without K --dry-run`."""
    out, options = Console(file=io.StringIO(), width=300), ["resume=true", f"output={new}"]
    assert start(str(run), options, out, out, dry_run=dry_run, without=str(client)) == 0
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_site_joins_and_what_lies_before_stays(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    run = RunDirectory(tmp_path / "run")
    first = serve(run.path, sites[:3])
    assert "joined" not in first
    before, visits = run.rounds(), list(run.visits())
    with pytest.raises(UserError, match="round 2 was the run's last: give more rounds, too"):
        serve(run.path, sites, resume=True)
    result = serve(run.path, sites, resume=True, rounds=6)
    assert result["joined"] == {"3": 2}
    assert result["clients"] == 4
    assert run.rounds()[:2] == before
    assert list(run.visits())[: len(visits)] == visits
    drawn = [row["sampled"] for row in run.rounds()]
    assert not any(3 in clients for clients in drawn[:2])
    assert any(3 in clients for clients in drawn[2:])
    serve(tmp_path / "whole", sites, rounds=6, clients_joined="2:3")
    for path in (run.path, tmp_path / "whole"):
        assert [*RunDirectory(path).checkpoints.pinned()] == [2], "kept for good"
    plain = OwnData(places(run.path, sites), clients=4, rounds=6, clients_joined="2:3")
    plain.train(6)
    assert result["shared_sha256"] == tensors_sha256(plain.state)
    state = run.checkpoints.load()
    assert state is not None
    assert state.models == {k: tensors_sha256(tensors_of(m)) for k, m in plain.models.items()}
    saved = yaml.safe_load(run.config.read_text())
    assert (saved["clients"], saved["clients-joined"]) == (4, "2:3")
    history = [(h["clients"], h["rounds"], h["after-round"]) for h in saved["about"]["history"]]
    assert history == [(3, 2, 0), (4, 6, 2)]

    shutil.copytree(run.path, tmp_path / "again")
    result = serve(tmp_path / "again", sites, resume=True, rounds=7)  # its keys are the user's
    assert result["joined"] == {"3": 2}
    with pytest.raises(UserError, match="a resumed run keeps its clients"):
        serve(run.path, sites[:3], resume=True, rounds=8)


@pytest.mark.slow
def test_a_run_is_trained_anew_without_a_site_from_the_state_that_it_joined(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    run, keys = RunDirectory(tmp_path / "run"), {"participation": 1.0}
    new = RunDirectory(tmp_path / "new")
    serve(run.path, sites[:3], **keys)
    serve(run.path, sites, resume=True, rounds=6, **keys)
    numbers, there = places(run.path, sites), sites[:3]
    with pytest.raises(UserError, match=r"without is 4; allowed: .* 0 to 3"):
        Without.of(run, 4, new).check()

    config = run.config.read_text()
    run.config.write_text(config.replace("sharing: mean", "sharing: none"))
    with pytest.raises(UserError, match=r"with sharing=none .* clients-left=3 lets it leave"):
        Without.of(run, 3, new).check()
    run.config.write_text(config)

    anew = Without.of(run, 3, new)
    assert anew.words()[0].startswith(
        "client 3 first took part in round 3; the state after round 2"
    )
    assert anew.words()[1].startswith("rounds to repeat: 4 with 16 visits, which took")
    assert said(run.path, tmp_path / "new", 3) == [
        *anew.words(),
        f"it would run in {tmp_path / 'new'}; nothing was started",
    ]
    with pytest.raises(UserError, match=r"no-run holds no run; .* on the SuperLink's host"):
        said(tmp_path / "no-run", tmp_path / "new", 3)
    with pytest.raises(UserError, match="without=3 needs superlink"):
        said(run.path, tmp_path / "new", 3, dry_run=False)
    assert not (tmp_path / "new").exists()
    assert not anew.is_begun
    anew.claim()
    assert said(run.path, new.path, 3)[0] == f"{new.path} holds this run, and goes on after round 2"
    submitted, _ = resumed(new, {}, {"resume": True, "output": str(new.path)}, "")
    assert str(submitted.experiment.members.left) == "2:3"
    assert submitted.experiment.fingerprint() == new.experiment().fingerprint()
    keys |= {"resume": True, "clients": 4, "rounds": 6}
    result = serve(new.path, there, **keys)
    assert new.rounds()[:2] == run.rounds()[:2]
    assert list(new.visits())[:6] == list(run.visits())[:6]
    assert result["left"] == {"3": 2}
    assert result["begun_from"] == [{"run": str(run.path), "without": 3, "round": 2}]
    assert result["lost"] == 0
    plain = OwnData(numbers, clients=3, rounds=6, participation=1.0)
    plain.train(6)
    assert result["shared_sha256"] == tensors_sha256(plain.state)

    # of that run in turn, from the start, since no state before round 1 is kept
    last = RunDirectory(tmp_path / "last")
    first = Without.of(new, 1, last)
    assert "the run begins at the start" in first.words()[0]
    assert first.words()[1].startswith("rounds to repeat: 6 with 18 visits")
    first.claim()
    remaining = [node for node in there if node["dataset"] != numbers[1]]
    result = serve(last.path, remaining, **keys)
    assert result["left"] == {"1": 0, "3": 0}
    plain = OwnData(numbers, clients=4, rounds=6, clients_left="1,3", participation=1.0)
    plain.train(6)
    assert result["shared_sha256"] == tensors_sha256(plain.state)
    with pytest.raises(UserError, match="exists; choose another"):
        first.claim()
    assert first.is_begun
    assert not Without.of(run, 3, last).is_begun


@pytest.mark.slow
def test_a_site_leaves_and_counts_in_nothing_from_then_on(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    run, keys = RunDirectory(tmp_path / "run"), {"evaluate_every": 2, "participation": 0.8}
    serve(run.path, sites, **keys)
    numbers, before, visits = places(run.path, sites), run.rounds(), list(run.visits())
    [leaver] = {0, 1, 2, 3} - set(before[1]["sampled"])  # trained in round 1 alone, and is stale
    [away] = [node for node in sites if node["dataset"] == numbers[leaver]]
    there = [node for node in sites if node is not away]
    again = {"resume": True, "clients": 4, "rounds": 5, **keys}
    with pytest.raises(UserError, match="round 2 was the run's last: give more rounds, too"):
        serve(run.path, there, **again | {"rounds": 2, "clients_left": leaver})
    with pytest.raises(UserError, match=f"after round 2: clients-left={leaver} lets client"):
        serve(run.path, there, **again | {"clients_left": f"1:{leaver}"})
    result = serve(run.path, there, **again | {"clients_left": leaver})
    assert result["left"] == {str(leaver): 2}
    assert str(run.experiment().members.left) == f"2:{leaver}"
    assert run.rounds()[:2] == before
    assert list(run.visits())[: len(visits)] == visits
    assert all(row["sampled"] == row["admitted"] for row in run.rounds())
    assert [len(row["sampled"]) for row in run.rounds()] == [3, 3, 2, 2, 2]
    assert result["per_client"].keys() == {str(k) for k in numbers if k != leaver}
    plain = OwnData(numbers, clients=4, rounds=5, clients_left=f"2:{leaver}", **keys)
    plain.train(5)
    assert result["shared_sha256"] == tensors_sha256(plain.state)
    assert result["accuracy"]["best_validation_round"] in (4, 5)

    # its node comes back, and a new site does not get its number
    told = "only 2 of 3 clients connected.*client . has left"
    with pytest.raises(RunFailed, match=told):
        serve(run.path, [away, *there[:2]], **again | {"rounds": 6, "node_timeout": 3})
    assert str(run.experiment().members.left) == f"2:{leaver}"


@pytest.mark.slow
def test_a_site_that_lost_its_disk_begins_anew_and_a_moved_one_goes_on(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    run, keys = RunDirectory(tmp_path / "run"), {"participation": 1.0}
    serve(run.path, sites[:2], **keys)
    numbers = places(run.path, sites[:2])
    shutil.copytree(run.path, tmp_path / "lost")
    moved = sites[1] | {"state-path": str(tmp_path / "new-disk")}
    shutil.move(sites[1]["state-path"], moved["state-path"])
    result = serve(run.path, [sites[0], moved], resume=True, rounds=4, **keys)
    assert result["lost"] == 0
    plain = OwnData(numbers, clients=2, rounds=4, **keys)
    plain.train(4)
    assert result["shared_sha256"] == tensors_sha256(plain.state)

    # a new name takes the number of a client that is away for half of node-timeout
    empty = tmp_path / "empty-disk"
    [client] = [k for k, place in numbers.items() if place == sites[1]["dataset"]]
    result = serve(
        tmp_path / "lost",
        [sites[0], sites[1] | {"state-path": str(empty)}],
        resume=True,
        rounds=4,
        node_timeout=6,
        **keys,
    )
    assert result["lost"] == 1
    visits = RunDirectory(tmp_path / "lost").visits()
    assert [(v["round"], v["client"]) for v in visits if v["status"] == "ok" and v["lost"]] == [
        (3, client)
    ]


@pytest.mark.slow
def test_two_joins_after_one_round_are_one(tmp_path: Path, sites: list[dict[str, Any]]) -> None:
    run = RunDirectory(tmp_path / "run")
    serve(run.path, sites[:2])
    with pytest.raises(RunFailed, match="only 2 of 3 clients connected"):
        serve(run.path, sites[:2], resume=True, clients=3, rounds=3, node_timeout=2)
    assert serve(run.path, sites, resume=True, rounds=3)["joined"] == {"2": 2, "3": 2}
    assert str(run.experiment().members.joined) == "2:2"


@pytest.mark.slow
def test_a_site_whose_data_has_changed_is_refused(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    """One more sample draws the parts anew: test samples would have been trained on."""
    run, keys = RunDirectory(tmp_path / "run"), {"participation": 1.0, "min_success": 0.5}
    serve(run.path, sites[:2], **keys)
    numbers = {place: client for client, place in places(run.path, sites[:2]).items()}
    with np.load(tmp_path / "own1.npz") as held:
        grown = {name: np.concatenate([held[name], held[name][:1]]) for name in held}
    shutil.copy(tmp_path / "own1.npz", tmp_path / "kept.npz")
    np.savez(tmp_path / "own1.npz", **grown)
    forget()
    MODELS._held.clear()
    result = serve(run.path, sites[:2], resume=True, rounds=3, **keys)
    assert result["status"] == "completed"
    failed = [row for row in run.visits() if row["status"] == "failed"]
    assert [row["client"] for row in failed] == [numbers[sites[1]["dataset"]]]
    assert "its data is not what its model of round 2 was trained on" in failed[0]["reason"]
    shutil.copy(tmp_path / "kept.npz", tmp_path / "own1.npz")
    forget()
    serve(run.path, sites[:2], resume=True, rounds=4, **keys)
    assert [row["round"] for row in run.visits() if row["status"] == "failed"] == [3]


@pytest.mark.slow
def test_a_lost_model_is_not_evaluated_as_if_it_were_there(
    tmp_path: Path, sites: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Losing(LocalGrid):
        """The first node that is asked to evaluate has lost its models."""

        lost = 0

        def _answer(self, message: Message) -> Message:
            if message.metadata.message_type == "evaluate" and not self.lost:
                self.lost = message.metadata.dst_node_id
                node = self._contexts[self.lost].node_config
                for file in Path(str(node["state-path"])).rglob("*.safetensors"):
                    file.unlink()
                MODELS._held.clear()
            return super()._answer(message)

    monkeypatch.setattr("tests.test_joining.LocalGrid", Losing)
    keys = {"participation": 0.5, "evaluate_every": 3, "rounds": 3}
    with pytest.raises(RunFailed, match=r"client .: its model of round . is missing or damaged"):
        serve(tmp_path / "run", sites[:3], **keys)
    result = serve(tmp_path / "lower", sites[:3], min_success=0.3, **keys)
    run = RunDirectory(tmp_path / "lower")
    trained = {client for row in run.rounds() for client in row["sampled"]}
    assert len(result["per_client"]) == len(trained) - 1


@pytest.mark.slow
def test_a_second_try_does_not_wait_for_a_dead_node_until_the_round_is_over(
    tmp_path: Path, sites: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(LocalGrid):
        """Its first node dies in training, and its second fails once."""

        failed: ClassVar[list[int]] = []

        def get_node_ids(self) -> list[int]:
            return [*super().get_node_ids()][len(self.failed) > 0 :]

        def _answer(self, message: Message) -> Message:
            node = [*super().get_node_ids()].index(message.metadata.dst_node_id)
            if message.metadata.message_type == "train" and node < 2 and node not in self.failed:
                self.failed.append(node)
                return Message(Error(0, "gone"), reply_to=message)
            return super()._answer(message)

    monkeypatch.setattr("tests.test_joining.LocalGrid", Dying)
    keys = {"participation": 1.0, "min_success": 0.6, "round_timeout": 30, "node_timeout": 60}
    result = serve(tmp_path / "run", sites[:3], rounds=1, **keys)
    assert result["status"] == "completed"
    (row,) = RunDirectory(tmp_path / "run").rounds()
    assert len(row["admitted"]) == 2


@pytest.mark.slow
def test_no_client_joins_where_every_part_would_change(tmp_path: Path) -> None:
    run, keys = RunDirectory(tmp_path / "run"), KEYS | {"clients": 4, "partition.kind": "iid"}
    keys |= {"dataset": "synthetic:60"}
    assert run_locally(tmp_path / "run", keys).code == 0
    told = (
        "clients is 5, and the run in '.*' has 4: of a shared dataset each client's part would"
        " change; only sites with data of their own can join, and a new run has clients-held-out"
    )
    with pytest.raises(UserError, match=told):
        run_locally(tmp_path / "run", keys | {"resume": True, "clients": 5})
    told = "share one dataset, of which every client's part would change.*clients-held-out"
    with pytest.raises(UserError, match=told):
        Without.of(run, 1, RunDirectory(tmp_path / "new")).check()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2", "allowed: R:N, or several"),
        ("2:5", "rising N below clients, which is 5"),
        ("2:3,2:4", "rising R below rounds"),
        ("20:3", "rising R below rounds, which is 20"),
    ],
)
def test_a_record_of_joins_must_rise(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        config.run_config({"clients": 5, "clients-joined": text, "partition.kind": "iid"})


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"clients-left": "one"}, "clients-left is 'one'; allowed: R:K or K, numbers; with resume"),
        ({"clients-left": "2:", "min-clients": 2}, "clients-left is '2:'; allowed: R:K or K"),
        ({"clients-left": ","}, "clients-left is ','; allowed: R:K or K, or several"),
        ({"clients-left": " "}, "clients-left is ' '; allowed: R:K or K, or several"),
        ({"clients-left": "2:3,4:3"}, "each of the clients 0 to 4 once, and not all"),
        ({"clients-left": "2:5"}, "each of the clients 0 to 4 once, and not all"),
        ({"clients-left": "20:3"}, "R below rounds, which is 20; 20 is not"),
        ({"clients-left": "0,1", "clients-joined": "4:2"}, "no client would be left in round 1"),
        ({"clients-left": "3", "clients-held-out": 1}, "with clients-held-out no client can leave"),
        (
            {"clients-left": "3", "min-clients": 5},
            "which is 5, of which 1 leave or have left",
        ),
    ],
)
def test_a_record_of_leaves_names_clients_and_rounds(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        config.run_config({"clients": 5, "partition.kind": "iid", **keys})


@pytest.mark.parametrize(
    ("keys", "before", "leaves", "told"),
    [
        ({"clients": 4, "min-clients": 3}, "0:1", "3", "min-clients is 3; allowed: auto, or at mo"),
        ({"clients": 4, "min-clients": 4}, "0:1", "", "min-clients is 4; allowed: auto, or at mos"),
        ({"clients": 2}, "0:1", "0", "each of the clients 0 to 1 once, and not all of them"),
    ],
)
def test_a_leave_counts_with_those_before_it(
    tmp_path: Path, keys: dict[str, Any], before: str, leaves: str, told: str
) -> None:
    run, keys = RunDirectory(tmp_path), {"partition.kind": "iid", **keys}
    run.write_config(config.run_config({**keys, "min-clients": "auto", "clients-left": before}))
    again = {**keys, "resume": True, "clients-left": leaves}
    with pytest.raises(UserError, match=told):
        record.resumed(run, config.run_config(again))
    assert str(run.experiment().members.left) == before


def test_a_run_that_waits_for_more_clients_than_stay_goes_on_with_fewer(tmp_path: Path) -> None:
    """A version before this one could save that."""
    run, keys = RunDirectory(tmp_path), {"clients": 4, "partition.kind": "iid"}
    run.write_config(config.run_config({**keys, "clients-left": "0:1,0:3"}).executed(min_clients=3))
    assert run.run_config().execution.min_clients == 3
    with pytest.raises(
        UserError, match=r"min-clients is 3; allowed: .* of which 2 leave or have left"
    ):
        resumed(run, {}, {"resume": True}, "")
    going_on, _ = resumed(run, {}, {"resume": True, "min-clients": 2}, "")
    find(run, going_on).claim()
    run.close()
    assert run.run_config().execution.min_clients == 2
    assert str(run.experiment().members.left) == "0:1,0:3"


def test_leaves_say_who_takes_part_in_a_round() -> None:
    keys = {"clients": 6, "clients-joined": "2:4", "clients-left": "1,3:2", "participation": 0.5}
    e = config.run_config(keys | {"partition.kind": "iid"}).experiment
    assert [[*e.clients_in(round)] for round in (0, 1, 3, 4)] == [
        [0, 2, 3],
        [0, 2, 3],
        [0, 2, 3, 4, 5],
        [0, 3, 4, 5],
    ]
    assert [e.sampled_in(round) for round in (1, 3, 4)] == [1, 2, 2]
    assert e.sampled == 2
    assert left_after(e, 3) == {"1": 0, "2": 3}
    assert left_after(e, 2) == {"1": 0}


def test_joins_say_who_takes_part_in_a_round() -> None:
    e = config.run_config(
        {"clients": 10, "clients-joined": "2:3,5:6", "participation": 0.5, "rounds": 9}
    ).experiment
    assert [len(e.clients_in(round)) for round in range(8)] == [3, 3, 3, 6, 6, 6, 10, 10]
    assert [e.sampled_in(round) for round in (1, 3, 6)] == [1, 3, 5]
    assert not config.run_config({}).experiment.members.joined
    assert joined_after(e) == {"3": 2, "4": 2, "5": 2} | {str(k): 5 for k in range(6, 10)}


@pytest.mark.slow
def test_a_leave_that_cannot_be_is_refused_before_anything_is_touched(pfedlora: Call) -> None:
    begun = ["-o", "output=run", "--engine", "local"]
    keys = {**KEYS, "clients": 3, "partition.kind": "iid", "participation": 1.0, "rounds": 1}
    assert pfedlora("run", *begun, *key_words(keys))[0] == 0
    before = Path("run/result.json").read_bytes()
    for more, told in (
        (["clients-left=0"], "clients-left is '0', and round 1 was the run's last: give more"),
        (["clients-left=1:0", "rounds=3"], ""),
        (["clients-left=2:1", "rounds=3"], "is after round 1: clients-left=1 lets client 1 leave"),
    ):
        given = [word for one in more for word in ("-o", one)]
        for dry in (["--dry-run"], []) if told else (["--dry-run"],):
            code, _, err = pfedlora("run", *begun, "--resume", *given, *dry)
            assert (code, told in err) == (2 if told else 0, True), err
            assert Path("run/result.json").read_bytes() == before
