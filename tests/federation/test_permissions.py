"""What a run may name on a node and on the server. The apps are called as Flower calls them there:
by a message and a node-config, or with a grid that is none of a simulation's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from pfedlora_flwr import client_app, server_app
from pfedlora_flwr.config.reading import all_keys
from pfedlora_flwr.errors import UserError, permissions
from pfedlora_flwr.errors.permissions import VARIABLE, NotAllowed, Permissions, held
from pfedlora_flwr.federation import wire
from pfedlora_flwr.methods.registry import NAMES
from pfedlora_flwr.models.registry import load_object
from tests.conftest import keys_in

BASE = keys_in(
    "clients=3 rounds=1 device=cpu dataset=synthetic:60 partition.kind=iid node-timeout=1.0"
)
PART = {"partition-id": 0}
TRAP = "trap_of_a_run"


class Touched(list[str]):
    """What was imported, opened or looked up of all that a run must not name here."""

    watching = False


TOUCHED = Touched()


def _heed(event: str, arguments: tuple[Any, ...]) -> None:
    if not TOUCHED.watching:
        return
    if (
        (event in ("open", "os.listdir", "os.scandir") and "/secret" in str(arguments[0]))
        or (event == "import" and arguments[0] == TRAP)
        or event in ("os.system", "socket.connect", "socket.getaddrinfo")
    ):
        TOUCHED.append(f"{event} {arguments[0]}")


sys.addaudithook(_heed)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module, data and weights of this machine; all that is done to them is in
    TOUCHED. Nothing of it is cached."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"{TRAP}.py").write_text(
        f"open({str(tmp_path / 'made')!r}, 'w')\ngo = print\n"
    )
    rows = "\n".join(f"{i % 7},{i % 5},{i % 2}" for i in range(90))
    for table in (secret / "own.csv", tmp_path / "mine.csv"):
        table.write_text(f"a,b,label\n{rows}\n")
    np.savez(secret / "own.npz", inputs=np.ones((60, 3)), labels=np.arange(60) % 2)
    for name in ("x.parquet", "x.safetensors", "config.json", "adapter_config.json"):
        (secret / name).touch()
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    TOUCHED.clear()
    yield tmp_path
    TOUCHED.watching = False
    sys.modules.pop(TRAP, None)


def node(keys: dict[str, Any], node_config: dict[str, Any]) -> str:
    """A node's answer to the question who it is: its error, empty where it takes part."""
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    context = Context(1, 1, node_config, RecordDict(), BASE | keys)
    TOUCHED.watching = True
    try:
        reply = client_app.app(wire.properties_message(1, 60.0), context)
    except UserError as error:
        return str(error)
    finally:
        TOUCHED.watching = False
    if reply.has_error():
        return reply.error.reason or ""
    return str(wire.recorddict_to_getpropertiesres(reply.content).properties.get("error", ""))


def server(keys: dict[str, Any], _: object = None) -> str:
    """What the server's run fails of."""
    told: list[Any] = []
    context = SimpleNamespace(run_config=BASE | keys)
    TOUCHED.watching = True
    try:
        with suppress(Exception):
            server_app.serve(
                cast(Grid, SimpleNamespace()),
                cast(Context, context),
                lambda directory, result: told.append(result["error"]),
            )
    finally:
        TOUCHED.watching = False
    return str(told[0])


OWN = {"dataset": "csv:{}/mine.csv"}
NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "a dataset's function": ({"dataset": f"{TRAP}:go"}, "allow-code='trap_of_a_run'"),
    "the shell": ({"dataset": "os:system", "data-path": "id > {}/made"}, "allow-code='os'"),
    "Python's eval": ({"dataset": "builtins:eval", "data-path": "1"}, "allow-code='builtins'"),
    "a class set beside it": (
        {"dataset": f"{TRAP}:go", "classes": 2, "input-shape": "2"},
        "allow-code='trap_of_a_run'",
    ),
    "a method": ({"method": f"{TRAP}:go"}, "allow-code='trap_of_a_run'"),
    "a method with options": (
        {"method": f"{TRAP}:go", "method-options": f"x={TRAP}:go"},
        "allow-code='trap_of_a_run'",
    ),
    "one of two models": ({"models": f"{TRAP}:go,cnn5"}, "allow-code='trap_of_a_run'"),
    "a model of which the head is trained": (
        {"models": f"{TRAP}:go", "train": "head"},
        "allow-code='trap_of_a_run'",
    ),
    "a submodule": ({"dataset": "os.path:join"}, "allow-code='os.path'"),
    "a table": ({"dataset": "csv:{}/secret/own.csv"}, "data-root"),
    "a way up": ({"dataset": "csv:{}/below/../secret/own.csv"}, "data-root"),
    "an npz": ({"dataset": "npz:{}/secret/own.npz"}, "data-root"),
    "a parquet": ({"dataset": "parquet:{}/secret/x.parquet"}, "data-root"),
    "a folder": ({"dataset": "folder:{}/secret"}, "data-root"),
    "a folder of Hugging Face": ({"dataset": "hf:{}/secret"}, "data-root"),
    "the files of CIFAR-10": ({"dataset": "cifar10", "data-path": "{}/secret"}, "data-root"),
    "a relative path": ({"dataset": "csv:secret/own.csv"}, "data-root"),
    "a store elsewhere": ({"dataset": "parquet:s3://secret/x.parquet"}, "data-root"),
    "the hub": ({"dataset": "hf:somebody/data"}, "allow-downloads=true"),
    "a basis": (
        {"method": "pfedlora_plus", "adapter.basis": "{}/secret/x.safetensors"},
        "weights-root",
    ),
}
"""Keys that both sides read, and what the line says is to be set."""
OF_NODE = {
    "weights": ({"models": "timm:resnet18:weights={}/secret/x.safetensors"}, "weights-root"),
    "a pickle": ({"models": "torchvision:resnet18:weights={}/secret/x.pt"}, "weights-root"),
    "a text model": ({"models": "hf:{}/secret"}, "weights-root"),
    "a text model of the hub": ({"models": "hf:somebody/model"}, "allow-downloads=true"),
    "timm's weights": ({"models": "timm:resnet18:pretrained"}, "allow-downloads=true"),
    "torchvision's weights": ({"models": "torchvision:resnet18:pretrained"}, "allow-downloads"),
    "a LoRA": (
        keys_in("models=tests.models.modules:Normalised train=lora lora.init=folder:{}/secret"),
        "weights-root",
    ),
    "CIFAR-10 from its home": ({"dataset": "cifar10"}, "allow-downloads=true"),
}
OF_SERVER = {
    "an observer": ({"observers": f"tensorboard,{TRAP}:go"}, "allow-code='trap_of_a_run'"),
    "an output": ({"output": "{}/secret/run"}, "output-root"),
    "an output of others": ({"output": "{}/secret", "overwrite": True}, "output-root"),
}


def filled(keys: dict[str, Any], place: Path) -> dict[str, Any]:
    return {name: str(v).format(place) if isinstance(v, str) else v for name, v in keys.items()}


@pytest.mark.parametrize("config", [PART, OWN, PART | {"secagg": "required"}], ids=str)
@pytest.mark.parametrize("name", [*NAMED, *OF_NODE])
def test_a_node_does_nothing_that_a_run_names_and_says_what_to_set(
    name: str, config: dict[str, Any], place: Path
) -> None:
    keys, wanted = (NAMED | OF_NODE)[name]
    masked = {"secagg.enabled": True} if "secagg" in config else {}
    if name == "CIFAR-10 from its home" and config is OWN:
        return  # nothing of it is looked at
    if "lora.init" in keys:
        config = config | {"allow-code": "tests.models.modules"}
    own = filled(config | {"state-path": "{}/state"}, place)
    said = node(filled(keys, place) | masked, own)
    assert wanted in said
    assert "in its node-config" in said
    assert "/home" not in said
    assert not (place / "made").exists()
    assert not TOUCHED


@pytest.mark.parametrize("name", [*NAMED, *OF_SERVER])
def test_a_server_does_nothing_that_a_run_names_and_says_what_to_set(
    name: str, place: Path
) -> None:
    keys, wanted = (NAMED | OF_SERVER)[name]
    said = server(filled(keys, place))
    assert wanted in said
    assert VARIABLE in said
    assert not TOUCHED
    assert not (place / "made").exists()


VALUES = (
    f"{TRAP}:go",
    f"cnn5,{TRAP}:go",
    "{}/secret/own.csv",
    "csv:{}/secret/own.csv",
    "folder:{}/secret",
    "hf:{}/secret",
    "hf:somebody/thing",
    "timm:resnet18:weights={}/secret/x.safetensors",
    "timm:resnet18:pretrained",
)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [node, server])
def test_whatever_key_holds_it_nothing_is_imported_opened_or_fetched(ask: Any, place: Path) -> None:
    """Every key that takes a text, the keys of all methods among them."""
    names = [name for name, key in all_keys().items() if key.kind is str]
    assert {"dataset", "models", "method", "observers", "lora.init", "adapter.basis"} < {*names}
    for name in names:
        method = "fedit" if name.startswith("lora") else name.partition(".")[0]
        beside = {"method": method} if method in NAMES else {}
        for value in VALUES:
            keys = beside | {"train": "lora" if name.startswith("lora") else "all"}
            ask(filled(keys | {name: value}, place), PART | {"state-path": str(place / "state")})
            assert not TOUCHED, f"{name}={value}"


def test_what_a_node_allows_runs_there(place: Path) -> None:
    (place / "code" / f"{TRAP}.py").write_text(
        "import numpy as np\nfrom os import system\n"
        "def go():\n    return np.eye(60, 3), np.arange(60) % 2, ['a', 'b']\n"
    )
    code = PART | {"allow-code": f"os.path {TRAP}", "state-path": str(place)}
    assert not node({"dataset": f"{TRAP}:go"}, code)
    assert "is not defined in 'trap_of_a_run'" in node({"dataset": f"{TRAP}:system"}, code)
    assert "allow-code='os'" in node({"dataset": "os:system"}, code), "a module above it"
    mine = PART | {"data-path": f"{place}/secret", "state-path": str(place)}
    assert "holds neither train.parquet" in node({"dataset": "cifar10"}, mine), "its own choice"
    assert "set data-root" in node({"dataset": f"folder:{place}/secret"}, mine)
    data = PART | {"data-root": str(place), "state-path": str(place)}
    assert not node({"dataset": f"csv:{place}/secret/own.csv"}, data)
    assert not node({"dataset": f"npz:{place}/code/../secret/own.npz"}, data)


def test_a_permission_that_cannot_be_read_is_an_answer() -> None:
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    context = Context(1, 1, PART | {"allow-downloads": 1}, RecordDict(), BASE)
    reply = client_app.app(wire.properties_message(1, 60.0), context)
    assert reply.error.reason == ("the node-config: allow-downloads is 1; allowed: true or false")


def test_what_the_servers_variable_allows_runs_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"output-root='{place}' data-root={place} allow-code='a b'")
    keys = {"dataset": f"csv:{place}/secret/own.csv", "output": f"{place}/run"}
    assert "no attribute 'get_nodes'" in server(keys), "it has begun, without nodes"
    assert (place / "run" / "config.yaml").exists()
    assert "allows a b: set allow-code='trap_of_a_run'" in server({"method": f"{TRAP}:go"})
    for wrong, why in {"allow-cod=a": "names 'allow-cod'", "a='": "cannot be read"}.items():
        monkeypatch.setenv(VARIABLE, wrong)
        assert why in server({})
    monkeypatch.setenv(VARIABLE, "allow-downloads=perhaps")
    assert "allow-downloads is 'perhaps'" in server({})


def test_a_dataset_that_names_files_itself_names_none_outside_the_root(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card of a folder, the state of a stored dataset, and a folder with a hub's name."""
    datasets = pytest.importorskip("datasets")
    root, config = place / "root", PART | {"data-root": f"{place}/root", "state-path": str(place)}
    stored = datasets.Dataset.from_dict({"a": [0, 1] * 30, "label": [0, 1] * 30})
    for name in ("out", "in"):
        stored.save_to_disk(root / f"stored {name}")
    (file,) = (root / "stored out").glob("*.arrow")
    file.rename(place / "secret" / file.name)
    state = root / "stored out" / "state.json"
    state.write_text(state.read_text().replace(file.name, f"../../secret/{file.name}"))
    for name, path in {
        "out": f"{place}/secret/own.csv",
        "up": "../../mine.csv",
        "in": "a.csv",
    }.items():
        folder = root / f"card {name}"
        folder.mkdir()
        (folder / "a.csv").write_text((place / "mine.csv").read_text())
        card = f"configs:\n- config_name: default\n  data_files:\n  - split: a\n    path: {path}\n"
        (folder / "README.md").write_text(f"---\n{card}---\n")
    for kind in ("card out", "card up", "stored out"):
        said = node({"dataset": f"hf:{root}/{kind}"}, config)
        assert "this node allows only files below its data-root" in said, kind
    for kind in ("card in", "stored in"):
        assert not node({"dataset": f"hf:{root}/{kind}"}, config), kind
    monkeypatch.chdir(place)
    TOUCHED.clear()
    said = node({"dataset": "hf:secret:default"}, PART | {"allow-downloads": "true"})
    assert "allows no such file: set data-root" in said
    assert not TOUCHED


def test_a_link_out_of_the_root_is_refused_and_one_within_it_is_not(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "set" / "cat", root / "far", outside):
        folder.mkdir(parents=True)
    (outside / "x.csv").touch()
    (root / "x.csv").symlink_to(outside / "x.csv")
    (root / "within.csv").symlink_to(root / "far")
    (root / "circle").symlink_to(root / "circle")
    (tmp_path / "other name").symlink_to(root)
    with held(Permissions(data=str(tmp_path / "other name"))):
        for inside in ("set", "within.csv", "new.csv", "../root/set", "../other name/set"):
            permissions.check_file("dataset", f"{root}/{inside}", permissions.DATA)
        for out in ("x.csv", "..", "../root2", "../outside/x.csv", "circle", "a\0b"):
            with pytest.raises(NotAllowed, match="data-root"):
                permissions.check_file("dataset", f"{root}/{out}", permissions.DATA)
        with pytest.raises(NotAllowed, match="weights-root"):
            permissions.check_file("models", f"{root}/set", permissions.WEIGHTS)
        (root / "set" / "cat" / "a.png").symlink_to(outside / "x.csv")
        with pytest.raises(NotAllowed):  # of a folder, everything in it
            permissions.check_file("dataset", f"{root}/set", permissions.DATA)


@pytest.mark.parametrize(
    ("command", "anything"),
    [
        ("pfedlora", True),
        ("-c", True),
        ("/bin/flwr-simulation", True),
        ("/bin/flwr-serverapp", False),
        ("/bin/flwr-clientapp", False),
        ("/x/flwr_clientapp.py", False),
        ("/bin/flower-supernode", False),
    ],
)
def test_the_process_says_whether_this_is_the_users_own_machine(
    command: str, anything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [command])
    assert permissions.own_machine() == anything
    if anything:
        assert load_object("os:system", "dataset")
    else:
        with pytest.raises(NotAllowed):
            load_object("os:system", "dataset")
