"""What a site measures at home of its own uploads and its personal model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pfedlora_flwr import client_app
from pfedlora_flwr.cli import commands
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation import wire
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.ops.site_audit import site_audit
from tests.conftest import keys_in
from tests.plain import Plain
from tests.site.test_policy import BASE, Node, instruction


def trained(folder: Path, rules: str, keys: dict[str, Any]) -> Node:
    """A node after three visits."""
    LocalGrid(client_app.app, [{}], {})  # messages take a run
    node, state = Node(folder, rules), Plain(BASE | keys).state
    for r in (1, 2, 3):
        told = instruction(round=r, version=r - 1, names=[*state])
        assert node.ask(keys, wire.train_message(2, r, state, told, 60)) == ""
    return node


pytestmark = pytest.mark.slow
LEARNS = keys_in(
    "models=cnn5 dataset=synthetic:1200 partition.kind=pathological clients=5 local-"
    "epochs=3 lr=0.05"
)


def test_a_site_sees_what_its_uploads_and_its_model_tell(tmp_path: Path) -> None:
    rules = 'keep-uploads = 2\n[egress]\nsamples = "rounded"\nstep = 25'
    node = trained(tmp_path, rules, LEARNS)
    found = site_audit(node.state, shadows=2)
    assert found["rounds"] == [2, 3], "the last two are kept"
    assert found["classes"]["auc"] == 1.0, "two of ten classes are held"
    for attack in (found["membership"], found["personal"], found["shadows"]):
        assert 0 <= attack["auc"] <= 1
    assert found["personal"]["positives"] <= 175, "samples that rest are not members"
    done = CliRunner().invoke(commands(), ["site", "audit", str(node.state)])
    assert done.exit_code == 0, done.output
    assert "classes, by an upload: AUC 1.000" in done.output
    assert "differential privacy: none: no bound" in done.output
    page = tmp_path / "site.html"
    CliRunner().invoke(commands(), ["site", "report", str(node.state), "--output", str(page)])
    assert "<dt>classes, by an upload</dt><dd>AUC 1.000" in page.read_text()
    asked = {entry["kind"] for entry in node.log()}
    assert asked == {"train"}, "the audit asked nobody"
    about = next(node.state.glob("*/0/about.json"))
    told = json.loads(about.read_text())
    about.write_text(json.dumps(told | {"partition": "another"}))
    with pytest.raises(UserError, match="is not what the model was trained on"):
        site_audit(node.state)


def test_without_kept_uploads_an_audit_says_which_rule_keeps_them(tmp_path: Path) -> None:
    node = trained(tmp_path, "", LEARNS | {"local-epochs": 1})
    with pytest.raises(UserError, match="kept no uploads: set keep-uploads in the site's policy"):
        site_audit(node.state)


@pytest.mark.parametrize(("method", "attack"), [("fedproto", "named"), ("pfedlora", "")])
def test_a_private_encoder_and_rows_of_one_sample_are_told(
    method: str, attack: str, tmp_path: Path
) -> None:
    few = LEARNS | {"method": method, "dataset": "synthetic:240", "partition.kind": "dirichlet"}
    found = site_audit(trained(tmp_path, "keep-uploads = 1", few | {"local-epochs": 1}).state)
    assert attack in found["classes"]["attack"]
    assert (found["single"] is None) == (method == "pfedlora")
    if method == "pfedlora":
        assert found["membership"]["bound"], "its own encoder is at home"
