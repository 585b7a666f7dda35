"""One method of each kind through `flwr run`: the bits of the local engine with one actor, and with
two after a kill and `--resume`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Cli, key_words, run_locally
from tests.plain import SUMS
from tests.test_run import KEYS, SMALL, facts, wait_for_rounds

pytestmark = [pytest.mark.methods, pytest.mark.timeout(600)]
KINDS = {
    "mean": "pfedlora",
    "class means": "fedproto",
    "trained on the server": "fedgh",
    "composite": "fedmrl",
    "sums": "fedlda",
}


@pytest.mark.parametrize("method", KINDS.values(), ids=KINDS)
def test_neither_actors_nor_a_kill_change_a_bit(cli: Cli, tmp_path: Path, method: str) -> None:
    own = {"method": method}
    if method in SUMS:  # which need encoders that are alike
        own |= {"models": "cnn5", "initial-models": "architecture"}
    here = run_locally(tmp_path / "here", KEYS | own)
    words = [*SMALL, *key_words(own)]
    alone = cli.run("one", *words, "-o", "actors=1")
    assert alone.code == 0, alone.stderr
    assert facts(alone.result) == facts(here.result)

    process = cli.start("two", *words, "-o", "actors=2", "-o", "observers=tests.failing:Slow")
    wait_for_rounds(cli.folder / "two", 2)
    cli.kill(process)
    assert len((cli.folder / "two" / "rounds.jsonl").read_text().splitlines()) < 7, (
        "it was over before it was killed"
    )
    resumed = cli.run("two", "--resume")
    assert resumed.code == 0, resumed.stderr
    assert facts(resumed.result) == facts(here.result)
