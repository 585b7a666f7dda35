"""How far features spread through the package: `python -m scripts.spread [COMMIT …]`.

For each feature the files outside its own room whose code names it, at each commit, and the
package's characters of code. Comments, docstrings and white space do not count. Without a commit:
the working tree.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pfedlora_flwr/"


@dataclass(frozen=True)
class Feature:
    """A feature, the files that are its own room, and the words by which code names it."""

    name: str
    room: str
    words: str


FEATURES = (
    Feature(
        "sharing",
        r"federation/(sharing|server_state)|report/gain|features/sharing",
        r"\bsharing\b(?! = len|\)\n)|\bis_control\b",
    ),
    Feature("audit", r"audit|runs/uploads", r"audit|shared_part\b|shared_predictor\b"),
    Feature(
        "differential privacy",
        r"federation/dp|runs/(accountant|budget|spent)|models/private"
        r"|training/entropy|report/privacy|features/dp",
        r"\bdp\b|\bdp_|_dp\b|\bDP\b|(?<!var)epsilon(?!-cap)|features\.dp|training\.entropy",
    ),
    Feature(
        "held-out clients",
        r"report/(held_out|paper)|audit/membership|features/held_out",
        r"held[_ -]out|HeldOut|held\.out|to_adapt",
    ),
    Feature(
        "membership of clients",
        r"^audit/|runs/(joining|audits)|features/membership",
        r"clients[-_](joined|left)|joined_after|check_join|left_(by|after)|gone_after|leaves_of"
        r"|\bmembership\(|joined-|features\.membership|(?<!total)\.members\b|\bMembers\b",
    ),
    Feature(
        "Ray cluster",
        r"launch/cluster|federation/nodes",
        r"\bray\b|cluster|\bnodes\.(?!append|items|update)|\blost\(\)|this_node|address_of",
    ),
    Feature(
        "secure aggregation",
        r"federation/(secure/|secagg|stages|guard|unmasked|masks)|features/masks",
        r"secagg|(?<!nder )[Ss]ecure[ _]?[Aa]gg|federation\.secure|SecureUplink|masked\b(?! sum)|(?<!nder )\bmasks?\b",
    ),
    Feature(
        "own code",
        r"^errors|runs/(source|code_copy)|report/own_code|methods/own",
        r"user_code|UserCodeError|code_copy|runs\.source|use_copy|user_modules",
    ),
    Feature(
        "extension of a run",
        r"runs/begin",
        r"\bextend(?!\()|(?<!\.)\bextension\b(?!s)|uses_rounds",
    ),
    Feature(
        "kinds of input",
        r"kinds?\.py|data/(images|series|vectors|tokens)",
        r"""["'](images|series|vectors|tokens)["']|\.ndim\b""",
    ),
    Feature(
        "trackers",
        r"observers?|runs/events",
        r"tensorboard|EventFiles|summary_writer",
    ),
)


LISTS = tuple(
    f"features/{name}.py"
    for name in ("rules", "phases", "plans", "links", "records", "audits", "tables", "demands")
)
"""A line for each feature."""
LATER = re.compile(
    r"models/(lora|text|basis|pretrained|foreign|summed|private)|data/(outputs|remarks|tokens)"
    r"|methods/(pfedlora_plus|lora_|flexlora|fedit|ffa_lora|fedsa_lora|ditto|fedrep|fedprox|fedper"
    r"|extractor|apfl|fedala|fedalt|fedbabu|fedbn|feddpa|fedex_lora|fedrod|flora|rolora|last_layer)"
    r"|observers/(mlflow|wandb|scalars|prometheus|status_line)|api/"
    r"|runs/(data_name|accountant|budget|spent|shared_state|joining|status|standing|without)"
    r"|report/(own_code|aggregation|held_out)|federation/(reach|dp|adapt|census)"
    r"|launch/(superlink|worker|remote)|features/dp|(commands|ops)/(align|weights|adapt|status)"
)
"""Files of features that came with 0.3.0: characters are counted without them, too."""


class _Bare(ast.NodeTransformer):
    """Takes out texts that stand alone: docstrings, and those beneath a constant."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else node


def code(source: str) -> str:
    """A module's code, written by one hand: without comments and docstrings."""
    return ast.unparse(_Bare().visit(ast.parse(source)))


def package(commit: str) -> dict[str, str]:
    """The code of every file of the package at a commit, or in the working tree where it is empty."""
    if not commit:
        files = {
            str(path.relative_to(ROOT / PACKAGE)): path.read_text(encoding="utf-8")
            for path in sorted((ROOT / PACKAGE).rglob("*.py"))
        }
    else:
        command = ["git", "-C", str(ROOT), "archive", commit, PACKAGE]
        packed = subprocess.run(command, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            files = {
                member.name.removeprefix(PACKAGE): reader.read().decode()
                for member in archive
                if member.name.endswith(".py") and (reader := archive.extractfile(member))
            }
    return {name: code(text) for name, text in files.items()}


def outside(feature: Feature, files: Mapping[str, str]) -> list[str]:
    """The files outside its room that name a feature."""
    room, words = re.compile(feature.room), re.compile(feature.words)
    return [
        name
        for name, text in files.items()
        if name not in LISTS and not room.search(name) and words.search(text)
    ]


def characters(files: Mapping[str, str]) -> int:
    """The package's characters of code."""
    return sum(len("".join(text.split())) for text in files.values())


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("commits", nargs="*", metavar="COMMIT")
    cli.add_argument("--files", action="store_true", help="name the files at the last commit")
    a = cli.parse_args()
    commits = a.commits or [""]
    found = [package(commit) for commit in commits]
    heads = " | ".join(commit[:10] or "working tree" for commit in commits)
    print(f"| files outside its room that name it | {heads} |")
    print(f"| --- | {' | '.join('---:' for _ in commits)} |")
    for feature in FEATURES:
        counts = " | ".join(str(len(outside(feature, files))) for files in found)
        print(f"| {feature.name} | {counts} |")
    print(f"| files | {' | '.join(str(len(files)) for files in found)} |")
    print(f"| characters of code | {' | '.join(f'{characters(files):,}' for files in found)} |")
    without = [
        {name: text for name, text in files.items() if not LATER.match(name)} for files in found
    ]
    counts = " | ".join(f"{characters(files):,}" for files in without)
    print(f"| … without the files of 0.3.0's features | {counts} |")
    if a.files:
        for feature in FEATURES:
            print(f"\n{feature.name}: {', '.join(outside(feature, found[-1]))}")


if __name__ == "__main__":
    main()
