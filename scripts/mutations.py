"""Whether a test turns red for the essential line of each method that exchanges LoRA, and of the
personal baselines.

    python scripts/mutations.py [--only WORD]

Changes one line after the other in a copy of this tree, runs the tests that are named beside it
there, and prints a table of the first test that failed. Exit code 1 if a mutation survived."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METHODS = "pfedlora_flwr/methods"
PROPERTIES, EXACT, VISITS, PERSONAL = (
    f"tests/methods/test_{name}.py" for name in ("fedlora", "lora_exact", "lora_visits", "personal")
)


@dataclass(frozen=True)
class Mutation:
    """Of one line: `old` becomes `new` in `file`. tests: a file, and a word in the tests' names."""

    title: str
    file: str
    old: str
    new: str
    tests: tuple[str, str]


MUTATIONS = (
    Mutation(
        "FedIT forgets the sample weights",
        f"{METHODS}/tensors.py",
        "summed += upload.tensors[name].double() * upload.samples",
        "summed += upload.tensors[name].double() * total / len(uploads)",
        (PROPERTIES, "covariance"),
    ),
    Mutation(
        "FFA-LoRA draws A for each client",
        f"{METHODS}/ffa_lora.py",
        "        load_some(model, self.first_factors)\n",
        "",
        (VISITS, "plain_descent"),
    ),
    Mutation(
        "FFA-LoRA trains A",
        f"{METHODS}/ffa_lora.py",
        "parameter.requires_grad_(False)",
        "pass",
        (VISITS, "plain_descent"),
    ),
    Mutation(
        "FedSA-LoRA sends B, too",
        f"{METHODS}/fedsa_lora.py",
        "sends = (A,)",
        "sends = (A, '.lora_B.')",
        (PROPERTIES, "private_stays"),
    ),
    Mutation(
        "FlexLoRA forgets a client's own scale",
        f"{METHODS}/flexlora.py",
        "tensor[:, : like.shape[1]] / scale",
        "tensor[:, : like.shape[1]]",
        (PROPERTIES, "best_approximation"),
    ),
    Mutation(
        "FlexLoRA leaves out the singular values",
        f"{METHODS}/lora_factors.py",
        "return u * sigma * signs.T, vt * signs",
        "return u * signs.T, vt * signs",
        (PROPERTIES, "best_approximation"),
    ),
    Mutation(
        "RoLoRA begins with A",
        f"{METHODS}/rolora.py",
        "return A if round % 2 or begins else B",
        "return B if round % 2 or begins else A",
        (EXACT, "rolora"),
    ),
    Mutation(
        "RoLoRA trains both factors",
        f"{METHODS}/rolora.py",
        "with held(model, frozen):",
        "with held(model, 'nothing'):",
        (VISITS, "plain_descent and rolora"),
    ),
    Mutation(
        "FLoRA forgets what was merged before",
        f"{METHODS}/lora_residual.py",
        "    if place + LEFT in state:\n        left = torch.cat",
        "    if False:\n        left = torch.cat",
        (EXACT, "flora_adds"),
    ),
    Mutation(
        "FLoRA goes on with the LoRA of the last visit",
        f"{METHODS}/flora.py",
        "            draw(model, self.model_of(visit.client).lora_init)\n",
        "            pass\n",
        (VISITS, "plain_descent and flora"),
    ),
    Mutation(
        "FLoRA and FedEx-LoRA leave the weights where they are",
        "pfedlora_flwr/models/lora_layers.py",
        "base.weight += by[place]",
        "base.weight += 0 * by[place]",
        (VISITS, "own_weights_move"),
    ),
    Mutation(
        "FLoRA and FedEx-LoRA move the base that all share",
        "pfedlora_flwr/models/lora_layers.py",
        "nn.Parameter(base.weight.detach().clone(), requires_grad=False)",
        "nn.Parameter(base.weight.detach(), requires_grad=False)",
        (VISITS, "own_weights_move"),
    ),
    Mutation(
        "FedEx-LoRA adds the whole mean, not what was missed",
        f"{METHODS}/fedex_lora.py",
        "added([*terms, (-1.0, of_means[layer])])",
        "added(terms)",
        (EXACT, "fedex"),
    ),
    Mutation(
        "FedDPA lets a gradient pass through the global adapter",
        f"{METHODS}/feddpa.py",
        'with held(model, f".{FIRST}."), cut_off(model, FIRST):',
        'with held(model, f".{FIRST}."):',
        (VISITS, "plain_descent and feddpa"),
    ),
    Mutation(
        "FedDPA trains the global adapter in the mixture",
        f"{METHODS}/feddpa.py",
        "        mix(model, {FIRST: 1.0})\n",
        "",
        (VISITS, "plain_descent and feddpa"),
    ),
    Mutation(
        "FedDPA sends the private adapter",
        f"{METHODS}/feddpa.py",
        'sends = (f"{A}{FIRST}.", f"{B}{FIRST}.")',
        "sends = (A, B)",
        (PROPERTIES, "private_stays"),
    ),
    Mutation(
        "FedALT counts a client's own LoRA among the others'",
        f"{METHODS}/fedalt.py",
        "            if j != client\n",
        "",
        ("tests/methods/test_fedalt.py", "others_last_uploads"),
    ),
    Mutation(
        "FedALT leaves the rest without weight",
        f"{METHODS}/fedalt.py",
        "            open_gates(model)\n",
        "            pass\n",
        (VISITS, "plain_descent and fedalt"),
    ),
    Mutation(
        "The aggregation error forgets the scale",
        f"{METHODS}/fedit.py",
        "self.shares_of(uploads), self.products(before, scale), self.products(after, scale)",
        "self.shares_of(uploads), self.products(before, 1.0), self.products(after, 1.0)",
        (PROPERTIES, "covariance"),
    ),
    Mutation(
        "FedPer sends back what it received",
        f"{METHODS}/fedper.py",
        "return Upload(model.extractor_tensors(), len(data))",
        "return Upload(received, len(data))",
        (PERSONAL, "test_fedper_trains_all_from_the_received_extractor_and_sends_that"),
    ),
    Mutation(
        "FedRep trains the head with the extractor, too",
        f"{METHODS}/fedrep.py",
        "with frozen(model.last_layer()):",
        "with frozen(torch.nn.Identity()):",
        (PERSONAL, "test_fedrep_trains_the_head_before_the_extractor"),
    ),
    Mutation(
        "FedProx pulls twice as hard",
        f"{METHODS}/fedprox.py",
        "self.options.mu / 2 * distance()",
        "self.options.mu * distance()",
        (PERSONAL, "test_fedprox_is_held_near_what_it_received"),
    ),
    Mutation(
        "Ditto pulls twice as hard",
        f"{METHODS}/ditto.py",
        "self.options.lambda_ / 2 * distance()",
        "self.options.lambda_ * distance()",
        (PERSONAL, "test_ditto_trains_its_own_model_and_the_global_one_apart"),
    ),
    Mutation(
        "FedRoD's personal head trains the extractor",
        f"{METHODS}/fedrod.py",
        "generic.detach() + model.personal(z.detach())",
        "generic + model.personal(z)",
        (PERSONAL, "test_fedrod_trains_each_head_by_its_own_risk"),
    ),
    Mutation(
        "FedBABU fine-tunes without the first head",
        f"{METHODS}/fedbabu.py",
        "        model.restart(received)\n        train_locally(model.model, data, visit, epochs",
        "        train_locally(model.model, data, visit, epochs",
        (PERSONAL, "test_fedbabu_trains_the_body_before_the_first_head_and_fine_tunes_both"),
    ),
    Mutation(
        "FedBN knows batch normalisation by its name alone",
        f"{METHODS}/fedbn.py",
        "if name not in private}",
        'if "bn" not in name}',
        (PERSONAL, "test_fedbn_keeps_batch_normalisation_by_its_class_and_averages_the_rest"),
    ),
    Mutation(
        "APFL trains the global model through the mixture",
        f"{METHODS}/apfl.py",
        "received[name].detach()",
        "received[name]",
        (PERSONAL, "test_apfl_mixes_the_models_and_not_their_outputs"),
    ),
    Mutation(
        "FedALA learns no weights",
        f"{METHODS}/fedala.py",
        "(received[name] - old[name]) * weight",
        "(received[name] - old[name])",
        (PERSONAL, "test_fedala_mixes_the_highest_layers_by_weights_that_it_learns"),
    ),
)


def main() -> int:
    cli = argparse.ArgumentParser()
    cli.add_argument("--only", default="", help="only the mutations whose title has this word")
    a = cli.parse_args()
    survived = 0
    print("| mutation | the test that turns red |\n| --- | --- |")
    for mutation in MUTATIONS:
        if a.only in mutation.title:
            red = first_red(mutation)
            survived += not red
            print(f"| {mutation.title} | {f'`{red}`' if red else '**none**'} |", flush=True)
    return 1 if survived else 0


def first_red(mutation: Mutation) -> str:
    """The test that failed; empty if none did."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = Path(folder)
        for part in ("pfedlora_flwr", "tests", "scripts", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, tree / part)
        file = tree / mutation.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.title}: {mutation.file} has not that line once")
        file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        where, word = mutation.tests
        options = ["-q", "-x", "-p", "no:cacheprovider", "-k", word]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, where],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 1):
            raise SystemExit(
                f"{mutation.title}: pytest ended with {done.returncode}\n{done.stdout}"
            )
        found = re.search(r"^(?:FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE)
        return found[1] if found else ""


if __name__ == "__main__":
    sys.exit(main())
