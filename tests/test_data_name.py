"""A run names the data that it had: of sites with tables of their own never the dataset that the
configuration has by default, and never a path."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pfedlora_flwr import client_app
from pfedlora_flwr.commands.display import client_table
from pfedlora_flwr.config import run_config
from pfedlora_flwr.federation.clients import RunFailed
from pfedlora_flwr.launch.local import LocalGrid
from tests.conftest import Call, keys_in, result_of
from tests.deployment.processes import Federation
from tests.served import run_over

pytestmark = [pytest.mark.slow]
KEYS = keys_in(
    "method=pfedlora clients=3 rounds=1 classes=3 input-shape=4 data.class-"
    "names=low,normal,high batch-size=16"
)
NAME = "own data of 3 sites"
INPUTS = "vectors of 4, 3 classes"


def make_tables(folder: Path, rows: int = 40) -> list[Path]:
    """Three hospitals' tables of four columns and a label."""
    draws, places = np.random.default_rng(0), []
    for site in range(3):
        lines = ["age,pulse,iron,salt,label"]
        for row in range(rows):
            label = ("low", "normal", "high")[row % 3]
            values = draws.normal(row % 3, 1, 4)
            lines.append(",".join([*(f"{value:.4f}" for value in values), label]))
        places.append(folder / f"secret-hospital-{site}.csv")
        places[-1].write_text("\n".join(lines) + "\n")
    return places


def serve(
    output: Path, node_configs: Sequence[Mapping[str, Any]], keys: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """A run over nodes with these node-configs, in this process, by the apps that Flower loads."""
    config = dict(run_config({**keys, "output": str(output), **more}).flat())
    run_over(LocalGrid(client_app.app, node_configs, config), config)
    return result_of(output)


def shown(result: dict[str, Any]) -> str:
    """The final table, as a terminal shows it."""
    console = Console(width=120)
    with console.capture() as captured:
        console.print(client_table(result))
    return captured.get()


def check_named(texts: Mapping[str, str]) -> None:
    """Each text says whose data it was; none says digits, or gives a path or a file of a site."""
    for where, text in texts.items():
        assert "own data of" in text, where
        assert "digits" not in text, where
        assert "hospital" not in text, where


def test_a_run_that_too_few_sites_joined_is_not_named_after_a_dataset(tmp_path: Path) -> None:
    """And it can be begun again in its place."""
    nodes = [
        {"dataset": f"csv:{table}", "state-path": str(tmp_path / f"state{site}")}
        for site, table in enumerate(make_tables(tmp_path))
    ]
    with pytest.raises(RunFailed, match="only 2 of 3 clients connected within"):
        serve(tmp_path / "run", nodes[:2], {**KEYS, "node-timeout": 1})
    failed = result_of(tmp_path / "run")
    assert (failed["status"], failed["dataset"]) == ("failed", "own data of 2 sites")
    assert serve(tmp_path / "run", nodes, KEYS)["dataset"] == NAME


def test_more_classes_than_the_sites_have_are_warned_of_where_nobody_set_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [table, *_] = make_tables(tmp_path)
    nodes = [{"dataset": f"csv:{table}", "state-path": str(tmp_path / "state")}]
    keys = {k: v for k, v in KEYS.items() if k not in ("classes", "data.class-names")}
    with caplog.at_level(logging.INFO, logger="pfedlora_flwr"):
        serve(tmp_path / "run", nodes, {**keys, "clients": 1})
    told = "warning: classes is auto, which is 10, and the sites' data have 3: set classes"
    assert told in caplog.text


def test_tables_of_three_sites_are_named_as_theirs_everywhere(
    tmp_path: Path, pfedlora: Call, caplog: pytest.LogCaptureFixture, no_figures: None
) -> None:
    nodes = [
        {"dataset": f"csv:{table}", "state-path": str(tmp_path / f"state{site}")}
        for site, table in enumerate(make_tables(tmp_path))
    ]
    with caplog.at_level(logging.INFO, logger="pfedlora_flwr"):
        result = serve(tmp_path / "run", nodes, KEYS)
    assert "digits" not in caplog.text
    assert f"data: {NAME}: {INPUTS}" in caplog.text
    assert result["dataset"] == NAME
    assert result["own_data"] == {
        "sites": 3,
        "kind": "vectors",
        "shape": [4],
        "classes": 3,
        "samples": 120,
    }
    code, _, err = pfedlora("report", str(tmp_path / "run"))
    assert code == 0, err
    report = (tmp_path / "run" / "report" / "report.md").read_text()
    assert f"- Data: {NAME}: {INPUTS}, 120 samples\n" in report
    [client] = [int(p.parent.name) for p in (tmp_path / "state1").glob("*/*/about.json")]
    code, _, err = pfedlora(
        *("export", str(tmp_path / "state1"), "--client", str(client)),
        *("--format", "safetensors", "--output", str(tmp_path / "model.safetensors")),
    )
    assert code == 0, err
    other = str((client + 1) % 3)
    code, _, err = pfedlora("predict", str(tmp_path / "state1"), "--client", other, "new.csv")
    assert code == 2
    assert f"a model of client {other}; it holds that of client {client} (the server" in err
    card = (tmp_path / "model.safetensors.md").read_text()
    assert f"own data of its site (csv): {INPUTS}" in card
    check_named(
        {
            "the table": shown(result),
            "result.json": json.dumps(result),
            "the report": report,
            "the model card": card,
        }
    )


def test_a_part_of_the_dataset_and_own_data_are_both_named(tmp_path: Path) -> None:
    """One node has a partition-id alone, the other one has images of its own."""
    draws = np.random.default_rng(0)
    np.savez(
        tmp_path / "own.npz",
        images=draws.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8),
        labels=np.arange(60) % 10,
    )
    state = {"state-path": str(tmp_path / "state")}
    nodes = [
        {"partition-id": 0, "num-partitions": 2} | state,
        {"partition-id": 1, "dataset": f"npz:{tmp_path}/own.npz"} | state,
    ]
    keys = {"method": "standalone", "clients": 2, "rounds": 1, "partition.kind": "iid"}
    result = serve(tmp_path / "run", nodes, keys | {"dataset": "synthetic:200"})
    assert result["dataset"] == "synthetic:200, and own data of 1 site"
    assert result["own_data"]["samples"] == 60


def test_a_resumed_run_still_names_the_sites_data(
    tmp_path: Path,
) -> None:
    """Even where no node is connected any more: all its rounds are done."""
    nodes = [
        {"dataset": f"csv:{table}", "state-path": str(tmp_path / f"state{site}")}
        for site, table in enumerate(make_tables(tmp_path))
    ]
    serve(tmp_path / "run", nodes, KEYS)
    assert serve(tmp_path / "run", [], KEYS, resume=True)["dataset"] == NAME


@pytest.mark.deployment
def test_a_deployed_federation_of_three_tables_is_named_by_its_sites(
    tmp_path: Path, pfedlora: Call
) -> None:
    """The same on a real SuperLink with three SuperNodes, by `pfedlora run --superlink`."""
    tables = make_tables(tmp_path)
    with Federation(tmp_path / "federation") as federation:
        federation.start_superlink()
        for site, table in enumerate(tables):
            federation.start_node(site, dataset=f"csv:{table}")
        assert federation.run(KEYS) == 0, federation.log("submit")
        said, result = federation.log("submit"), federation.result()
        report = pfedlora("report", str(federation.output))
        place = federation.folder / "state2"
        [client] = [p.parent.name for p in place.glob("*/*/about.json")]
        target = tmp_path / "model.safetensors"
        export = pfedlora(
            *("export", str(place), "--client", client, "--format", "safetensors"),
            *("--output", str(target)),
        )
        text = (federation.output / "report" / "report.md").read_text()
    assert report[0] == export[0] == 0, (report, export)
    assert f"data: {NAME}: {INPUTS}" in said
    assert re.search(f"pfedlora on {NAME}: personalised", said)
    assert result["dataset"] == NAME
    assert f"- Data: {NAME}: {INPUTS}, 120 samples\n" in text
    card = target.with_name("model.safetensors.md").read_text()
    assert f"own data of its site (csv): {INPUTS}" in card
    assert "digits" not in said + text + card + json.dumps(result)
