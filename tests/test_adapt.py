"""Clients that come after the training: held out in a run, and adapted from its shared state
alone, to the same bits."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pfedlora_flwr
from pfedlora_flwr.commands.results import adapted_lines
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data import datasets
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation import visit as visits
from pfedlora_flwr.federation.adapt import adapt as adapted_to
from pfedlora_flwr.federation.adapt import alone
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.federation.messages import Instruction, adapted_from_metrics, written
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods.lora_residual import LEFT, RIGHT
from pfedlora_flwr.methods.method import Refused
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.ops import adapt as adapting
from pfedlora_flwr.ops.card import card
from pfedlora_flwr.ops.export import metadata
from pfedlora_flwr.runs import shared_state
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.shared_state import SharedState
from pfedlora_flwr.runs.store import ClientStore, read_tensors, write_tensors
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import Call, Done, keys_in, made_once, run_locally
from tests.models.bases import base
from tests.plain import ANY_MODEL, Plain, make, runs
from tests.wrong_inputs import table

KEYS = keys_in(
    "clients=10 clients-held-out=2 rounds=2 models=cnn5,cnn4 batch-size=16 "
    "partition.samples-per-client=24 held-out.rounds=2 held-out.samples=4,all device=cpu"
)
"""A run of eight of ten digits clients."""
FEW = KEYS | keys_in(
    "clients=3 clients-held-out=1 rounds=1 models=cnn5 partition.kind=iid held-out.rounds=1"
    " held-out.samples=4 evaluate-initial=false"
)
"""One of two."""


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "held_out.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run and, beside it, its exported shared state."""

    def make(folder: Path) -> None:
        done = run_locally(folder / "run", KEYS)
        assert done.code == 0, done.stderr
        pfedlora_flwr.load(folder / "run").export_shared(folder / "shared.safetensors")

    return made_once(tmp_path_factory, "federation", make)


def test_held_out_clients_are_never_sampled_and_are_adapted_at_the_end(federation: Path) -> None:
    run = Done(0, "", "", federation / "run")
    assert all(row["sampled"] == [*range(8)] for row in run.rows("rounds.jsonl")[1:])
    assert {row["client"] for row in run.rows("clients.jsonl")} == {*range(8)}
    assert [*run.result["per_client"]] == [str(k) for k in range(8)]
    rows = lines(federation / "run")
    assert [(r["client"], r["asked"], r["samples"]) for r in rows] == [
        (8, "4", 4),
        (8, "all", 24),
        (9, "4", 4),
        (9, "all", 24),
    ]
    assert all(r["round"] == 2 and r["visits"] == 2 for r in rows)
    # at least as many operations alone, and not a visit more than that takes
    assert all(
        r["flops"] <= r["alone_flops"] < r["flops"] + r["alone_flops"] / r["alone_visits"]
        for r in rows
    )
    means = {m["asked"]: m for m in run.result["held_out"]["means"]}
    assert run.result["held_out"]["clients"] == [8, 9]
    of_all = [r for r in rows if r["asked"] == "all"]
    assert means["all"]["accuracy"] == pytest.approx(sum(r["accuracy"] for r in of_all) / 2)
    assert means["4"]["samples"] == 4


def test_the_partition_is_that_of_a_run_without_held_out_clients(federation: Path) -> None:
    whole = Plain(KEYS | {"clients-held-out": 0})
    held = Plain(KEYS)
    for k in (0, 7, 8, 9):
        one, other = (plain.data(k).train.inputs for plain in (whole, held))
        assert one.equal(other)


@pytest.mark.slow
@pytest.mark.parametrize(("client", "samples"), [(8, None), (9, None), (8, 4), (9, 4)])
def test_the_exported_state_alone_gives_the_bits_of_the_run(
    federation: Path, pfedlora: Call, client: int, samples: int | None
) -> None:
    shutil.copy(federation / "shared.safetensors", "given.safetensors")  # an empty folder
    words = ("--samples", str(samples)) if samples else ()
    code, out, err = pfedlora(
        "adapt", "given.safetensors", "--client", str(client), *words, "--output", "mine", "--json"
    )
    assert code == 0, err
    asked = "all" if samples is None else str(samples)
    [wanted] = [
        r for r in lines(federation / "run") if (r["client"], r["asked"]) == (client, asked)
    ]
    assert json.loads(out) == wanted == json.loads(Path("mine/adapted.json").read_text())
    code, out, _ = pfedlora("evaluate", "mine", "--client", str(client), "--json")
    assert json.loads(out)["accuracy"] == pytest.approx(wanted["accuracy"])


@pytest.mark.slow
def test_the_run_itself_gives_the_same_and_python_too(federation: Path, tmp_path: Path) -> None:
    run = pfedlora_flwr.load(federation / "run")
    newcomer = pfedlora_flwr.adapt(run, tmp_path / "new", client=9)
    assert newcomer.result == lines(federation / "run")[3]
    images = np.zeros((2, 32, 32, 3), np.uint8)
    assert newcomer.predict(images).shape == (2, 10)
    loaded = pfedlora_flwr.load(tmp_path / "new")
    assert isinstance(loaded, pfedlora_flwr.Newcomer)
    assert (loaded.result, loaded.path) == (newcomer.result, newcomer.path)
    assert np.array_equal(loaded.predict(images), newcomer.predict(images))
    assert loaded.evaluate()["accuracy"] == newcomer.result["accuracy"]
    assert loaded.class_names() == [str(digit) for digit in range(10)]
    assert loaded.export(tmp_path / "client.safetensors").exists()
    with pytest.raises(UserError, match=r"models mlp9 is not what .* adapted with: cnn"):
        pfedlora_flwr.load(tmp_path / "new", models="mlp9")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "adapted.json").write_text('{"client": 9}')
    with pytest.raises(UserError, match=r"adapted.json cannot be read as adapt writes it"):
        pfedlora_flwr.load(tmp_path / "old")
    with pytest.raises(UserError, match="not empty"):
        pfedlora_flwr.adapt(federation / "run", tmp_path / "new", client=9)
    (tmp_path / "new" / "mine.txt").touch()
    with pytest.raises(UserError, match="is not what adapt wrote, so it is not overwritten"):
        pfedlora_flwr.adapt(federation / "run", tmp_path / "new", client=9, overwrite=True)
    (tmp_path / "new" / "mine.txt").unlink()
    again = pfedlora_flwr.adapt(
        federation / "run", tmp_path / "new", client=9, rounds=1, overwrite=True
    )
    assert again.result["visits"] == 1


def test_the_card_of_an_adapted_model_names_its_run(federation: Path, tmp_path: Path) -> None:
    run, new = RunDirectory(federation / "run"), tmp_path / "new"
    shared = federation / "shared.safetensors"
    pfedlora_flwr.adapt(shared, new, client=8, samples=4, rounds=1)
    trained = load_trained(new, 8)
    text = card(trained, "safetensors", "model", 0.0)
    told = "adapted in 1 visit to the shared state of round 2 of 2, seed 0, 8 clients"
    assert f"| trained | {told} |" in text
    assert ", rounds=2, partition" in text
    assert f"fingerprint `{run.experiment().fingerprint()}`" in text
    assert metadata(trained, "safetensors")["round"] == "2"


def test_factors_of_single_clients_side_by_side_are_not_exported(
    federation: Path, tmp_path: Path
) -> None:
    shared = shared_state.read(federation / "shared.safetensors")
    stacked = {f"layer{LEFT}": torch.zeros(3, 2), f"layer{RIGHT}": torch.zeros(2, 3)}
    downloads = dict.fromkeys(shared.downloads, stacked)
    with pytest.raises(UserError, match="a file would hold single clients'; adapt from the run"):
        replace(shared, downloads=downloads).write(tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_damaged_file_is_refused_in_a_line(federation: Path, tmp_path: Path) -> None:
    whole = (federation / "shared.safetensors").read_bytes()
    tensors, metadata = read_tensors(federation / "shared.safetensors")
    about = json.loads(metadata["about"])
    (tmp_path / "short").write_bytes(whole[:-100])
    (tmp_path / "bits").write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    told = {"what": metadata["what"], "about": json.dumps(about | {"kind": "songs"})}
    write_tensors(tmp_path / "kind", tensors, **told)
    write_tensors(tmp_path / "bare", tensors, what=metadata["what"], about="{}")
    for name, said in {
        "short": "is neither a run nor a file",
        "bits": "checksum",
        "kind": "is damaged, or of another version",
        "bare": "is damaged, or of another version",
    }.items():
        with pytest.raises(UserError, match=said) as raised:
            shared_state.read(tmp_path / name)
        assert "\n" not in str(raised.value)


def test_a_run_tells_where_its_data_is(federation: Path, tmp_path: Path) -> None:
    shutil.copytree(federation / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    text = config.read_text()
    assert "data-path: ''" in text
    config.write_text(text.replace("data-path: ''", f"data-path: {tmp_path / 'data'}"))
    pfedlora_flwr.adapt(tmp_path / "run", tmp_path / "new", client=8, samples=4, rounds=1)
    about = json.loads((tmp_path / "new" / "8" / "about.json").read_text())
    assert about["site"] == {"data-path": str(tmp_path / "data")}


def test_each_visit_starts_from_the_same_state(federation: Path) -> None:
    """By hand: two visits by the plain federation's method, with what the file holds."""
    shared = shared_state.read(federation / "shared.safetensors")
    plain = Plain({**KEYS, "rounds": 2})
    model = plain.method.initial_model(8)
    [received] = [*{id(one): one for one in shared.downloads.values()}.values()]
    for number in (1, 2):
        visits.visit(plain.method, model, received, plain.data(8).train, 8, number)
    assert tensors_sha256(kept(model)) == lines(federation / "run")[1]["model_sha256"]


def test_the_exported_state_holds_no_tensor_of_a_client(federation: Path) -> None:
    shared = shared_state.read(federation / "shared.safetensors")
    run = RunDirectory(federation / "run")
    own = [t for k in range(8) for t in run.client_store(k).read(2).values()]
    sent = [t for one in shared.downloads.values() for t in one.values()]
    assert sent
    assert not any(a.shape == b.shape and a.equal(b) for a in sent for b in own)
    state = run.checkpoints.load()
    assert state is not None
    assert all(a.equal(b) for a, b in zip(sent, state.tensors.values(), strict=False))


@pytest.mark.slow
def test_a_mean_of_one_clients_update_is_not_exported(tmp_path: Path) -> None:
    assert run_locally(tmp_path / "run", FEW | {"participation": 0.5}).code == 0
    [client] = RunDirectory(tmp_path / "run").rounds()[-1]["admitted"]
    with pytest.raises(UserError, match=f"merged client {client}'s alone, and a file would hold"):
        shared_state.of_run(RunDirectory(tmp_path / "run")).write(tmp_path / "s.safetensors")
    assert not (tmp_path / "s.safetensors").exists()


def saved(shared: SharedState, file: Path) -> Path:
    shared.write(file)
    return file


def digits(folder: Path, classes: int = 10) -> str:
    """A file of sixty digits, of the first classes, by the federation's names."""
    found = datasets.load("digits")
    some = np.flatnonzero(np.asarray(found.labels) < classes)[:60]
    names = np.array(found.class_names[:classes])
    file = folder / f"{classes}.npz"
    np.savez(file, images=found.inputs[some], labels=found.labels[some], class_names=names)
    return f"npz:{file}"


@pytest.mark.slow
def test_who_joined_and_left_in_later_rounds_than_the_visits_does_not_matter(
    federation: Path, tmp_path: Path
) -> None:
    """And the adapted model has all classes' names, of which the site knows two."""
    shared = shared_state.read(federation / "shared.safetensors")
    was = {"held_out.clients": 0, "clients": 8, "rounds": 80, "held_out.samples": "all"}
    e = shared.experiment.replace(**was, **{"members.joined": "50:3", "members.left": "11:0"})
    file = saved(replace(shared, experiment=e), tmp_path / "s.safetensors")
    options = {"dataset": digits(tmp_path, 2), "rounds": 1}
    pfedlora_flwr.adapt(file, tmp_path / "new", samples=4, **options)
    about = json.loads((tmp_path / "new" / "8" / "about.json").read_text())
    assert about["class_names"] == [str(digit) for digit in range(10)]
    assert about["experiment"].get("clients-left", "") == ""


@pytest.mark.slow
def test_own_data_that_has_changed_is_not_evaluated(federation: Path, tmp_path: Path) -> None:
    """The parts are drawn from all of it: what it was trained on would be in the test part."""
    file = Path(digits(tmp_path).removeprefix("npz:"))
    new = pfedlora_flwr.adapt(
        federation / "shared.safetensors", tmp_path / "new", dataset=f"npz:{file}", rounds=1
    )
    assert new.evaluate()["accuracy"] == new.result["accuracy"]
    with np.load(file) as loaded:
        held = dict(loaded)
    np.savez(file, **held | {name: held[name][::-1] for name in ("images", "labels")})
    told = r"10.npz is not what client \d+ was trained on; restore it, or give DATA"
    with pytest.raises(UserError, match=told):
        new.evaluate()
    [stored] = (tmp_path / "new").glob("*/round-*.safetensors")
    tensors, metadata = read_tensors(stored)
    kept = {name: metadata[name] for name in ("round", "counts", "base") if name in metadata}
    write_tensors(stored, tensors, **kept)  # as an older version left it
    assert new.evaluate()["samples"] == new.result["test"]


def test_beside_a_method_that_counts_no_operations_stand_as_many_visits() -> None:
    plain = Plain({**KEYS, "models": "cnn5"})
    data = plain.data(8)
    received = plain.method.download(plain.state, 8, 1)
    adapted = adapted_to(plain.method, received, data, 8, 1)
    uncounted = replace(adapted, visits=3, flops=0)
    assert alone(plain.method, data, 8, uncounted).visits == 3
    assert alone(plain.method, data, 8, replace(uncounted, flops=1)).visits == 1


def test_what_diverges_is_no_result(federation: Path, tmp_path: Path) -> None:
    shared = shared_state.read(federation / "shared.safetensors")
    plain = Plain({**KEYS, "lr": 1e18})
    [received] = [*{id(one): one for one in shared.downloads.values()}.values()]
    with pytest.raises(UserError, match=r"client 8 by pfedlora diverged in visit \d of its adapt"):
        adapted_to(plain.method, received, plain.data(8), 8, 2)
    wrong = {k: {n: t * torch.nan for n, t in one.items()} for k, one in shared.downloads.items()}
    file = saved(replace(shared, downloads=wrong), tmp_path / "s.safetensors")
    with pytest.raises(UserError, match="has values that are not finite in"):
        pfedlora_flwr.adapt(file, tmp_path / "new", client=8, samples=4, rounds=1)


def test_a_state_that_its_own_method_cannot_take_is_a_line(
    federation: Path, tmp_path: Path
) -> None:
    shared = shared_state.read(federation / "shared.safetensors")
    e = from_flat(shared.experiment.flat() | {"method": "fedproto"})
    file = saved(replace(shared, experiment=e), tmp_path / "s.safetensors")
    with pytest.raises(UserError, match="holds a shared state that method fedproto cannot take"):
        pfedlora_flwr.adapt(file, tmp_path / "new", client=8, samples=4, rounds=1)


@pytest.mark.slow
def test_what_is_there_stays_until_all_is_written(
    federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adapt(**more: Any) -> Any:
        given = {"client": 8, "samples": 4, "rounds": 1} | more
        return pfedlora_flwr.adapt(federation / "shared.safetensors", tmp_path / "new", **given)

    for wrong, told in (
        ({"samples": 0}, "samples is 0; allowed: None, or an integer ≥ 2"),
        ({"samples": "all"}, "samples is 'all'"),
        ({"client": -1}, "client is -1; allowed: None, or an integer ≥ 0"),
    ):
        with pytest.raises(UserError, match=told):
            adapt(**wrong)
    adapt()
    before = (tmp_path / "new" / "adapted.json").read_bytes()
    with monkeypatch.context() as patch:
        full = OSError(28, "No space left on device")
        patch.setattr(ClientStore, "save", lambda *_, **__: (_ for _ in ()).throw(full))
        with pytest.raises(UserError, match=r"new cannot be written \(No space left on device\)"):
            adapt(overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new" / "adapted.json").read_bytes() == before
    adapt(overwrite=True, rounds=2)
    assert (tmp_path / "new" / "adapted.json").read_bytes() != before


@pytest.mark.slow
def test_a_folder_that_is_there_is_filled_and_not_replaced(
    federation: Path, tmp_path: Path
) -> None:
    """It may be a volume, a link, or where the shell stands."""
    folder, link = tmp_path / "volume", tmp_path / "it's"
    folder.mkdir()
    link.symlink_to(folder)
    was = folder.stat().st_ino
    shared = federation / "shared.safetensors"
    for count, overwrite in ((1, False), (2, True)):
        new = pfedlora_flwr.adapt(
            shared, link, client=8, samples=4, rounds=count, overwrite=overwrite
        )
        assert (folder.stat().st_ino, {path.name for path in folder.iterdir()}) == (
            was,
            {"8", "adapted.json"},
        )
        assert json.loads((folder / "adapted.json").read_text())["visits"] == count
    command = adapted_lines(new.result, link)[-1].partition("use the model: ")[2]
    assert shlex.split(command) == ["pfedlora", "predict", str(link), "--client", "8", "PATH"]
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="broken is no folder; give a folder as output"):
        adapting.adapt(shared, tmp_path / "broken", client=8, samples=4, options={})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fd", "fedproto"])
def test_a_server_that_remembers_reports_exports_their_means_alone(
    method: str, tmp_path: Path
) -> None:
    keys = {"method": method, "audit.uploads": True}
    assert run_locally(tmp_path / "run", FEW | keys).code == 0
    run = RunDirectory(tmp_path / "run")
    shared_state.of_run(run).write(tmp_path / "shared.safetensors")
    [sent] = shared_state.read(tmp_path / "shared.safetensors").downloads.values()
    assert sent.keys() == {"classes", "means"}  # of which client, the server alone remembers
    uploads = [run.uploads.read(1, k).tensors["means"] for k in (0, 1)]
    assert not (sent["means"][:, None] == torch.cat(uploads)[None]).all(-1).any()


def test_one_at_its_default_changes_no_experiment() -> None:
    plain, named = Plain(), Plain({"clients-held-out": 0, "held-out.rounds": 10})
    assert plain.experiment.fingerprint() == named.experiment.fingerprint()
    assert plain.experiment.changed() == {}
    assert plain.experiment.sampled == plain.experiment.trained_clients == 10


@pytest.mark.slow
def test_standalone_is_itself_beside_itself_and_has_nothing_to_export(
    tmp_path: Path, pfedlora: Call
) -> None:
    keys = {"method": "standalone", "held-out.samples": "12"}
    assert run_locally(tmp_path / "run", FEW | keys).code == 0
    [row] = lines(tmp_path / "run")
    assert (row["accuracy"], row["visits"], row["flops"]) == (
        row["alone_accuracy"],
        row["alone_visits"],
        row["alone_flops"],
    )
    for words in (
        ("export", "run", "--shared"),
        ("adapt", "run", "--client", "2", "--output", "x"),
    ):
        code, _, err = pfedlora(*words)
        assert code == 2
        assert "method standalone shares nothing with a client that comes later" in err


@pytest.mark.slow
def test_an_adaptation_below_min_success_is_asked_for_again_and_never_recorded(
    federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(federation / "run", tmp_path / "run")
    wanted = lines(tmp_path / "run")
    for name in ("held_out.jsonl", "result.json"):
        (tmp_path / "run" / name).unlink()
    asked, does = [], PersonalisedClient._adapt

    def fails(self: PersonalisedClient, told: Instruction, parameters: Any) -> Any:
        asked.append(told.client)
        if told.client == 9 and asked.count(9) < 5:  # within a round a client is asked twice
            raise UserError("it is away")
        return does(self, told, parameters)

    monkeypatch.setattr(PersonalisedClient, "_adapt", fails)
    run = pfedlora_flwr.load(tmp_path / "run")
    with pytest.raises(UserError, match=r"1 of 2 clients succeeded, min-success=1 wants 2"):
        run.resume(progress=False)
    assert not (tmp_path / "run" / "held_out.jsonl").exists()
    run.resume(progress=False, max_failed_rounds=2)
    assert asked == [8, 9, 9] * 2 + [8, 9]
    assert lines(tmp_path / "run") == wanted
    assert len(run.result["held_out"]["means"]) == 2


def test_a_client_of_the_training_is_not_adapted(federation: Path) -> None:
    """Its answer would say how many samples it has."""
    e = RunDirectory(federation / "run").experiment()
    client = PersonalisedClient(e, {"partition-id": 3, "num-partitions": 10})
    told = Instruction(2, 3, 0, "t", "", evaluate=True, names=[], adapt=True)
    metrics = client.evaluate([], written(told))[2]
    assert "the server asks to adapt client 3, which is not held out here" in str(metrics)


def test_a_late_visit_removes_no_later_version(tmp_path: Path) -> None:
    store, tensors = ClientStore(tmp_path), {"w": torch.zeros(1)}
    for version, admitted in ((3, 2), (4, 3), (6, 4), (5, 4)):
        store.save(version, tensors, admitted)
    assert store.versions() == [3, 4, 5, 6]
    store.save(7, tensors, 6)
    assert store.versions() == [5, 6, 7]


WRONG = table(
    lambda given, told: (given, told),
    """
{file} --client 3 → client 3 was in the run; allowed: 8, 9, which were held out, or a client with
    data of its own, by dataset=…
{file} → no client is given; allowed: 8, 9, which were held out
{file} --client 12 → client 12 has no data; allowed: 8, 9
{run}/clients/0/round-000002.safetensors --client 8 → holds no shared state; `pfedlora export RUN
    --shared --output FILE` writes one
{run}/config.yaml --client 8 → config.yaml is neither a run nor a file of `pfedlora export RUN
    --shared`
nothing --client 8 → nothing is neither a run nor a file
{run}/logs --client 8 → logs holds no run
{file} --client 8 -o lr=1 → lr is as in the run; allowed with adapt: dataset, data-path, models,
    rounds, device
{file} -o dattaset=x → unknown key 'dattaset'; did you mean 'dataset'?
{file} -o dataset=npz:three.npz → dataset 'npz:three.npz' has the classes a, b, c, and the shared
    state 0, 1, 2, 3
{file} -o dataset=npz:many.npz → has 12 classes, the run 10: restore its classes, or begin
{file} -o dataset=npz:vectors.npz → the Experiment says images of 3x32x32
{file} -o dataset=npz:few.npz → and a client needs 10
{file} --client 8 -o dataset=npz:ten.npz → client 8 is held out and has its part of the run's data
{file} --client 8 -o models=cnn1 → models is for a client with data of its own
{file} --client 8 -o data.label-column=x → data.label-column is for a client with data of its own;
    give dataset=…, too, or leave it out
{file} -o dataset=npz:ten.npz -o data.label-column=x → data.label-column is not used: dataset
    'npz:ten.npz' does not take it; leave it out
{file} -o dataset=npz:ten.npz -o models=cnn1,cnn2 → models is 'cnn1,cnn2'; allowed with adapt: one
    model
{file} -o dataset=npz:ten.npz -o models=cnn9 → cnn9
{file} -o dataset=npz:ten.npz -o models=mlp1 → mlp1
""",
)


@pytest.mark.parametrize(("words", "told"), WRONG, ids=[given for given, _ in WRONG])
def test_what_cannot_be_adapted_is_refused_in_a_line(
    federation: Path, pfedlora: Call, words: str, told: str
) -> None:
    images = np.zeros((40, 32, 32, 3), np.uint8)
    ten = np.arange(40) % 10
    np.savez("ten.npz", images=images, labels=ten)
    np.savez("many.npz", images=images, labels=np.arange(40) % 12)
    np.savez("few.npz", images=images[:5], labels=ten[:5])
    np.savez("vectors.npz", inputs=np.zeros((40, 7), np.float32), labels=ten)
    np.savez("three.npz", images=images, labels=ten % 3, class_names=np.array(["a", "b", "c"]))
    filled = words.format(run=federation / "run", file=federation / "shared.safetensors")
    code, _, err = pfedlora("adapt", *filled.split(), "--output", "new")
    assert code == 2
    assert told in err
    assert err.count("\n") == 1
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"clients-held-out": 10}, "clients-held-out is 10; allowed: at most 9"),
        ({"clients-held-out": 2, "sharing": "none"}, "allowed with it: mean, start"),
        ({"clients-held-out": 2, "secagg.enabled": True}, "secagg.enabled, too"),
        ({"held-out.samples": "1"}, "'1' is none"),
        ({"held-out.samples": "5,5"}, "each number once"),
    ],
)
def test_keys_that_do_not_fit_are_refused_in_a_line(keys: dict[str, object], told: str) -> None:
    with pytest.raises(UserError) as raised:
        Plain(keys)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_site_with_its_own_data_and_model_has_the_federations_normalisation(
    federation: Path, pfedlora: Call
) -> None:
    draws = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = (draws.integers(0, 60, (60, 20, 20, 3)) + 60 * labels[:, None, None, None]).astype(
        "u1"
    )
    np.savez("mine.npz", images=images, labels=labels)
    shared = str(federation / "shared.safetensors")
    words = ("-o", "dataset=npz:mine.npz", "-o", "models=cnn3", "-o", "rounds=3")
    code, out, err = pfedlora("adapt", shared, *words, "--output", "mine")
    assert code == 0, err
    assert "client 11: cnn3, 24 training samples, the shared state of round 2" in out
    assert "after 3 visits" in out
    about = json.loads(Path("mine/11/about.json").read_text())
    of_run = json.loads((federation / "run/clients/0/about.json").read_text())
    assert (about["mean"], about["std"]) == (of_run["mean"], of_run["std"])
    code, out, err = pfedlora("evaluate", "mine", "--client", "11", "--json")
    assert code == 0, err
    wanted = json.loads(Path("mine/adapted.json").read_text())["accuracy"]
    assert json.loads(out)["accuracy"] == pytest.approx(wanted)


HONEST: dict[str, Any] = {
    "round": 3,
    "client": 8,
    "model": "cnn5",
    "asked": "all",
    "samples": 20,
    "test": 3,
    "accuracy": 0.5,
    "validation_accuracy": 0.5,
    "balanced_accuracy": 0.5,
    "macro_f1": 0.5,
    "visits": 10,
    "flops": 5,
    "model_sha256": "0" * 64,
    "alone_accuracy": 0.5,
    "alone_validation_accuracy": 0.5,
    "alone_visits": 12,
    "alone_flops": 6,
}


def test_what_a_client_tells_of_its_adaptation_is_checked() -> None:
    def read(*rows: object) -> list[Any]:
        return adapted_from_metrics({"held_out": json.dumps(rows)}, 3, 8, ["all"])

    assert read(HONEST) == [HONEST]
    lies: list[dict[str, Any]] = [{name: None} for name in HONEST]
    lies += [{"accuracy": 2}, {"client": 9}, {"asked": "5"}, {"flops": -1}, {"model_sha256": "x"}]
    for lie in lies:
        with pytest.raises(Refused):
            read(HONEST | lie)
    for rows in ((), (HONEST, HONEST), (1,)):
        with pytest.raises(Refused):
            read(*rows)
    with pytest.raises(Refused):
        adapted_from_metrics({}, 3, 8, ["all"])


def test_sites_with_data_of_their_own_leave_no_normalisation_to_a_newcomer(
    federation: Path, pfedlora: Call
) -> None:
    """A server has no client's files, and what its sites told of their data."""
    run = Path("server")
    shutil.copytree(federation / "run", run, ignore=shutil.ignore_patterns("clients"))
    (run / "server" / "partition").write_text("own")
    names = [f"kind {i}" for i in range(10)]
    told = {"own": [*range(10)], "classes": names, "columns": []}
    (run / "server" / "sites.json").write_text(json.dumps(told))
    assert pfedlora("export", "server", "--shared")[0] == 0
    shared = shared_state.read(Path("shared.safetensors"))
    assert (shared.class_names, shared.constants) == (tuple(names), None)
    labels = np.arange(40) % 2
    images = np.random.default_rng(1).integers(0, 100, (40, 32, 32, 3)).astype("u1")
    words = ("adapt", "shared.safetensors", "-o", "rounds=1", "--output", "new", "-o")
    np.savez("mine.npz", images=images, labels=labels)
    assert (
        "has the classes 0, 1, and the shared state kind 0, kind 1"
        in (pfedlora(*words, "dataset=npz:mine.npz")[2])
    )
    np.savez("named.npz", images=images, labels=labels, class_names=np.array(names[:2]))
    code, _, err = pfedlora(*words, "dataset=npz:named.npz")
    assert code == 0, err
    about = json.loads(Path("new/10/about.json").read_text())
    assert about["mean"] == pytest.approx([images.mean() / 255] * 3, abs=0.02)


@pytest.mark.slow
def test_the_control_start_adapts_to_the_first_state(tmp_path: Path) -> None:
    keys = FEW | {"sharing": "start"}
    assert run_locally(tmp_path / "run", keys).code == 0
    [sent] = shared_state.of_run(RunDirectory(tmp_path / "run")).downloads.values()
    assert tensors_sha256(sent) == tensors_sha256(Plain(keys).state)
    with pytest.raises(UserError, match=r"client 2 of .* is held out and was never trained; adapt"):
        pfedlora_flwr.load(tmp_path / "run").export(2)


@pytest.mark.slow
def test_a_state_per_client_is_no_shared_state(tmp_path: Path) -> None:
    keys = FEW | {"clients": 2, "clients-held-out": 0, "sharing": "none"}
    assert run_locally(tmp_path / "run", keys).code == 0
    with pytest.raises(UserError, match="sharing=none: every client had a state of its own"):
        pfedlora_flwr.adapt(tmp_path / "run", tmp_path / "new", client=5)


@pytest.mark.slow
def test_ranks_have_downloads_of_their_own_and_other_models_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    pytest.importorskip("peft")
    keys: dict[str, Any] = {
        "method": "flexlora",
        "models": base(tmp_path, "test_vit"),
        "train": "lora",
    }
    keys |= {"clients": 4, "clients-held-out": 2, "lora.rank": "2,4", "held-out.samples": "8"}
    assert run_locally(tmp_path / "run", FEW | keys).code == 0
    file = pfedlora_flwr.load(tmp_path / "run").export_shared(tmp_path / "shared.safetensors")
    for k, row in zip((2, 3), lines(tmp_path / "run"), strict=True):
        assert pfedlora_flwr.adapt(file, tmp_path / f"new-{k}", client=k, samples=8).result == row
    first, second = shared_state.read(file).downloads.values()
    assert next(len(t) for n, t in first.items() if ".lora_A." in n) == 2
    assert next(len(t) for n, t in second.items() if ".lora_A." in n) == 4
    images, labels = np.zeros((40, 32, 32, 3), np.uint8), np.arange(40) % 10
    with pytest.raises(UserError, match=r"train or lora\.rank has several values"):
        pfedlora_flwr.adapt(file, tmp_path / "x", models="cnn5", dataset=(images, labels))


KINDS = ("pfedlora", "fedkd", "fedproto", "fedgh", "fedrep", "apfl", "fedncm")
"""A method of each kind; `make methods-test` has the others."""


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.slow if name in KINDS else pytest.mark.methods)
        for name in ANY_MODEL
    ],
)
def test_every_method_adapts_a_client_and_leaves_what_it_received(method: str) -> None:
    setting = "heterogeneous" if runs(method, "heterogeneous") else "homogeneous"
    keys = {**KEYS, "models": "auto", "setting": setting, "method": method}
    plain = Plain({**keys, "clients": 5, "clients-held-out": 1, "partition.kind": "iid"})
    plain.train(1)
    received = shared_state.download(plain.method, plain.state, 4, 1)
    before = tensors_sha256(received)
    found = adapted_to(plain.method, received, plain.data(4), 4, 2)
    assert tensors_sha256(received) == before
    assert found.flops > 0
    assert found.counts.test == len(plain.data(4).test)
    names = {name for upload in plain.uploads.values() for name in upload.tensors}
    for name in names & received.keys():
        for upload in plain.uploads.values():
            own, sent = upload.tensors[name], received[name]
            same = own.shape == sent.shape and own.numel() and own.equal(sent)
            assert own.dtype == torch.int64 or not same
    again = adapted_to(make(plain.experiment), received, plain.data(4), 4, 2)
    assert tensors_sha256(again.tensors()) == tensors_sha256(found.tensors())


@pytest.mark.slow
def test_adapting_after_every_round_leaves_the_last_rounds_lines_as_they_are(
    federation: Path, tmp_path: Path
) -> None:
    """Through Flower, too: tests/models/test_text.py."""
    assert run_locally(tmp_path / "run", {**KEYS, "held-out.every": 1}).code == 0
    rows = lines(tmp_path / "run")
    assert [r["round"] for r in rows] == [1] * 4 + [2] * 4
    assert rows[4:] == lines(federation / "run")
