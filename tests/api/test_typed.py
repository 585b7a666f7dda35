"""The API for who looks: completion, figures, notebooks' HTML, and what there is to choose from."""

from __future__ import annotations

from pathlib import Path

import jedi
import numpy as np
import pytest

import pfedlora_flwr
from pfedlora_flwr import UserError
from pfedlora_flwr.config import all_keys
from pfedlora_flwr.methods import registry
from pfedlora_flwr.ops import known
from tests.api.typed_calls import every_call
from tests.conftest import Call


@pytest.fixture
def found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: None, no_figures: None
) -> dict[str, object]:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"s{i % 3},{rng.normal() + 2 * (i % 2)},{'xy'[i % 2]}" for i in range(120)]
    (tmp_path / "table.csv").write_text("\n".join(["site,a,kind", *rows]))
    return every_call(tmp_path, tmp_path / "table.csv")


@pytest.mark.slow
def test_every_typed_call_runs_and_a_notebook_shows_what_comes_back(
    found: dict[str, object],
) -> None:
    run, several, decided = (found[name] for name in ("run", "comparison", "decided"))
    assert isinstance(run, pfedlora_flwr.Run)
    assert isinstance(several, pfedlora_flwr.Comparison)
    assert isinstance(decided, pfedlora_flwr.Comparison)
    for shown, told in ((run, "What was run"), (several, "<table>"), (decided, "balanced")):
        page = shown._repr_html_() or ""
        assert shown.verdict.split(".")[0] in page
        assert told in page
        assert "data:image/png;base64," in page
    table = several.table()
    alone, fd = (float(table["accuracy"][i]) for i in (0, 1))
    assert several.accuracy == {"standalone": alone, "fd": fd}
    assert several.gain()["gain"].tolist() == [pytest.approx(fd - alone)]
    assert several.gain()["verdict"].tolist() == ["too few seeds"]
    assert table["accuracy_half"].dtype == float
    written = (several.report(std=True, best=True) / "accuracy.tex").read_text()
    assert "mean $\\pm$ standard deviation" in written
    assert "Bold: a column's best mean" in written
    first, second = several.runs()
    assert second.gain(first) == pytest.approx(second.accuracy - first.accuracy)
    for kind in ("curves", "clients", "partition", "inputs", "t-sne", "gain", "sites"):
        assert several.plot(kind)._repr_png_()[0].startswith(b"\x89PNG"), kind
    with pytest.raises(UserError, match="kind is 'pie'; allowed: curves"):
        run.plot("pie")
    with pytest.raises(UserError, match="no figure 'gain': it needs a method beside"):
        run.plot("gain")
    with pytest.raises(UserError, match=r"'curves' is of one scenario, and 0 fit; there are "):
        decided.plot("curves", clients=7)
    with pytest.raises(UserError, match=r"had other seeds or data: no gain"):
        run.gain(decided.runs()[0])
    with pytest.raises(UserError, match=r"run is a Run; expected a Comparison"):
        pfedlora_flwr.load(run.path, pfedlora_flwr.Comparison)
    (run.path / "result.json").unlink()
    assert run._repr_html_() is None


@pytest.mark.slow
def test_an_editor_completes_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In the user's cache, every process that completes writes: a file may be read half written.
    monkeypatch.setattr(jedi.settings, "cache_directory", str(tmp_path))
    for line, key in {
        "pfedlora_flwr.run(adapter_h": "adapter_hidden_dim=",
        "pfedlora_flwr.compare('x', partition_k": "partition_kind=",
        "pfedlora_flwr.load('x', pfedlora_flwr.Run).resume(max_h": "max_hours=",
        "pfedlora_flwr.decide('t.csv', sites='ward', lr_s": "lr_schedule=",
    }.items():
        script = jedi.Script(f"import pfedlora_flwr\n{line}")
        assert key in [found.name for found in script.complete(2, len(line))], line


def test_the_package_lists_its_names_alone() -> None:
    assert dir(pfedlora_flwr) == sorted(pfedlora_flwr.__all__)


def test_what_there_is_to_choose_from_is_found_by_a_word() -> None:
    rows = {row["key"]: row for row in known.find_keys()}
    assert rows.keys() == all_keys().keys()
    assert [row["method"] for row in known.methods()] == [*registry.NAMES]
    for word in ("adapter_hidden", "adapter.hidden-dim", "HIDDEN WIDTH"):
        assert pfedlora_flwr.list_keys(word)["key"].tolist() == ["adapter.hidden-dim"]
    with pytest.raises(UserError, match=r"no key has 'ruonds' .*; did you mean 'rounds'\?"):
        pfedlora_flwr.list_keys("ruonds")


def test_the_commands_show_the_same(pfedlora: Call) -> None:
    code, said, _ = pfedlora("keys", "hidden-dim")
    assert code == 0
    assert said.splitlines()[0] == "adapter.hidden-dim=60"
    assert "the adapter's hidden width" in said
    assert "fedproto" in pfedlora("methods")[1]
    _, text, _ = pfedlora("run", "--help")
    assert max(map(len, text.splitlines())) <= 80
    assert "\ndp:\n  dp.level=user, dp.clip=auto" in text
