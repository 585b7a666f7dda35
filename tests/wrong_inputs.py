"""What users get wrong, by category: the command, its exit code, and words of the one line that it
gets for an answer."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests import wrong_made as made
from tests.wrong_made import Maker

RUN = (
    "-o clients=2 -o partition.kind=iid -o rounds=2 -o dataset=synthetic:100 -o"
    " models=tests.methods.narrow:Narrow"
)
"""The keys of the run that lies in `run`."""


Files = dict[str, bytes | None]


@dataclass(frozen=True)
class Wrong:
    """A command, as a shell splits it, given in a folder that has what `needs` makes there.

    expected: in the line. code: of the exit. run: whether a completed run of two rounds lies in
    `run`. out: whether the words are on stdout, of a command that does what it can and names what
    it does not use. slow: whether it takes more than two seconds of computing."""

    command: str
    expected: str
    needs: Sequence[Maker] = ()
    code: int = 2
    run: bool = False
    out: bool = False
    slow: bool = False


def faults(row: Wrong, code: int, out: str, err: str, before: Files, after: Files) -> list[str]:
    """What is not as it should be of a command that has ended; the folder's files before and after
    it."""
    said, found = out if row.out else err, []
    lines = err.splitlines()
    if code == 1 and lines[1:] and lines[1].startswith("to continue once that is mended: "):
        del lines[1]  # of a run that had begun
    if code != row.code:
        found.append(f"exit code {code}")
    if "Traceback (most recent call last)" in out + err:
        found.append("a traceback")
    if len(lines) != (0 if row.out else 1):
        found.append(f"{len(lines)} lines on stderr")
    if row.expected not in said:
        found.append(f"not said: {row.expected}")
    found += [f"changed: {name}" for name in before if before[name] != after.get(name)]
    if row.code != 1:
        found += [f"new: {name}" for name in after if name not in before]
    return found


def files_in(folder: Path) -> Files:
    """Every file and folder below, with a file's content."""
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in found
    }


def key(settings: str, expected: str, more: str = "") -> Wrong:
    words = " ".join(f"-o '{setting}'" for setting in settings.split(" "))
    return Wrong(f"run {words} -o output=out {more}".strip(), expected)


def unused(settings: str, expected: str) -> Wrong:
    words = " ".join(f"-o {setting}" for setting in settings.split(" "))
    return Wrong(f"run --dry-run {words} -o output=out", f"warning: {expected}", code=0, out=True)


def conf(text: str | bytes, expected: str, command: str = "run") -> Wrong:
    return Wrong(f"{command} conf.yaml", expected, [made.files(conf__yaml=text)])


def data(dataset: str, expected: str, *needs: Maker, more: str = "") -> Wrong:
    return Wrong(
        f"run -o dataset={dataset} -o partition.kind=iid -o clients=1 -o output=out {more}".strip(),
        expected,
        needs,
    )


def code(setting: str, expected: str, code: int = 2) -> Wrong:
    words = " ".join(made.run_of_own_code(output="out"))
    return Wrong(f"{words} -o {setting}", expected, [made.own_code], code)


def pretrained(settings: str, expected: str, *needs: Maker) -> Wrong:
    words = " ".join(f"-o {setting}" for setting in settings.split(" "))
    few = "-o clients=1 -o dataset=synthetic:100 -o partition.kind=iid -o output=out"
    return Wrong(f"run {few} {words}", expected, needs, slow=True)


def text(models: str, expected: str, *needs: Maker) -> Wrong:
    return replace(
        data("csv:docs.csv", expected, *needs, more=f"-o data.text-column=message -o {models}"),
        slow=True,
    )


def file(command: str, expected: str, *needs: Maker, code: int = 2, out: bool = False) -> Wrong:
    return Wrong(command, expected, needs, code, run=True, out=out)


_OF_RECORDS = (
    "dp.level=record dp.clip=1 dp.noise=1 method=pfedlora_plus adapter.predict=sum"
    " adapter.rows=samples train=head normalise=model"
)
KEYS = [
    key(
        "classes=4 data.class-names=a,b,c",
        "classes is 4; allowed: auto, or 3, the number of data.class-names",
    ),
    key(
        "data.class-names=a,b,c",
        "the number of data.class-names is 3; allowed: auto, or 10, which dataset 'digits' has",
    ),
    key("round=1", "unknown key 'round'; did you mean 'rounds'?"),
    key("rounds=ten", "rounds is 'ten'; allowed: an integer ≥ 1"),
    key("rounds=0", "rounds is 0; allowed: an integer ≥ 1"),
    key("rounds=2.5", "rounds is 2.5; allowed: an integer ≥ 1"),
    key("rounds=1:30", "rounds is '1:30'; allowed: an integer ≥ 1"),
    key("rounds=", "rounds is ''; allowed"),
    key("mu=1.2", "mu is 1.2; allowed: a number ≥ 0 and ≤ 1"),
    key("mu=nan", "mu is nan; allowed: a number ≥ 0 and ≤ 1"),
    key("lr=0", "lr is 0.0; allowed: a number > 0"),
    key("lr=inf", "lr is inf; allowed: a number > 0, finite and below 2^63"),
    key("lr=0,1", "lr is '0,1'; allowed: a number > 0"),
    key("momentum=1", "momentum is 1.0; allowed: a number ≥ 0 and < 1"),
    key("participation=0", "participation is 0.0; allowed: a number > 0 and ≤ 1"),
    key("audit.uploads=true secagg.enabled=true", "audit.uploads is true and secagg.enabled, too"),
    key("augment=1", "augment is 1; allowed: true or false"),
    key("actors=none", "actors is 'none'; allowed: auto, or an integer ≥ 1"),
    key("seed=99999999999999999999", "allowed: an integer ≥ 0, finite and below 2^63"),
    key("setting=mixed", "setting is 'mixed'; allowed: heterogeneous | homogeneous"),
    key("device=gpu", "device is 'gpu'; allowed: auto | cpu | cuda"),
    key("dataset=mnist", "dataset is 'mnist'; allowed: digits | cifar10"),
    key("method=fedsgd", "method is 'fedsgd'; allowed: pfedlora"),
    key("method=LG-FedAvg", "method is 'LG-FedAvg'; did you mean 'lg_fedavg'? allowed: pfedlora"),
    key("method=fedavg", "set setting=homogeneous"),
    key("method=standalone models=cnn9", "models names 'cnn9'; allowed: cnn1"),
    key("models=", "models names ''; allowed: cnn1"),
    key("models=cnn1,,cnn2", "models names ''; allowed: cnn1"),
    key(
        "models=cnn1,cnn5 adapter.kind=reduced",
        "different widths (cnn1 2000, cnn5 500); set adapter.kind=decomposed",
    ),
    key(
        "models=mlp1",
        "model 'mlp1' is for vectors, and the inputs are images [3, 32, 32]; allowed: cnn1",
    ),
    key("models=timm:resnet10", "timm has no 'resnet10'; near names: resnet10t"),
    key(
        "models=timm:resnet10t:best",
        "allowed: timm:resnet10t, timm:resnet10t:pretrained, timm:resnet10t:weights=FILE",
    ),
    key(
        "models=timm:resnet10t:weights=none.pt", "none.pt cannot be read: No such file or directory"
    ),
    key("models=torchvision:squeezenet1_1", "no nn.Linear runs in its forward"),
    key(
        "representation-width=0", "representation-width is 0; allowed: an integer ≥ 1 and ≤ 100000"
    ),
    key("min-clients=11", "min-clients is 11; allowed: auto, or at most clients, which is 10"),
    key("clients=7", "7 clients × 2 classes a client is not a multiple of the 10 classes"),
    key(
        "clients=1000 partition.kind=iid",
        "digits has 1797 images, 10 for each client: allowed ≤ 179",
    ),
    key("image-size=7", "image-size is 7; allowed: auto, or an integer ≥ 8 and ≤ 4096"),
    key(
        "input-shape=3x32",
        "input-shape is 3x32; allowed: auto, or 3x32x32, which dataset 'digits' has",
    ),
    key(
        "input-shape=2x32x32",
        "input-shape is '2x32x32'; allowed: auto, or CHANNELSxHEIGHTxWIDTH of images (1 or 3"
        " channels",
    ),
    key("input-shape=3,32,32", "input-shape is '3,32,32'; allowed: auto"),
    key("input-shape=1x1x1x1", "input-shape is '1x1x1x1'; allowed: auto"),
    key("input-shape=9999999x9999999", "input-shape is '9999999x9999999'; allowed: auto"),
    key(
        "input-shape=3x64x64 image-size=32",
        "image-size is 32, and input-shape 3x64x64: make them equal, or set only one",
    ),
    key(
        "data.class-names=a,a",
        "data.class-names is 'a,a'; allowed: auto, or at least two names, each once",
    ),
    key("partition.min-samples=9", "partition.min-samples is 9; allowed: an integer ≥ 10"),
    key(
        "train=half",
        "train is 'half'; allowed: all | head | lora, or several of them, separated by commas",
    ),
    key("train=head,", "separated by commas; '' is none"),
    key("aggregation=mode", "aggregation is 'mode'; allowed: mean | median | trimmed-mean | krum"),
    key(
        "aggregation=median aggregation.liars=0", "aggregation.liars is 0; allowed: an integer ≥ 1"
    ),
    key(
        "aggregation=median aggregation.liars=5",
        "aggregation.liars is 5; with aggregation=median a round needs 11 clients then, and one"
        " has 10",
    ),
    key(
        "aggregation=krum participation=0.4 method=fedavg models=cnn5",
        "aggregation.liars is 1; with aggregation=krum a round needs 5 clients then, and one has 4",
    ),
    key("aggregation=krum method=fedproto", "allowed with method fedproto: mean, median, trimmed"),
    key(
        "aggregation=median method=fedgh", "aggregation is median; allowed with method fedgh: mean"
    ),
    key(
        "aggregation=median method=fedkd", "aggregation is median; allowed with method fedkd: mean"
    ),
    key(
        "aggregation=krum method=pfedlora_plus", "adapter.rows is classes; allowed with aggregation"
    ),
    key(
        "aggregation=median secagg.enabled=true",
        "aggregation is median; allowed with secagg.enabled: mean",
    ),
    key(
        "aggregation=median dp.clip=1 dp.noise=1 adapter.down=fixed",
        "aggregation is median; allowed with dp: mean",
    ),
    key(
        "aggregation=median sharing=none", "sharing is none; allowed with aggregation=median: mean"
    ),
    key("max-weight=3 sharing=start", "sharing is start; allowed with max-weight: mean"),
    key("max-weight=3 secagg.enabled=true", "max-weight is 3; allowed with secagg.enabled: 0, for"),
    key(
        "max-weight=3 dp.clip=1 dp.noise=1 adapter.down=fixed",
        "max-weight is 3; allowed with dp: 0, for every update weighs the same",
    ),
    key(
        "max-weight=3 method=fedlda setting=homogeneous",
        "max-weight is 3; allowed with method fedlda: 0, for a client's later sums are differences",
    ),
    key("max-weight=-1", "max-weight is -1.0; allowed: a number ≥ 0"),
    key("train=lora lora.rank=8,0", "lora.rank is '8,0'; allowed: integers ≥ 1, separated by"),
    key("train=lora models=cnn1", "'cnn1' begins at random, and LoRA is for models that others"),
    key("train=lora lora.init=best", "lora.init is 'best'; allowed: peft | orthogonal | folder:…"),
    key("models=hf:./nowhere", "model 'hf:"),
    key("neck=50", "neck is '50'; allowed: auto | always"),
    key("model-input=4", "model-input is 4; allowed: auto, or an integer ≥ 8 and ≤ 4096"),
    key(
        "representation=pretrained-logits",
        "train is 'all'; allowed with representation=pretrained-logits: head",
    ),
    key(
        "representation=pretrained-logits train=head",
        "representation is pretrained-logits, and model 'cnn1' has no weights with a classifier",
    ),
    key("representation-norm=batch", "representation-norm is 'batch'; allowed: none | layer"),
    key(
        "representation-norm=layer train=lora",
        "train is 'lora'; allowed with representation-norm=layer: all, head",
    ),
    key(
        "normalise=model",
        "normalise is model, and model 'cnn1' has no weights of which the library says how",
    ),
    key(
        "partition.samples-per-client=1",
        "partition.samples-per-client is 1; allowed: auto, or an integer ≥ 2",
    ),
    key(
        "partition.kind=natural",
        "partition.kind is natural, and digits has no owners of samples",
    ),
    key("partition.classes-per-client=11", "partition.classes-per-client is 11; allowed: 1 to 10"),
    key(
        "clients=100 dataset=synthetic:1000 partition.kind=dirichlet partition.alpha=0.1",
        "raise alpha or use fewer clients",
    ),
    key("classes=3", "classes is 3; allowed: auto, or 10, which dataset 'digits' has"),
    key("classes=20", "classes is 20; allowed: auto, or 10"),
    key("adapter=3", "adapter is a section, not a key; its keys: adapter.kind, "),
    key("adapter.kind=wide", "adapter.kind is 'wide'; allowed: auto | reduced"),
    key("adapter.kind=reduced", "one adapter cannot fit representations of different widths"),
    key(
        "adapter.hidden-dim=100000000",
        "adapter.hidden-dim is 100000000; allowed: an integer ≥ 1 and ≤ 10000",
    ),
    key(
        "method-options=a=b",
        "which is for a package.module:Class method; the options of pfedlora are keys:"
        " adapter.kind",
    ),
    key("secagg=true", "secagg is a section, not a key; its keys: secagg.enabled, "),
    key(
        "secagg.enabled=true method=fd",
        "method fd does not take a mean of uploads; secagg.enabled needs one that does: pfedlora, ",
    ),
    key("secagg.enabled=true sharing=start", "sharing is start; allowed with secagg.enabled: mean"),
    key(
        "secagg.enabled=true participation=0.2",
        "secagg.enabled needs 3 to 1023 sampled clients, clients × participation gives 2",
    ),
    key(
        "secagg.enabled=true clients=2000 dataset=synthetic:40000",
        "sampled clients, clients × participation gives 2000",
    ),
    key("secagg.enabled=true secagg.clip=0.3", "secagg.clip is 0.3; allowed: a power of two"),
    key(
        "secagg.enabled=true secagg.shares=6",
        "secagg.shares is 6; allowed: auto, or an odd integer ≥ 5",
    ),
    key(
        "secagg.enabled=true secagg.shares=11",
        "secagg.shares is 11; allowed: at most the 10 sampled clients",
    ),
    key(
        "secagg.enabled=true partition.kind=iid secagg.max-samples=100",
        "secagg.max-samples is 100; allowed: at least 144, the training samples of client 0",
    ),
    key("secagg.shares=3", "secagg.shares is 3; allowed: auto, or an integer ≥ 5"),
    key("dp=true", "dp is a section, not a key; its keys: dp.level, "),
    key("dp.noise=1", "dp.clip is not set: give the L2 norm that an update is clipped to"),
    key("dp.clip=1", "dp needs one of dp.noise and dp.epsilon, and neither is set"),
    key(
        "dp.clip=1 dp.noise=1 dp.epsilon=8",
        "dp needs one of dp.noise and dp.epsilon, and both are set",
    ),
    key("dp.clip=0 dp.noise=1", "dp.clip is 0.0; allowed: auto, or a number > 0"),
    key("dp.clip=1 dp.noise=-1", "dp.noise is -1.0; allowed: auto, or a number ≥ 0"),
    key("dp.clip=1 dp.epsilon=1e-13", "dp.epsilon is 1e-13; allowed: auto, or a number ≥ 0.001"),
    key(
        "dp.clip=1 dp.noise=1 method=fd",
        "method fd does not take a mean of uploads; dp needs one that does: pfedlora, ",
    ),
    key(
        "dp.clip=1 dp.noise=1 method=pfedlora_plus",
        "adapter.rows is classes; allowed with dp: samples, because rows weighted by",
    ),
    key(
        "dp.clip=1 dp.noise=1 method=pfedlora_plus adapter.rows=samples adapter.down=trained",
        "adapter.down is trained; allowed with dp: fixed",
    ),
    key("dp.clip=1 dp.noise=1", "adapter.down is trained; allowed with dp: fixed"),
    key(
        "dp.clip=1 dp.noise=1 adapter.down=fixed sharing=none",
        "sharing is none; allowed with dp: mean",
    ),
    key(
        "dp.clip=1 dp.noise=1 adapter.down=fixed dp.delta=0.1 clients=10",
        "dp.delta is 0.1; allowed: below 1/clients, which is 0.1",
    ),
    key(
        "dp.clip=1 dp.epsilon=8 adapter.down=fixed dp.delta=1e-16",
        "dp.delta is 1e-16; allowed: a number ≥ 1e-12 and < 1",
    ),
    key(
        "dp.clip=2 dp.noise=1 adapter.down=fixed secagg.enabled=true",
        "dp.clip is 2; allowed with secagg.enabled: at most secagg.clip, which is 1",
    ),
    *(
        key(f"{_OF_RECORDS} {wrong}", told)
        for wrong, told in {
            "method=pfedlora": "method pfedlora does not say that what it sends tells of a",
            "method=fd": "method fd does not say that what it sends tells of a record by noised",
            "train=lora": "train is lora; allowed with dp.level=record: head, because",
            "train=head,all": "train is head,all; allowed with dp.level=record: head",
            "neck=always": "neck is always; allowed with dp.level=record: auto, because a neck is",
            "normalise=federation": "normalise is federation; allowed with dp.level=record: model",
            "normalise=auto": "normalise is auto; allowed with dp.level=record: model, because",
            "augment=true": "augment is true; allowed with dp.level=record: false",
            "secagg.enabled=true": "secagg.enabled is true; allowed with dp.level=record: false",
            "adapter.predict=own": "adapter.predict is own; allowed with dp.level=record: sum",
            "adapter.predict=auto": "adapter.predict is auto; allowed with dp.level=record: sum",
            "adapter.rows=classes": "adapter.rows is classes; allowed with dp: samples",
            "adapter.down=trained": "adapter.down is trained; allowed with dp: fixed",
            "dp.clip=auto": "dp.clip is not set: give the L2 norm that a record's gradient is",
            "models=cnn5": "normalise is model, and model ",
        }.items()
    ),
    key("secagg.threshold=0.66", "secagg.threshold is 0.66; allowed: a number > 0.666667 and < 1"),
    key("secagg.max-samples=0", "secagg.max-samples is 0; allowed: an integer ≥ 1"),
    key("resume=yes overwrite=yes", "resume and overwrite exclude each other"),
    key("mu", "'mu': expected key=value"),
    key("=1", "'=1': expected key=value"),
    unused("partition.alpha=0.1", "partition.alpha is not used: partition.kind is pathological"),
    unused(
        "partition.kind=iid partition.classes-per-client=3",
        "partition.classes-per-client is not used: partition.kind is iid",
    ),
    unused(
        "optimizer=adamw momentum=0.5", "momentum is not used: optimizer is adamw, whose own is 0.9"
    ),
    unused(
        "partition.min-samples=20",
        "partition.min-samples is not used: partition.kind is pathological",
    ),
    unused("lora.rank=4", "lora.rank is not used: train is all"),
    unused(
        "method=lg_fedavg models=cnn1,cnn5 setting=homogeneous",
        "setting is not used: models names the client models",
    ),
    unused(
        "method=pfedlora_plus adapter.predict=sum neck=always pfedlora_plus.mu=0.5",
        "pfedlora_plus.mu is not used: adapter.predict is sum",
    ),
    unused("max-tokens=32", "max-tokens is not used: data.text-column is auto"),
    unused("data.text-column=note", "data.text-column is not used: dataset 'digits' does not take"),
    unused(
        "method=standalone representation-width=64",
        "representation-width is not used: neck is auto, and method standalone takes each model's",
    ),
    unused(
        "models=cnn1 representation-width=64",
        "representation-width is not used: neck is auto, and all clients have the same model",
    ),
    unused("model-input=64", "model-input is not used: no model is of timm or torchvision"),
    unused(
        "data.label-column=y", "data.label-column is not used: dataset 'digits' does not take it"
    ),
    unused(
        "fml.alpha=0.7", "fml.alpha is not used: it is an option of another method than pfedlora"
    ),
    unused(
        "dp.clip=1 dp.noise=1 adapter.down=fixed dp.trained-down=true",
        "dp.trained-down is not used: noise is on no two matrices of an adapter here",
    ),
    unused(
        "dp.clip=1 dp.noise=1 method=lg_fedavg dp.trained-down=true",
        "dp.trained-down is not used: noise is on no two matrices of an adapter here",
    ),
    unused("dp.delta=1e-6", "dp.delta is not used: none of dp.clip, dp.noise and dp.epsilon is"),
    unused(
        "dp.clip=1 dp.noise=1 adapter.down=fixed clip-norm-factor=3",
        "clip-norm-factor is not used: with dp all updates are clipped and weigh the same",
    ),
    unused(
        "audit.uploads=true method=standalone",
        "audit.uploads is not used: method standalone sends nothing",
    ),
    unused(
        "method=pfedlora_plus adapter.predict=sum neck=always adapter.init=lora",
        "adapter.init is not used: adapter.down is fixed, and with adapter.predict=sum the second",
    ),
    unused("aggregation.liars=2", "aggregation.liars is not used: aggregation is mean"),
    unused("secagg.clip=2", "secagg.clip is not used: secagg.enabled is false"),
    unused(
        "secagg.enabled=true clip-norm-factor=3",
        "clip-norm-factor is not used: with secagg.enabled the server sees no single update",
    ),
    unused(
        "secagg.enabled=true partition.kind=iid",
        "secagg.max-samples is 10000, and the largest client has",
    ),
    unused(
        "secagg.enabled=true min-success=0.5",
        "min-success is 0.5; secagg.threshold needs 7 of 10 clients",
    ),
    unused("data-path=data", "data-path is not used: dataset 'digits' takes no files from there"),
    key(
        "audit.uploads=true sharing=none",
        "sharing is none; allowed with audit.uploads: mean",
    ),
    key("audit.upload=true", "unknown key 'audit.upload'; did you mean 'audit.uploads'?"),
    Wrong("run --resume --overwrite", "resume and overwrite exclude each other"),
    Wrong("run --superlink ''", "--superlink is ''; allowed: a connection"),
    Wrong("run --tensorboard", "No such option '--tensorboard'"),
    key(
        "observers=tensorbord",
        "observers names 'tensorbord'; allowed, separated by commas: tensorboard, mlflow, wandb",
    ),
    key("observers=no_such:Class", "observer 'no_such:Class': module 'no_such' cannot be imported"),
    key("observers=math:pi", "observer 'math:pi': expected a class, found float"),
    key("observers=builtins:object", "observer 'builtins:object': it lacks begin"),
    Wrong(
        "run --superlink x --engine local",
        "--engine local trains here, --superlink x on nodes",
    ),
    Wrong("run --superlink x --dry-run", "--dry-run is for simulations"),
    Wrong(
        "run --superlink x --ray y:1",
        "ray is for simulations, --superlink x for real nodes: give only one",
    ),
    Wrong(
        "run --ray y:1 --engine local",
        "ray is 'y:1', a cluster, and --engine local trains in this process: give only one",
    ),
    Wrong(
        "run --ray here -o output=out",
        "ray is 'here'; allowed: HOST:PORT, as `ray start --head` prints it, on a node",
    ),
    Wrong(
        "run --ray ray://127.0.0.1:10001 -o output=out",
        "ray is 'ray://127.0.0.1:10001'; allowed: HOST:PORT",
    ),
    Wrong(
        "run --ray 127.0.0.1:9 -o output=out",
        "ray is '127.0.0.1:9' and nothing answers there (Connection refused); start it",
    ),
    Wrong(
        "run --ray 127.0.0.1:9 -o output=out --dry-run",
        "ray is '127.0.0.1:9' and nothing answers there",
    ),
    Wrong(
        "compare quick/sharing --ray y:1 --engine local",
        "ray is 'y:1', a cluster, and --engine local trains in this process",
    ),
    Wrong(
        "compare quick/sharing --ray y:1 --jobs 2",
        "--jobs is 2; allowed: 1 on a Ray cluster (y:1), of which each run takes all CPUs",
    ),
    Wrong("run --superlink x --port 9", "--port 9 is for simulations"),
    Wrong("run --engine ray", "--engine is 'ray'; allowed: flower, local"),
    Wrong("run --engine local --port 9", "--port 9 is for the engine flower"),
    Wrong("run --port 99999", "port is 99999; allowed: 0 to 65535"),
    Wrong(
        "run --port http",
        "Invalid value for '--port': 'http' is not a valid integer; see pfedlora run --help",
    ),
    Wrong("run --rounds 3", "No such option '--rounds'; see pfedlora run --help"),
    Wrong("run a.yaml b.yaml", "unexpected extra argument (b.yaml)"),
    Wrong("run -o", "Option '-o' requires an argument"),
    Wrong("train", "No such command 'train'. Did you mean 'align'? see pfedlora --help"),
    Wrong("zzz", "No such command 'zzz'; see pfedlora --help"),
    Wrong("compare", "Missing argument 'CONF'; see pfedlora compare --help"),
    Wrong("predict run a.png", "give either --client K or --all-clients"),
    Wrong("predict run --client one a.png", "Invalid value for '--client': 'one'"),
    Wrong(
        "predict run --client -1 a.png", "Invalid value for '--client': -1 is not in the range x>=0"
    ),
    Wrong("export run --client 0", "--format FORMAT is missing: a client's model needs --client"),
    Wrong("report a b", "a is not a directory"),
    Wrong("report a --target 2", "target-accuracy is 2.0; allowed: auto, or a number > 0 and ≤ 1"),
    Wrong(
        "report a --target nan", "target-accuracy is nan; allowed: auto, or a number > 0 and ≤ 1"
    ),
    Wrong(
        "compare quick/table2 --seeds one",
        "--seeds is 'one'; allowed: integers separated by commas",
    ),
    Wrong(
        "compare quick/table2 --methods fedsgd",
        "--methods 'fedsgd' is not in the comparison; allowed: ",
    ),
    Wrong("compare quick/table2 --methods ,", "--methods is ','; allowed: names separated by"),
    Wrong("compare quick/table2 --seeds ''", "--seeds is ''; allowed: integers separated by"),
    Wrong("compare quickstart", "a run's keys are for `pfedlora run`, or stand in base"),
    Wrong("compare quick/table2 --only rounds=3", "expected key=value with a key of an axis"),
    Wrong(
        "compare quick/table2 --engine ray --dry-run",
        "--engine is 'ray'; allowed: auto, flower, local",
    ),
]
BASIC = (
    "methods: [standalone, pfedlora]\nseeds: [0, 1]\nbase: {clients: 4, rounds: 2, partition:"
    " {kind: iid}, dataset: 'synthetic:100', models: 'tests.methods.narrow:Narrow'}\n"
)
YAML = [
    conf("- a\n- b\n", "expected `key: value` lines, found list"),
    conf("rounds\n", "expected `key: value` lines, found str"),
    conf("a: [1\nb: 2\n", "not valid YAML at line 2, column 2: expected ',' or ']'"),
    conf("a: {b\n", "not valid YAML at line 2, column 1"),
    conf("rounds: 1\n\tlr: 0.1\n", "not valid YAML at line 2, column 1"),
    conf("rounds:1\nlr: 0.1\n", "not valid YAML at line 2"),
    conf(
        "rounds: 1\nlr: 0.1\nrounds: 0\n",
        "not valid YAML at line 3, column 1: 'rounds' is there twice",
    ),
    conf("partition: {kind: iid, kind: dirichlet}\n", "line 1, column 24: 'kind' is there twice"),
    conf(
        "partition: {kind: iid}\npartition.kind: dirichlet\n",
        "partition.kind appears twice, under its section and with a dot",
    ),
    conf(
        b"rounds: 1\nname: gr\xfc\xdf\n", "not valid YAML at line 2: it is not in UTF-8 (byte 0xfc)"
    ),
    conf(
        "rounds: 1\n".encode("utf-16"), "not valid YAML at line 1: it is not in UTF-8 (byte 0xff)"
    ),
    conf(b"rounds: 1\0\n", "not valid YAML"),
    conf(made.picture(), "not valid YAML at line 1"),
    conf("rounds: [1, 2]\n", "rounds is [1, 2]; allowed"),
    conf("rounds: {a: 1}\n", "unknown key 'rounds.a'"),
    conf("rounds:\n", "rounds is None; allowed"),
    conf("rounds: 1:30\n", "rounds is '1:30'; allowed"),
    conf("rounds: '3'\n", "rounds is '3'; allowed"),
    conf("1: 2\n", "unknown key '1'"),
    conf(
        "clients: 3\ninput-shape: 4\ndata.class-names: benign,malignant,normal\n",
        "which dataset 'digits' has; without a superlink this run is a simulation, of dataset"
        " 'digits'",
    ),
    conf("? [a]\n: 1\n", "not valid YAML"),
    conf("adapter: decomposed\n", "adapter is a section, not a key; its keys: adapter.kind, "),
    conf(
        "adapter: {kindd: reduced}\n", "unknown key 'adapter.kindd'; did you mean 'adapter.kind'?"
    ),
    conf("partition: {}\nadapter:\n", "adapter is a section, not a key"),
    conf(
        "mu: 0.5\n---\nmu: 0.9\n", "not valid YAML at line 2, column 1: but found another document"
    ),
    conf("mu: *there\n", "not valid YAML at line 1, column 5: found undefined alias 'there'"),
    conf("partition: &a {kind: *a}\n", "conf.yaml: kind holds itself"),
    conf(
        "mu: !!python/object/apply:os.system [true]\n",
        "not valid YAML at line 1, column 5: could not determine a constructor",
    ),
    conf("output: 2026-01-01\n", "output is datetime.date(2026, 1, 1); allowed: text"),
    conf('output: "a\\0b"\n', "cannot be used as a path (embedded null byte)"),
    conf(
        "methods: [pfedlora]\nbase: {rounds: 2}\n",
        "is a comparison (it has methods): use pfedlora compare",
    ),
    conf(
        "rounds: 2\nabout: {format: 3}\n",
        "is the file of a run (it has about): continue that by --resume",
    ),
    conf("", "methods: expected a list of at least one value", "compare"),
    conf("rounds: 2\n", "unknown key 'rounds'; allowed: base, methods, seeds, axes", "compare"),
    conf("- 1\n", "expected `key: value` lines, found list", "compare"),
    conf("metods: [fd]\n", "unknown key 'metods'; allowed: base, methods, seeds, axes", "compare"),
    conf("methods: pfedlora\n", "methods: expected a list of at least one value", "compare"),
    conf("methods: [1]\n", "methods is [1]; allowed: names of methods", "compare"),
    conf("base: 3\nmethods: [fd]\n", "base: expected `key: value` lines, found int", "compare"),
    conf(
        BASIC.replace("rounds", "runds"),
        "base: unknown key 'runds'; did you mean 'rounds'?",
        "compare",
    ),
    conf(
        BASIC.replace("rounds: 2", "rounds: 0"),
        "base: rounds is 0; allowed: an integer ≥ 1",
        "compare",
    ),
    conf(
        BASIC.replace("pfedlora", "fedlora"),
        "method is 'fedlora'; did you mean 'pfedlora'? allowed:",
        "compare",
    ),
    conf(
        BASIC.replace("standalone, ", "").replace(
            "rounds: 2", "secagg: {enabled: true, max-samples: 5}"
        ),
        "pfedlora, seed 0: secagg.max-samples is 5; allowed: at least",
        "compare",
    ),
    conf(BASIC.replace("[0, 1]", "[0, 0]"), "seeds: a value appears twice", "compare"),
    conf(BASIC.replace("[0, 1]", "[a]"), "seeds is ['a']; allowed: integers ≥ 0", "compare"),
    conf(BASIC.replace("rounds: 2", "seed: 2"), "set by compare itself: use seeds", "compare"),
    conf(BASIC + "axes: {mu: []}\n", "axes.mu: expected a list of at least one value", "compare"),
    conf(
        BASIC + "axes: {mu: [2]}\n", "axes.mu: mu is 2.0; allowed: a number ≥ 0 and ≤ 1", "compare"
    ),
    conf(
        BASIC + "axes: {speed: [1, 2]}\n",
        "axes.speed: 'speed' is no key of a run, so each of its values must set some",
        "compare",
    ),
    conf(
        BASIC + "axes: {federation: [{client: 2}]}\n",
        "axes.federation: unknown key 'client'",
        "compare",
    ),
    conf(
        BASIC + "axes: {mu: {try: [0.5]}}\n",
        "axes.mu: expected a list of values, or {tune: [values], methods: [names]}",
        "compare",
    ),
    conf(
        BASIC + "axes: {mu: {tune: [0.5], methods: [fml]}}\n",
        "axes.mu: 'fml' is not among the methods: standalone",
        "compare",
    ),
    conf(
        BASIC + "axes: {method-options: [a/b, a-b]}\n",
        "would share the folder method-options-a-b/standalone/seed-0",
        "compare",
    ),
    conf(
        BASIC + 'axes: {models: {tune: ["cnn1,cnn2", "cnn1, cnn2"]}}\n',
        "would share the folder standalone_models-cnn1-cnn2",
        "compare",
    ),
    conf(BASIC + "axes: {mu: [0.5], more: [{mu: 0.6}]}\n", "mu is on two axes", "compare"),
    conf(
        BASIC + "axes: {sharing: {tune: [none, mean]}}\n",
        "axes.sharing: sharing cannot be tuned: it would choose the task or the control",
        "compare",
    ),
    conf(
        BASIC + "axes: {part: {tune: [{partition: {classes-per-client: 2}}]}}\n",
        "axes.part: partition.classes-per-client cannot be tuned",
        "compare",
    ),
    conf(
        "methods: [fedavg, pfedlora]\n",
        "fedavg: method fedavg needs the same model at all",
        "compare",
    ),
    conf(
        "methods: [pfedlora]\nbase: {rounds: 2}\naxes: {clients: [5, 4]}\n",
        "pfedlora, clients=4, seed 0: 4 clients × 2",
        "compare",
    ),
    conf(
        "methods: [pfedlora]\nbase: {rounds: 2}\naxes: {clients: [5, 4]}\n",
        "pfedlora, clients=4, seed 0: 4 clients",
        "compare --dry-run",
    ),
]
MANY = np.arange(30) % 3
GAPS = np.where(np.arange(60) == 9, np.nan, np.arange(60)).reshape(30, 2)
DATA = [
    data("npz:own.npz", "own.npz does not exist"),
    data(
        "npz:own.npz", "own.npz: it is not an npz file; expected", made.files(own__npz="no archive")
    ),
    data("npz:own.npz", "own.npz: it is not an npz file; expected", made.files(own__npz="")),
    data("npz:own.npz", "own.npz: it is damaged or cut off; expected", made.cut_npz),
    data("npz:own", "own: Is a directory; expected an npz with", made.folder("own")),
    data(
        "npz:own.npz",
        "own.npz: it is an .npy file of one array: save all arrays together by np.savez",
        lambda folder: np.save((folder / "own.npz").open("wb"), np.zeros(3)),
    ),
    data(
        "npz:own.npz",
        "own.npz: it holds x, y; expected an npz with `images` or `inputs`, and `labels` [n]",
        lambda folder: np.savez(folder / "own.npz", x=np.zeros(3), y=np.zeros(3)),
    ),
    data("npz:", "dataset is 'npz:'; allowed: digits"),
    data(
        "npz:own.npz",
        "images is float64 [30, 32, 32, 3]",
        made.npz(np.zeros((30, 32, 32, 3)), MANY),
    ),
    data(
        "npz:own.npz",
        "images is float32 [30, 28, 28]; expected uint8 [n, h",
        made.npz(np.zeros((30, 28, 28), np.float32), MANY),
    ),
    data(
        "npz:own.npz",
        "scale images to 0 … 255 and save them as uint8, or call series",
        made.npz((30, 784), MANY),
    ),
    data("npz:own.npz", "images is uint8 [30, 32, 32, 4]", made.npz((30, 32, 32, 4), MANY)),
    data("npz:own.npz", "inputs is float64 [30]", made.npz(MANY / 1, MANY, key="inputs")),
    data(
        "npz:own.npz",
        "inputs[4, 1] is nan; expected finite numbers",
        made.npz(GAPS, MANY, key="inputs"),
    ),
    data(
        "npz:own.npz",
        "clients is float64 [30]; expected integers or text [n]",
        made.npz((30, 8, 8), MANY, clients=MANY / 1),
    ),
    data(
        "npz:own.npz",
        "image-size is 16; allowed: auto, for npz:",
        made.npz(GAPS[:, :1], MANY, key="inputs"),
        more="-o image-size=16",
    ),
    data(
        "npz:own.npz",
        "input-shape is 13; allowed: auto, or 1, which",
        made.npz(GAPS[:, :1], MANY, key="inputs"),
        more="-o input-shape=13",
    ),
    data(
        "npz:own.npz",
        "has no owners of samples: a table does by",
        made.npz(GAPS[:, :1], MANY, key="inputs"),
        more="-o partition.kind=natural",
    ),
    data(
        "npz:own.npz",
        "has 2 owners of at least 10 samples (1 have fewer and are left out): set clients=2",
        made.npz(GAPS[:, :1], MANY, clients=np.arange(30) // 14, key="inputs"),
        more="-o partition.kind=natural",
    ),
    data(
        "npz:own.npz",
        "has 0 owners of at least 11 samples (3 have fewer and are left out): lower"
        " partition.min-samples",
        made.npz(GAPS[:, :1], MANY, clients=MANY, key="inputs"),
        more="-o partition.kind=natural -o partition.min-samples=11",
    ),
    data("npz:own.npz", "images is uint8 [30, 3, 32, 32]", made.npz((30, 3, 32, 32), MANY)),
    data(
        "npz:own.npz",
        "images is uint8 [100, 32, 32, 3], labels int64 [50]; expected",
        made.npz((100, 32, 32, 3), np.arange(50)),
    ),
    data("npz:own.npz", "of one column take labels[:, 0]", made.npz((30, 8, 8), MANY[:, None])),
    data(
        "npz:own.npz",
        "methods here classify, and predict no numbers (regression)",
        made.npz((30, 8, 8), MANY / 1),
    ),
    data("npz:own.npz", "(multi-label)", made.npz((30, 8, 8), np.ones((30, 3), int))),
    data("npz:own.npz", "labels.argmax(1)", made.npz((30, 8, 8), np.eye(3, dtype=int)[MANY % 3])),
    data(
        "npz:own.npz",
        ": methods here classify, and predict no numbers"
        " (regression); if they are classes, set classes=150",
        made.npz((600, 4), np.arange(600) // 4, key="inputs"),
    ),
    data("npz:own.npz", "set classes=15", made.npz((30, 4), np.arange(30) // 2, key="inputs")),
    data("npz:own.npz", "number the classes from 0", made.npz((30, 8, 8), MANY.astype(str))),
    data(
        "npz:own.npz",
        "own.npz: `labels` holds objects: save it as numbers, or as text; expected an npz with",
        made.npz((30, 32, 32, 3), np.array([None] * 30)),
    ),
    data("npz:own.npz", "it has no images", made.npz((0, 32, 32, 3), np.zeros(0, int))),
    data(
        "npz:own.npz",
        "all labels are 0; expected at least two classes",
        made.npz((30, 32, 32, 3), np.zeros(30, int)),
    ),
    data(
        "npz:own.npz",
        "labels go from -1 to 28; allowed: 0 to 99999",
        made.npz((30, 32, 32, 3), np.arange(30) - 1),
    ),
    data(
        "npz:own.npz",
        "labels go from 0 to 9223372036854775808",
        made.npz((2, 32, 32, 3), np.array([0, 2**63], np.uint64)),
    ),
    data(
        "npz:own.npz",
        "labels go up to 2, and class_names names 0 to 1",
        made.npz((30, 32, 32, 3), MANY, class_names=["a", "b"]),
    ),
    data(
        "npz:own.npz",
        "class_names has 'a' twice",
        made.npz((30, 32, 32, 3), MANY, class_names=["a", "b", "a"]),
    ),
    data(
        "npz:own.npz",
        "own.npz: class_names is <U3 []; expected [n]",
        made.npz((30, 32, 32, 3), MANY, class_names="abc"),
    ),
    data("npz:own.npz", "has 5 images; a client needs 10", made.npz((5, 32, 32, 3), np.arange(5))),
    data(
        "folder:own", "own does not exist; expected a folder of one folder of images for each class"
    ),
    data(
        "folder:own",
        "own does not exist; expected a folder of one folder",
        made.files(own="a file"),
    ),
    data(
        "folder:own",
        "expected at least two class folders with images (PNG, JPEG",
        made.folder("own"),
    ),
    data(
        "folder:own",
        "expected at least two class folders with images (PNG, JPEG",
        made.images({"cats": ["png"]}),
    ),
    data(
        "folder:own",
        "expected at least two class folders with images (PNG, JPEG",
        made.images({".": ["png"] * 20}),
    ),
    data(
        "folder:own",
        "expected at least two class folders",
        made.images({"cats": ["tga"] * 20, "dogs": ["ppm"] * 20}),
    ),
    data(
        "folder:own",
        "own/cats/0.png: no readable image",
        made.images({"cats": [b"text"], "dogs": ["png"]}),
    ),
    data(
        "folder:own",
        "own/cats/0.png: no readable image",
        made.images({"cats": [b""], "dogs": ["png"]}),
    ),
    data(
        "folder:own",
        "0.png: no readable image",
        made.images({"cats": [made.picture()[:900]], "dogs": [made.picture()]}),
    ),
    data(
        "folder:own",
        "0.png: no readable image",
        made.images({"cats": [made.picture("tga")], "dogs": ["png"]}),
    ),
    data(
        "folder:own",
        "(a/0.png has 8 × 8 pixels and b/0.png has 64 × 64 pixels): set image-size",
        made.images({"a": ["png"], "b": [made.picture()]}),
    ),
    data(
        "folder:own",
        "has 4 images; a client needs 10",
        made.images({"cats": ["png"] * 2, "dogs": ["jpg"] * 2}),
    ),
    data("csv:t.csv", "t.csv does not exist"),
    data(
        "csv:t.csv",
        "t.csv: it is gzipped; call it t.csv.gz",
        made.raw("t.csv", gzip.compress(b"a,label\n1,x\n")),
    ),
    data(
        "csv:t.csv",
        "t.csv: its text is not UTF-8",
        made.raw("t.csv", "a,label\n1,x\n".encode("utf-16")),
    ),
    data(
        "csv:t.csv",
        "remove the comment from its first line, which names the columns",
        made.files(t__csv="# made today\na,b,label\n1,2,x\n"),
    ),
    data(
        "csv:t.csv",
        "is this the separator? set data.sep=semicolon",
        made.files(t__csv="a;b;label\n1;2;x\n"),
    ),
    data(
        "csv:t.csv",
        "is this the separator? set data.sep=tab",
        made.files(t__csv="a\tb\tlabel\n1\t2\tx\n"),
    ),
    data(
        "csv:t.csv",
        "its first line has another separator: set data.sep=semicolon",
        made.files(t__csv="a;b;label\n1,5;2,5;x\n"),
    ),
    data(
        "csv:t.csv",
        "it is a zip archive, as an Excel file is: save it as CSV",
        made.raw("t.csv", b"PK\x03\x04" + bytes(50)),
    ),
    data("csv:t.csv", "t.csv: no readable table (", made.files(t__csv="")),
    data(
        "csv:t.csv",
        "t.csv: no readable table (CSV parse error: Expected 2 columns, got 3",
        made.files(t__csv="a,label\n1,x\n1,2,x\n"),
    ),
    data(
        "csv:t.csv", "t.csv has 2 rows; a client needs 10", made.files(t__csv="a,label\n1,x\n2,y\n")
    ),
    data("csv:t.csv", "t.csv: it has no rows", made.files(t__csv="a,label\n")),
    data(
        "csv:t.csv",
        "t.csv: it has no column 'label', but a, y; mend data.label-column",
        made.files(t__csv="a,y\n1,x\n2,y\n"),
    ),
    data(
        "csv:t.csv",
        "t.csv: column 'label' holds double; expected text or integers",
        made.files(t__csv="a,label\n1,0.5\n2,1\n"),
    ),
    data(
        "csv:t.csv",
        "t.csv: column 'label' has no value in row 2, and 1 are missing",
        made.files(t__csv="a,label\n1,x\n2,\n"),
    ),
    data(
        "csv:t.csv",
        "t.csv: all labels are x; expected at least two classes",
        made.files(t__csv="a,label\n1,x\n2,x\n"),
    ),
    data(
        "csv:t.csv",
        "no columns of features beside label, and no numbers in a (string)",
        made.files(t__csv="a,label\nred,x\n2,y\n"),
    ),
    data(
        "csv:t.csv",
        "t.csv: column 'a' has no value in row 2, and 1 are missing",
        made.files(t__csv="a,label\n1,x\nnan,y\n"),
    ),
    data(
        "csv:t.csv",
        "t.csv: column 'a' is inf in row 1; expected finite numbers",
        made.files(t__csv="a,label\ninf,x\n2,y\n"),
    ),
    data(
        "csv:t.csv",
        "t.csv: column 'a' is 1e+40 in row 2; expected finite numbers below 3e38",
        made.files(t__csv="a,label\n1,x\n1e40,y\n"),
    ),
    data(
        "csv:t.csv",
        "t.csv: it has 2 columns 'a'; mend its header",
        made.files(t__csv="a,a,label\n1,2,x\n2,3,y\n"),
    ),
    data(
        "csv:t.csv",
        "t.csv: its first column has no name, as a row index has: write",
        made.files(t__csv=",a,label\n0,1,x\n1,2,y\n"),
    ),
    data(
        "csv:t.csv",
        "t.csv: its text is not UTF-8; save it anew",
        made.files(t__csv="größe,label\n1,x\n2,y\n".encode("latin-1")),
    ),
    data(
        "csv:t.csv",
        "t.csv: its text is not UTF-8; save it anew",
        made.files(t__csv="a,label\n1,grün\n2,rot\n".encode("latin-1")),
    ),
    data(
        "csv:t.csv",
        "t.csv: column 'label' is the label, and data.client-column, too: mend it, or"
        " data.label-column",
        made.files(t__csv="a,label\n1,x\n2,y\n"),
        more="-o data.client-column=label",
    ),
    data(
        "csv:t.csv",
        "t.csv: it has no columns of features beside label",
        made.files(t__csv="label\nx\ny\n"),
    ),
    data(
        "csv:t.csv",
        "it has no column 'site', but a, label; mend data.client-column",
        made.files(t__csv="a,label\n1,x\n2,y\n"),
        more="-o data.client-column=site",
    ),
    data("parquet:t.csv", "t.csv: no readable table (", made.files(t__csv="a,label\n1,x\n2,y\n")),
    data("hf:./own", "dataset 'hf:/", made.files(own="a file")),
    data("hf:./own", "own' cannot be read: ", made.folder("own")),
    data("hf:some/name", "some/name': the hub does not give it (", made.no_hub),
    data(
        "own_data:nowhere",
        "dataset 'own_data:nowhere': module 'own_data' has no 'nowhere'",
        made.own_code,
    ),
    data("own_date:raises", "module 'own_date' cannot be imported from", made.own_code),
    data(
        "own_data:raises",
        "dataset 'own_data:raises': RuntimeError: in the function, at own_data.py:",
        made.own_code,
    ),
    data(
        "own_data:none",
        "dataset 'own_data:none': it returned None, expected (inputs, labels, class names), or a"
        " dict",
        made.own_code,
    ),
    data(
        "own_data:other", "it returned a dict of inputs, labels, weights, expected", made.own_code
    ),
    data(
        "own_data:uneven",
        "dataset 'own_data:uneven': ValueError: setting an array element",
        made.own_code,
    ),
    data("own_data:short", "inputs is int64 [4, 3], labels int64 [3]; expected", made.own_code),
    data("own_data:value", "TypeError: 3 is not a callable object", made.own_code),
    data(
        "synthetic:none",
        "dataset is 'synthetic:none'; allowed: synthetic:COUNT with 10 to 5000000 images",
    ),
    data("synthetic:9", "allowed: synthetic:COUNT with 10 to 5000000 images"),
    data("synthetic:-100", "allowed: synthetic:COUNT with 10 to 5000000 images"),
    data("synthetic:99999999999", "allowed: synthetic:COUNT with 10 to 5000000 images"),
    data("cifar10", "data-path '/nowhere' does not exist", more="-o data-path=/nowhere"),
    data("cifar10", "data' does not exist", made.files(data="file"), more="-o data-path=data"),
    data(
        "cifar10",
        "holds neither train.parquet and test.parquet nor cifar-10-batches-py/",
        made.folder("data"),
        more="-o data-path=data",
    ),
    data(
        "cifar10",
        "test.parquet is missing: both",
        made.parquets({}, None),
        more="-o data-path=data",
    ),
    data("cifar10", "train.parquet is corrupt", made.cut_parquet, more="-o data-path=data"),
    data(
        "cifar10",
        "train.parquet is corrupt or no cifar10 file",
        made.parquets({"column": "x"}, {}),
        more="-o data-path=data",
    ),
    data(
        "cifar100",
        "train.parquet is corrupt or no cifar100 file",
        made.parquets({}, {}),
        more="-o data-path=data",
    ),
    data(
        "cifar10",
        "an image of (28, 28, 3)",
        made.parquets({"size": 28}, {}),
        more="-o data-path=data",
    ),
    data(
        "cifar10",
        "the labels are not cifar10's (0 to 9)",
        made.parquets({"label": 90}, {}),
        more="-o data-path=data",
    ),
    data(
        "cifar10",
        "data holds no images",
        made.parquets({"count": 0}, {"count": 0}),
        more="-o data-path=data",
    ),
    data(
        "cifar10",
        "cifar-10-batches-py is corrupt or not cifar10's",
        made.batches(made.os.system),
        more="-o data-path=data",
    ),
    data(
        "synthetic:120",
        "is damaged (mmap length is greater than file size); remove it; it will be created again",
        made.cut_cache,
    ),
]
OWN_CODE = [
    code(
        "models=own_models:ForwardRaises",
        "model 'own_models:ForwardRaises': RuntimeError: in forward, at own_models.py:",
    ),
    code(
        "models=own_models:ConstructorRaises", "RuntimeError: in the constructor, at own_models.py:"
    ),
    code("models=own_models:EncoderRaises", "RuntimeError: Given groups=1"),
    code("models=own_models:EncoderNone", "the encoder gives None, expected a tensor"),
    code(
        "models=own_models:Wide", "the encoder gives [2, 3072] for 2 images, its head takes [2, 20]"
    ),
    code(
        "models=own_models:Maps",
        "the encoder gives [2, 3, 32, 32] for 2 images, its head takes [2, 20]",
    ),
    code(
        "models=own_models:Double",
        "model 'own_models:Double': RuntimeError: mat1 and mat2 must have the same dtype",
    ),
    code(
        "models=own_models:NoHead",
        "expected an nn.Module with a `forward`, or with an `encoder` and a `head`",
    ),
    code("models=own_models:OtherHead", "its head gives 7 logits, the dataset has 10 classes"),
    code(
        "models=own_models:NoSuper",
        "AttributeError: cannot assign module before Module.__init__() call, at own_models.py:",
    ),
    code(
        "models=own_models:Differs",
        "its forward gives something else than its last linear layer, 'head', on what comes before",
    ),
    code(
        "models=own_models:NoLinear", "no nn.Linear runs in its forward; the last one is its head"
    ),
    code("models=own_models:Nan", "diverged in round 1: client 0: its loss is nan (and 1 more)", 1),
    code(
        "models=own_models:Lazy",
        "module.later.weight has no shape: it belongs to a lazy layer that does not run",
    ),
    code(
        "models=own_models:Tied",
        "one.weight and module.other.weight are one tensor; allowed: trained",
    ),
    code(
        "models=own_models:Late",
        "clients 0, 1: ValueError: in training alone, at own_models.py:",
        1,
    ),
    code("models=own_models:function", "expected an nn.Module"),
    code("models=own_models:value", "TypeError: 'int' object is not callable"),
    code("models=own_models:Nowhere", "module 'own_models' has no 'Nowhere'"),
    code("models=own_models:", "module 'own_models' has no ''"),
    code("models=:Good", "model ':Good': ValueError: Empty module name"),
    code("models=own_models.py:Good", "module 'own_models.py' cannot be imported from "),
    code("models=./own_models:Good", "'./own_models:Good'"),
    code("models=nowhere:X", "module 'nowhere' cannot be imported from "),
    code(
        "models=broken_syntax:X",
        "model 'broken_syntax:X': SyntaxError: invalid syntax, at broken_syntax.py:2",
    ),
    code("models=broken_import:X", "KeyError: 'gone', at broken_import.py:2"),
    code("models=broken_exits:X", "SystemExit: 3, at broken_exits.py:2"),
    code(
        "models=broken_needs:X",
        "ModuleNotFoundError: No module named 'no_such_package', at broken_needs.py:1",
    ),
    code("models=broken_bytes:X", "SyntaxError: source code string cannot contain null bytes"),
    code("models=os:path", "model 'os:path': TypeError: 'module' object is not callable"),
    code("models=torch.nn:Linear", "missing 1 required positional argument"),
    code("method=nowhere:Thing", "module 'nowhere' cannot be imported"),
    code("method=json:JSONDecoder", "expected a subclass of pfedlora_flwr.methods.method.Method"),
    code("method=broken_exits:X", "method 'broken_exits:X': SystemExit: 3, at broken_exits.py:2"),
    code("method=own_methods:Abstract", "it lacks aggregate, local_update"),
    code(
        "method=own_methods:InitRaises",
        "method 'own_methods:InitRaises': RuntimeError: in the constructor, at own_methods.py:",
    ),
    code(
        "method=own_methods:NeedsOne",
        "method own_methods:NeedsOne needs the same model at all clients, and theirs are 5; set"
        " setting=homogeneous, or models to one",
    ),
    code(
        "method=own_methods:WrongModel",
        "RuntimeError: Error(s) in loading state_dict for CNN: size mismatch for conv2.weight:"
        " copying a param with shape torch.Size([32, 16, 5, 5]) from checkpoint, the shape in"
        " current model is torch.Size([16, 16, 5, 5]) (and 2 more), at own_methods.py:",
        code=1,
    ),
    code("method=own_methods:CheckRaises", "KeyError: 'in check_experiment', at own_methods.py:"),
    code(
        "method=own_methods:StateNone",
        "method 'own_methods:StateNone': state_init returned None, expected a dict of tensors",
    ),
    code(
        "method=own_methods:StateLists",
        "state_init returned a dict with other values, expected a dict of tensors",
    ),
    code(
        "method=own_methods:PrivateNone",
        "method 'own_methods:PrivateNone': private_init returned None, expected an nn.Module",
    ),
    code(
        "method=own_methods:Integers -o clients=3 -o secagg.enabled=true",
        "shares the integer tensors steps, of which secagg.enabled",
    ),
    code(
        "secagg.enabled=true -o clients=3 -o secagg.clip=9.5367431640625e-07",
        "its update is beyond secagg.clip, 9.53674e-07",
        1,
    ),
    code(
        "method=own_methods:DownloadRaises",
        "method 'own_methods:DownloadRaises': RuntimeError: in download, at own_methods.py:",
    ),
    code("method=own_methods:DownloadNone", "download returned None, expected a dict of tensors"),
    code(
        "method=own_methods:DownloadNone -o sharing=start",
        "download returned None, expected a dict of tensors",
    ),
    code(
        "method=own_methods:PredictShape", "predictor gives [3, 3] for 2 images, expected [2, 10]"
    ),
    code(
        "method=own_methods:PredictRaises",
        "method 'own_methods:PredictRaises': RuntimeError: in predictor, at own_methods.py:",
    ),
    code(
        "method=own_methods:LocalExits",
        "clients 0, 1: method 'own_methods:LocalExits': SystemExit: 5, at own_methods.py:",
        1,
    ),
    code(
        "method=own_methods:LocalImages",
        "AttributeError: 'Samples' object has no attribute 'images', at own_methods.py:",
        1,
    ),
    code(
        "method=own_methods:LocalNone",
        "TypeError: local_update returned None, expected an Upload",
        1,
    ),
    code(
        "method=own_methods:LocalFloat",
        "TypeError: local_update returned an Upload of 3.7 samples, expected an integer",
        1,
    ),
    code(
        "method=own_methods:LocalList",
        "TypeError: local_update returned an Upload whose 'one' is list, no tensor",
        1,
    ),
    code(
        "method=own_methods:LocalNan",
        "diverged in round 1: client 0: down.weight has values that are not finite",
        1,
    ),
    code("method=own_methods:LocalOther", "its tensors are ['other'], expected", 1),
    code(
        "method=own_methods:LocalCount", "its sample count n_k is -1; allowed: an integer from 1", 1
    ),
    code(
        "method=own_methods:AggregateNone", "aggregate returned None, expected a dict of tensors", 1
    ),
    code(
        "method=own_methods:AggregateRaises",
        "AggregateRaises': RuntimeError: in aggregate, at own_methods.py:",
        1,
    ),
    code(
        "method=own_methods:AggregateNan",
        "diverged in round 2: method 'own_methods:AggregateNan': aggregate returned down.weight",
        1,
    ),
    code(
        "method=own_methods:AggregateKeeps",
        "method 'own_methods:AggregateKeeps': aggregate changed self.momentum, which a resumed"
        " run would not have; keep what lasts in the state that it returns",
        1,
    ),
    *(
        code(
            f"method=own_methods:{name}",
            f"method 'own_methods:{name}': its Options is no frozen dataclass; expected"
            " `@dataclass(frozen=True)`",
        )
        for name in ("OptionsPlain", "OptionsThawed", "OptionsBare")
    ),
    code(
        "method=own_methods:AggregateOther",
        "aggregate returned a state of another layout: its tensors are ['foo']",
        1,
    ),
    code(
        "method=own_methods:Options -o method-options=strength",
        "method-options is 'strength'; allowed: key=value key=value",
    ),
    code(
        "method=own_methods:Options -o method-options=strenght=2",
        "has no option 'strenght'; it has: ",
    ),
    code(
        "method=own_methods:Options -o method-options=strength=-2",
        "strength is -2.0; allowed: a number ≥ 0",
    ),
    code(
        "method=own_methods:Options -o 'method-options=name=\"a'",
        "method-options is 'name=\"a': No closing quotation",
    ),
]
THESIS = made.folder("thesis", "thesis.txt")
SAVE = "export run --client 0 --format safetensors"
PATHS = [
    Wrong(
        "run nowhere.yaml",
        "nowhere.yaml: no such file, and not a configuration of the package; those are cifar10, ",
    ),
    Wrong("run quickstar", "quickstar: no such file, and not a configuration of the package; did"),
    Wrong(
        "compare table2", "table2: no such file, and not a configuration of the package; did you"
    ),
    Wrong("run thesis", "thesis: a folder, and not a configuration of the package", [THESIS]),
    Wrong("run ''", "'': no such file, and not a configuration"),
    Wrong("run loop", "loop: no such file, and not a configuration", [made.link("loop", "loop")]),
    Wrong(
        "compare nowhere.yaml",
        "nowhere.yaml: no such file, and not a configuration of the package",
    ),
    Wrong("run -o output=thesis/thesis.txt", "is a file; choose a directory", [THESIS]),
    Wrong(
        "run -o output=thesis/thesis.txt/out",
        "cannot be used as a path (Not a directory)",
        [THESIS],
    ),
    Wrong(
        "run -o output=thesis",
        "is not a run's directory; choose another",
        [THESIS],
    ),
    Wrong(
        "run -o output=thesis --overwrite",
        "is not a run's directory, so it is not overwritten",
        [THESIS],
    ),
    Wrong("run -o output=/ --overwrite", "'/' is not a run's directory, so it is not overwritten"),
    Wrong(
        "run -o output=. --overwrite",
        "is not a run's directory, so it is not overwritten",
        [THESIS],
    ),
    Wrong("run -o output=/proc/nowhere/x", "cannot be written"),
    Wrong("run -o output=/dev/null", "cannot be written (Not a directory)"),
    Wrong(f"run -o output={'x' * 300}", "cannot be used as a path (File name too long)"),
    Wrong(f"list {'x' * 300}", "File name too long"),
    Wrong(
        "run -o output=~nosuchuser/x",
        "'~nosuchuser/x' cannot be used as a path (Could not determine home directory)",
    ),
    Wrong("run --resume -o output=~nosuchuser/x", "'~nosuchuser/x' cannot be used as a path"),
    Wrong("run -o output=loop", "loop", [made.link("loop", "loop")]),
    Wrong("run -o output=gone", "cannot be written", [made.link("gone", "/proc/nowhere")]),
    Wrong(
        "run --dry-run -o output=thesis/thesis.txt/out",
        "cannot be used as a path (Not a directory)",
        [THESIS],
    ),
    Wrong("run -o dataset=npz:~nosuchuser/x.npz", "'~nosuchuser/x.npz' cannot be used as a path"),
    Wrong(
        "run -o dataset=cifar10 -o data-path=~nosuchuser/x",
        "'~nosuchuser/x' cannot be used as a path",
    ),
    Wrong(
        "compare conf.yaml --shard 3/2",
        "--shard is '3/2'; allowed: I/N with 1 ≤ I ≤ N",
        [made.files(conf__yaml=BASIC)],
    ),
    Wrong(
        "compare conf.yaml --shard half",
        "--shard is 'half'; allowed: I/N",
        [made.files(conf__yaml=BASIC)],
    ),
    *(
        Wrong(
            f"compare conf.yaml --jobs {jobs}",
            f"--jobs is '{jobs}'; allowed: auto, or 1 to 256",
            [made.files(conf__yaml=BASIC)],
        )
        for jobs in ("0", "257", "two", "1.5")
    ),
    Wrong(
        "compare conf.yaml --output thesis/thesis.txt",
        "Not a directory",
        [THESIS, made.files(conf__yaml=BASIC)],
    ),
    Wrong("report nowhere", "nowhere is not a directory"),
    Wrong("report thesis/thesis.txt", "thesis/thesis.txt is not a directory", [THESIS]),
    Wrong("report thesis", "thesis holds no completed run", [THESIS]),
    file("report run --output run/result.json", "run/result.json cannot be written (File exists)"),
    file("report run --output /proc/nowhere", "/proc/nowhere cannot be written"),
    Wrong("list nowhere", "nowhere is not a directory"),
    Wrong("list thesis/thesis.txt", "thesis/thesis.txt is not a directory", [THESIS]),
    Wrong("audit nowhere", "nowhere is not a directory"),
    Wrong("audit thesis", "thesis holds no run", [THESIS]),
    Wrong("predict nowhere --client 0 a.png", "nowhere is not a directory"),
    Wrong(
        "predict thesis --client 0 a.png",
        "thesis holds neither a run nor a model of client 0",
        [THESIS],
    ),
    file("predict run --client 0 a.png", "a.png: no such file"),
    file("predict run --client 0 thesis", "thesis: no file of images (.png, .jpg, ", THESIS),
    file(
        "predict run --client 0 thesis/thesis.txt",
        "thesis/thesis.txt: no readable image",
        THESIS,
    ),
    file(
        "predict run --client 0 a.png",
        "a.png: no readable image",
        made.files(a__png=made.picture()[:900]),
    ),
    file(
        "predict run --client 0 a.png",
        "a.png: no readable image",
        made.files(a__png=made.broken_picture()),
    ),
    file("predict run --client 2 a.png", "client is 2; allowed: 0 to 1"),
    file(
        "export run --client 0 --format tflite",
        "format is 'tflite'; allowed: safetensors, torch-export, onnx",
    ),
    file(f"{SAVE} --output thesis", "thesis is a directory; give a file", THESIS),
    file(f"{SAVE} --output thesis/thesis.txt", "exists; replace it with --overwrite", THESIS),
    file(f"{SAVE} --output a", "a.md exists; replace it with", made.files(a__md="irreplaceable")),
    file(f"{SAVE} --output /dev/full --overwrite", "/dev/full is not a regular file"),
    file(f"{SAVE} --output /proc/nowhere/a", "cannot be written"),
    file(
        f"{SAVE} --output thesis/thesis.txt/a", "cannot be used as a path (Not a directory)", THESIS
    ),
]
CONNECTIONS = (
    '[superlink]\ndefault = "a"\n[superlink.a]\naddress = "x:1"\n[superlink.b]\naddress = "y:2"\n'
)
AGAIN, EXTEND, REPLACE = (
    "run --resume -o output=run",
    "run --resume -o output=run -o rounds=3",
    f"run {RUN} --overwrite -o output=run",
)
OTHER = '{"name": "other", "seeds": [0], "tuning_seed": 0, "cells": []}'
COMPARE = made.files(conf__yaml=BASIC)
STATES = [
    Wrong("run --resume", "holds no run to resume: it has no config.yaml"),
    Wrong("run --resume -o output=thesis", "holds no run to resume", [THESIS]),
    Wrong("run --resume -o output=thesis", "holds no run to resume", [made.folder("thesis")]),
    file(
        f"run {RUN} -o output=run", "exists; continue it with --resume, replace it with --overwrite"
    ),
    file(
        f"run {RUN} -o output=run --dry-run",
        "exists; continue it with --resume, replace it with --overwrite",
    ),
    file(
        f"{AGAIN} -o mu=0.9",
        "holds a different Experiment (mu: 0.5 → 0.9); resume it with its own keys",
    ),
    file(f"{AGAIN} -o method=fml", "method: 'pfedlora' → 'fml'"),
    file(f"{AGAIN} conf.yaml", "lr: 0.01 → 0.5", made.files(conf__yaml="lr: 0.5\n")),
    file(f"{AGAIN} -o rounds=1", "ends at 2: it can be extended, not shortened"),
    file(EXTEND, "does not hold the models of 2 clients after round 2", made.without("clients")),
    file(
        EXTEND,
        "with method fedkd each round depends on how many there are",
        made.changed("config.yaml", ": pfedlora", ": fedkd"),
    ),
    file(
        EXTEND,
        "module 'tests.methods.gone' cannot be imported",
        made.changed("config.yaml", "narrow:Narrow", "gone:Gone"),
    ),
    file(
        EXTEND,
        "the data or its partition is not what the run in ",
        made.written("server/partition", "0"),
    ),
    file(AGAIN, "is in use by a running run", made.locked("run/server/lock")),
    file(EXTEND, "is in use by a running run", made.locked("run/server/lock")),
    file(EXTEND, "is in use by a running run", made.locked("run/logs/launch.lock")),
    file("audit run", "is in use by a running run", made.locked("run/server/lock")),
    file(
        "audit run",
        "the data or its partition is not what the run in ",
        made.written("server/partition", "0"),
    ),
    file(
        "audit run",
        "have data of their own, which is not here",
        made.written("server/partition", "own"),
    ),
    file(REPLACE, "is in use by a running run", made.locked("run/server/lock")),
    file(REPLACE, "is in use by a running run", made.locked("run/logs/launch.lock")),
    file(
        "compare conf.yaml --output run",
        "run is in use by a running compare",
        COMPARE,
        made.locked("run/.lock"),
    ),
    file(
        "compare conf.yaml --output run",
        "holds the comparison 'other'",
        COMPARE,
        made.files(run__plan__json=OTHER),
    ),
    Wrong(
        f"run --port {made.PORT} -o output=out",
        "cannot be used (Address already in use); choose another",
        [made.listening],
    ),
    Wrong(
        "run -o output=out",
        "the current folder has been removed; change to an existing one",
        [made.removed_folder],
    ),
    Wrong("list .", "No space left on device", [made.full_stdout]),
    Wrong(
        "run -o dataset=synthetic:130",
        "set PFEDLORA_CACHE to a writable folder",
        [made.environment(PFEDLORA_CACHE="/proc/x")],
    ),
    code("models=broken_patience:X", "stopped by the user", 130),
    Wrong(
        "run --superlink site",
        "which is not there; docs/deployment.md has one",
        [made.environment(FLWR_HOME="flower")],
    ),
    Wrong(
        "run --superlink site",
        "cannot be read as Flower's configuration",
        [made.connections("[superlink")],
    ),
    Wrong(
        "run --superlink site",
        "allowed, by flower/config.toml: none: it has no connection",
        [made.connections("")],
    ),
    Wrong(
        "run --superlink site",
        "--superlink is 'site'; allowed, by flower/config.toml: a, b",
        [made.connections(CONNECTIONS)],
    ),
]
IMAGE = made.files(a__png=made.picture())
PREDICT = "predict run --client 0 a.png"
MODELS, CHECKPOINTS, ABOUT = (
    "clients/0/*.safetensors",
    "server/*.checkpoint",
    "clients/0/about.json",
)
NO_CONFIG = (
    "run/config.yaml cannot be read as a run's configuration; put it back from a copy, or run again"
)
NO_RESULT = "result.json is not the result of a run; remove it; --resume creates it again"
FILES = [
    file(AGAIN, NO_CONFIG, made.written("config.yaml", "")),
    file(AGAIN, NO_CONFIG, made.written("config.yaml", "- 1\n")),
    file(AGAIN, NO_CONFIG, made.written("config.yaml", made.picture())),
    file(AGAIN, NO_CONFIG, made.halved("config.yaml")),
    file(AGAIN, "holds no run to resume: it has no config.yaml", made.gone("config.yaml")),
    file(
        AGAIN,
        "has format 1, and this version reads 3",
        made.changed("config.yaml", "format: 3", "format: 1"),
    ),
    file(
        AGAIN,
        "has format 4, and this version reads 3",
        made.changed("config.yaml", "format: 3", "format: 4"),
    ),
    file(
        AGAIN,
        "config.yaml: unknown key 'later'",
        made.changed("config.yaml", "about:", "later: 3\nabout:"),
    ),
    file(
        AGAIN,
        "run/config.yaml: mu is 5.0; allowed",
        made.changed("config.yaml", "mu: 0.5", "mu: 5"),
    ),
    file(AGAIN, "has no checkpoint of the 3 rounds in rounds.jsonl", made.gone(CHECKPOINTS)),
    file(AGAIN, NO_RESULT, made.written("result.json", "[]")),
    file(AGAIN, "result.json lacks accuracy; remove it", made.result(accuracy=...)),
    file(EXTEND, "no checkpoint in ", made.flipped(CHECKPOINTS)),
    file(
        EXTEND,
        "rounds.jsonl ends at round 0, and 2 rounds are done; restore it",
        made.gone("rounds.jsonl"),
    ),
    file(
        EXTEND,
        "rounds.jsonl ends at round 1, and 2 rounds are done",
        made.cut_lines("rounds.jsonl"),
    ),
    file(
        EXTEND,
        "rounds.jsonl is damaged at line 2 (",
        made.changed("rounds.jsonl", '{"round": 1', "{round: 1"),
    ),
    file(
        EXTEND, "clients.jsonl ends at round 0, and 2 rounds are done", made.gone("clients.jsonl")
    ),
    file(
        EXTEND,
        "server/token is missing, by which nodes recognise the run",
        made.gone("server/token"),
    ),
    file(PREDICT, NO_CONFIG, made.halved("config.yaml")),
    file(PREDICT, "has no checkpoint of the 3 rounds in rounds.jsonl", made.gone(CHECKPOINTS)),
    file(
        PREDICT,
        "can be read (round-000001.checkpoint, round-000002.checkpoint)",
        made.flipped(CHECKPOINTS),
    ),
    file(
        PREDICT,
        "can be read (round-000001.checkpoint, round-000002.checkpoint)",
        made.halved(CHECKPOINTS),
    ),
    file(
        PREDICT,
        "can be read (round-000001.checkpoint, round-000002.checkpoint)",
        made.emptied(CHECKPOINTS),
    ),
    file(
        PREDICT,
        "the model of client 0 is not in run; on a deployed node it is in <state-path>/",
        made.gone(MODELS),
    ),
    file(
        PREDICT,
        "the model of client 0 is not in run",
        made.without("clients"),
        made.gone("server/token"),
    ),
    file(PREDICT, "round-000002.safetensors cannot be read: ", made.halved(MODELS)),
    file(
        PREDICT, "round-000002.safetensors is damaged: its checksum differs", made.flipped(MODELS)
    ),
    file(PREDICT, "round-000002.safetensors cannot be read: ", made.emptied(MODELS)),
    file(
        "predict run/clients --client 0 a.png",
        "run/clients/0 holds no readable model: ",
        made.halved(MODELS),
    ),
    file(SAVE, "is damaged: its checksum differs", made.flipped(MODELS)),
    file(PREDICT, "about.json cannot be read (No such file or directory)", made.gone(ABOUT)),
    file(PREDICT, "about.json cannot be read (", made.halved(ABOUT)),
    file(PREDICT, "about.json lacks experiment, class_names, mean, std", made.written(ABOUT, "{}")),
    file(PREDICT, "about.json lacks mean", IMAGE, made.changed(ABOUT, "mean", "meen")),
    file(
        PREDICT,
        "module 'tests.methods.gone' cannot be",
        made.changed(ABOUT, "narrow:Narrow", "gone:Gone"),
    ),
    file(
        PREDICT,
        "the code here builds another model than client 0 has",
        made.changed(ABOUT, "tests.methods.narrow:Narrow", "cnn5"),
    ),
    file("report run", "the first one there is unfinished after round 2", made.gone("result.json")),
    file("report run", "result.json cannot be read as a result (", made.halved("result.json")),
    file("report run", NO_RESULT, made.written("result.json", "{}")),
    file("report run", NO_RESULT, made.result(status="perfect")),
    file("report run", "result.json lacks per_client; remove it", made.result(per_client=...)),
    file(
        "report run",
        "result.json has format 4, and this version reads 3: another version made this run",
        made.result(format=4),
    ),
    file(
        "report run",
        "the first one there is failed: the disk is full",
        made.result(status="failed", error="the disk is full"),
    ),
    file("report run", "its rounds.jsonl does not reach round 2", made.gone("rounds.jsonl")),
    file("status run", "its rounds.jsonl does not reach round 2", made.gone("rounds.jsonl")),
    file("status run", "run has no config.yaml, as a", made.gone("config.yaml")),
    file("report run", "its rounds.jsonl does not reach round 2", made.cut_lines("rounds.jsonl")),
    file(
        "report run",
        "rounds.jsonl is damaged at line 1 (",
        made.written("rounds.jsonl", "no JSON\n"),
    ),
    file(
        "report run", "rounds.jsonl is damaged at line 1 (", made.written("rounds.jsonl", b"\xff\n")
    ),
    file(
        "report run",
        "rounds.jsonl is damaged at line 1 (it lacks round)",
        made.changed("rounds.jsonl", '"round"', '"rund"'),
    ),
    file(
        "report run",
        "audit.json cannot be read as an audit (",
        made.files(run__audit__json="irreplaceable"),
    ),
    file(
        "report run", "audit.json lacks format, method, source", made.files(run__audit__json="{}")
    ),
    file(
        "audit run",
        "has no checkpoint of round 1, without which round 2 tells nothing",
        made.gone("server/round-000001.checkpoint"),
    ),
    file(
        "audit run",
        "state.safetensors cannot be read: ",
        made.folder("run/uploads/round-000001", "state.safetensors"),
    ),
    file(
        "report run",
        "config.yaml has format 1, and this version reads 3",
        made.changed("config.yaml", "format: 3", "format: 1"),
    ),
    file(
        "report run",
        "run/plan.json cannot be read as the plan of a comparison",
        made.files(run__plan__json="irreplaceable"),
    ),
    file(
        "compare conf.yaml --output run",
        "plan.json cannot be read",
        made.files(run__plan__json="[]"),
        COMPARE,
    ),
    file("list run", "unreadable", made.written("result.json", "[]"), code=0, out=True),
    file("list run", "unreadable", made.written("rounds.jsonl", "[]\n"), code=0, out=True),
    file("list run", "unreadable", made.halved("config.yaml"), code=0, out=True),
]
NET = "models=timm:test_efficientnet:weights=test_efficientnet-0.safetensors train=lora"
PRETRAINED = [
    pretrained(f"{NET} lora.rank=0", "lora.rank is '0'; allowed: integers ≥ 1", made.base()),
    pretrained(
        f"{NET} lora.targets=qkv",
        "names 'qkv', with which no layer's name ends; those that take LoRA end with conv_stem",
        made.base(),
    ),
    pretrained(f"{NET} lora.targets=conv_dw", "0.conv_dw is depthwise (", made.base()),
    pretrained(
        NET.replace("timm:test_efficientnet", "timm:test_vit"),
        "its weights lack ",
        made.base(),
    ),
    text(
        "models=hf:./bert-32-3",
        "bert-32-3' has no tokeniser: ",
        made.texts(tokeniser=False),
    ),
    text("models=timm:test_vit", "timm:test_vit' is for images, and the inputs", made.texts()),
    text(
        "models=hf:./bert-32-3",
        "docs.csv: column 'message' has an empty text in row 2: fill or remove it",
        made.texts("label,message\n0,ice\n1,\n"),
    ),
    Wrong(
        "evaluate based --client 0",
        "was trained on the base timm:test_efficientnet sha256:",
        [made.base_that_changed],
        slow=True,
    ),
]

TABLE = {
    "keys": KEYS,
    "YAML": YAML,
    "data": DATA + PRETRAINED,
    "own code": OWN_CODE,
    "paths": PATHS,
    "process states": STATES,
    "files of a run": FILES,
}
"""By category, at least twenty each."""
