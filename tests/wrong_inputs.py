"""What users get wrong, by category: the command, its exit code, and words of the one line that it
gets for an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from tests import wrong_made as made
from tests.wrong_made import Maker

RUN = (
    "-o clients=2 -o partition.kind=iid -o rounds=2 -o dataset=synthetic:100 -o"
    " models=tests.methods.narrow:Narrow"
)
"""The keys of the run that lies in `run`."""


Files = dict[str, bytes | None]
T = TypeVar("T")


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


def table(row: Callable[..., T], text: str, common: str = "") -> list[T]:
    """A row a line: `what is given | what it needs → words of the answer`. A line that begins with
    blanks goes on with the one above it; in what is given \\n and \\t are a new line and a tab.
    What it needs may be left out: makers, as Python calls them.

    common: what all lines give, first."""
    found = []
    for line in re.sub(r"\n +", " ", text.strip()).splitlines():
        left, _, told = line.partition("→ ")
        given, _, needs = left.partition("| ")
        given = given.rstrip(" ").replace(r"\n", "\n").replace(r"\t", "\t")
        makers = eval(f"[{needs}]", vars(made) | globals())
        found.append(row(f"{common} {given}".strip(" "), told, *makers))
    return found


def key(settings: str, expected: str, more: str = "") -> Wrong:
    words = " ".join(f"-o '{setting}'" for setting in settings.split(" "))
    return Wrong(f"run {words} -o output=out {more}".strip(), expected)


def command(words: str, expected: str, *needs: Maker) -> Wrong:
    return Wrong(words, expected, needs)


def unused(settings: str, expected: str) -> Wrong:
    words = " ".join(f"-o {setting}" for setting in settings.split(" "))
    return Wrong(f"run --dry-run {words} -o output=out", f"warning: {expected}", code=0, out=True)


def conf(text: str | bytes, expected: str, command: str = "run") -> Wrong:
    return Wrong(f"{command} conf.yaml", expected, [made.files(conf__yaml=text)])


def data(given: str, expected: str, *needs: Maker) -> Wrong:
    """given: a dataset and, with blanks, more words."""
    dataset, *more = given.split(" ")
    few = f"run -o dataset={dataset} -o partition.kind=iid -o clients=1 -o output=out"
    return Wrong(" ".join([few, *more]), expected, needs)


def code(setting: str, expected: str, code: int = 2, *, models: str = "models=cnn4,cnn5") -> Wrong:
    """models: of the run, where the setting says none; empty: all."""
    own = [models] if models and not setting.startswith("models=") else []
    words = " ".join(made.run_of_own_code(*own, output="out"))
    return Wrong(f"{words} -o {setting}", expected, [made.own_code], code)


def pretrained(given: str, expected: str, *needs: Maker) -> Wrong:
    """given: timm's test model, which has the weights of another or of itself, and settings."""
    model, *settings = given.split(" ")
    models = f"models=timm:test_{model}:weights=test_efficientnet-0.safetensors"
    few = ("clients=1", "dataset=synthetic:100", "partition.kind=iid", "output=out", "train=lora")
    words = (f"-o {setting}" for setting in (*few, models, *settings))
    return Wrong(f"run {' '.join(words)}", expected, needs, slow=True)


def text(models: str, expected: str, *needs: Maker) -> Wrong:
    return replace(
        data(f"csv:docs.csv -o data.text-column=message -o {models}", expected, *needs),
        slow=True,
    )


def file(command: str, expected: str, *needs: Maker, code: int = 2, out: bool = False) -> Wrong:
    return Wrong(command, expected, needs, code, run=True, out=out)


def csv(content: str, expected: str) -> Wrong:
    return data("csv:t.csv", expected, made.files(t__csv=content))


def compared(conf: str, expected: str) -> Wrong:
    return Wrong("compare conf.yaml", expected, [made.files(conf__yaml=conf)])


_OF_RECORDS = (
    "dp.level=record dp.clip=1 dp.noise=1 method=pfedlora_plus adapter.predict=sum"
    " adapter.rows=samples train=head normalise=model"
)
# One that a key alone refuses, whatever the others are: tests/test_keys.py has all of them.
KEYS = [
    *table(
        key,
        r"""
classes=4 data.class-names=a,b,c → classes is 4; allowed: auto, or 3, the number of data.class-names
data.class-names=a,b,c → the number of data.class-names is 3; allowed: auto, or 10, which dataset
    'digits' has
round=1 → unknown key 'round'; did you mean 'rounds'?
rounds=0 → rounds is 0; allowed: an integer ≥ 1
audit.uploads=true secagg.enabled=true → audit.uploads is true and secagg.enabled, too
method=fedsgd → method is 'fedsgd'; allowed: pfedlora
method=LG-FedAvg → method is 'LG-FedAvg'; did you mean 'lg_fedavg'? allowed: pfedlora
method=fedavg → set setting=homogeneous
method=standalone models=cnn9 → models names 'cnn9'; allowed: cnn1
models= → models names ''; allowed: cnn1
models=cnn1,,cnn2 → models names ''; allowed: cnn1
models=cnn1,cnn5 adapter.kind=reduced → different widths (cnn1 2000, cnn5 500); set
    adapter.kind=decomposed
models=mlp1 → model 'mlp1' is for vectors, and the inputs are images [3, 32, 32]; allowed: cnn1
models=timm:resnet10 → timm has no 'resnet10'; near names: resnet10t
models=timm:resnet10t:best → allowed: timm:resnet10t, timm:resnet10t:pretrained,
    timm:resnet10t:weights=FILE
models=timm:resnet10t:weights=none.pt → none.pt cannot be read: No such file or directory
models=torchvision:squeezenet1_1 → no nn.Linear runs in its forward
min-clients=11 → min-clients is 11; allowed: auto, or at most clients, which is 10
clients=7 → 7 clients × 2 classes a client is not a multiple of the 10 classes
clients=1000 partition.kind=iid → digits has 1797 images, 10 for each client: allowed ≤ 179
input-shape=3x32 → input-shape is 3x32; allowed: auto, or 3x32x32, which dataset 'digits' has
input-shape=2x32x32 → input-shape is '2x32x32'; allowed: auto, or CHANNELSxHEIGHTxWIDTH of images (1
    or 3 channels
input-shape=3,32,32 → input-shape is '3,32,32'; allowed: auto
input-shape=1x1x1x1 → input-shape is '1x1x1x1'; allowed: auto
input-shape=9999999x9999999 → input-shape is '9999999x9999999'; allowed: auto
input-shape=3x64x64 image-size=32 → image-size is 32, and input-shape 3x64x64: make them equal, or
    set only one
data.class-names=a,a → data.class-names is 'a,a'; allowed: auto, or at least two names, each once
aggregation=median aggregation.liars=5 → aggregation.liars is 5; with aggregation=median a round
    needs 11 clients then, and one has 10
aggregation=krum participation=0.4 method=fedavg models=cnn5 → aggregation.liars is 1; with
    aggregation=krum a round needs 5 clients then, and one has 4
aggregation=krum method=fedproto → allowed with method fedproto: mean, median, trimmed
aggregation=median method=fedgh → aggregation is median; allowed with method fedgh: mean
aggregation=median method=fedkd → aggregation is median; allowed with method fedkd: mean
aggregation=krum method=pfedlora_plus → adapter.rows is classes; allowed with aggregation
aggregation=median secagg.enabled=true → aggregation is median; allowed with secagg.enabled: mean
aggregation=median dp.clip=1 dp.noise=1 adapter.down=fixed → aggregation is median; allowed with dp:
    mean
aggregation=median sharing=none → sharing is none; allowed with aggregation=median: mean
max-weight=3 sharing=start → sharing is start; allowed with max-weight: mean
max-weight=3 secagg.enabled=true → max-weight is 3; allowed with secagg.enabled: 0, for
max-weight=3 dp.clip=1 dp.noise=1 adapter.down=fixed → max-weight is 3; allowed with dp: 0, for
    every update weighs the same
max-weight=3 method=fedlda setting=homogeneous → max-weight is 3; allowed with method fedlda: 0, for
    a client's later sums are differences
train=lora models=cnn1 → 'cnn1' begins at random, and LoRA is for models that others
models=hf:./nowhere → model 'hf:
representation=pretrained-logits → train is 'all'; allowed with representation=pretrained-logits:
    head
representation=pretrained-logits train=head → representation is pretrained-logits, and model 'cnn1'
    has no weights with a classifier
representation-norm=layer train=lora → train is 'lora'; allowed with representation-norm=layer: all,
    head
normalise=model → normalise is model, and model 'cnn1' has no weights of which the library says how
partition.kind=natural → partition.kind is natural, and digits has no owners of samples
partition.classes-per-client=11 → partition.classes-per-client is 11; allowed: 1 to 10
partition.last=10 → partition.last is 10; allowed: 0 to 9, of clients
clients=100 dataset=synthetic:1000 partition.kind=dirichlet partition.alpha=0.1 → raise alpha or use
    fewer clients
classes=3 → classes is 3; allowed: auto, or 10, which dataset 'digits' has
adapter=3 → adapter is a section, not a key; its keys: adapter.kind,
adapter.kind=reduced → one adapter cannot fit representations of different widths
method-options=a=b → which is for a package.module:Class method; the options of pfedlora are keys:
    adapter.kind
secagg=true → secagg is a section, not a key; its keys: secagg.enabled,
secagg.enabled=true method=fd → method fd does not take a mean of uploads; secagg.enabled needs one
    that does: pfedlora,
secagg.enabled=true sharing=start → sharing is start; allowed with secagg.enabled: mean
secagg.enabled=true participation=0.2 → secagg.enabled needs 3 to 1023 sampled clients, clients ×
    participation gives 2
secagg.enabled=true clients=2000 dataset=synthetic:40000 → sampled clients, clients × participation
    gives 2000
secagg.enabled=true secagg.clip=0.3 → secagg.clip is 0.3; allowed: a power of two
secagg.enabled=true secagg.shares=6 → secagg.shares is 6; allowed: auto, or an odd integer ≥ 5
secagg.enabled=true secagg.shares=11 → secagg.shares is 11; allowed: at most the 10 sampled clients
secagg.enabled=true partition.kind=iid secagg.max-samples=100 → secagg.max-samples is 100; allowed:
    at least 144, the training samples of client 0
dp=true → dp is a section, not a key; its keys: dp.level,
dp.noise=1 → dp.clip is not set: give the L2 norm that an update is clipped to
dp.clip=1 → dp needs one of dp.noise and dp.epsilon, and neither is set
dp.clip=1 dp.noise=1 dp.epsilon=8 → dp needs one of dp.noise and dp.epsilon, and both are set
dp.clip=1 dp.noise=1 method=fd → method fd does not take a mean of uploads; dp needs one that does:
    pfedlora,
dp.clip=1 dp.noise=1 method=pfedlora_plus → adapter.rows is classes; allowed with dp: samples,
    because rows weighted by
dp.clip=1 dp.noise=1 method=pfedlora_plus adapter.rows=samples adapter.down=trained → adapter.down
    is trained; allowed with dp: fixed
dp.clip=1 dp.noise=1 → adapter.down is trained; allowed with dp: fixed
dp.clip=1 dp.noise=1 adapter.down=fixed sharing=none → sharing is none; allowed with dp: mean
dp.clip=1 dp.noise=1 adapter.down=fixed dp.delta=0.1 clients=10 → dp.delta is 0.1; allowed: below
    1/clients, which is 0.1
dp.clip=2 dp.noise=1 adapter.down=fixed secagg.enabled=true → dp.clip is 2; allowed with
    secagg.enabled: at most secagg.clip, which is 1
resume=yes overwrite=yes → resume and overwrite exclude each other
mu → 'mu': expected key=value
=1 → '=1': expected key=value
audit.uploads=true sharing=none → sharing is none; allowed with audit.uploads: mean
audit.upload=true → unknown key 'audit.upload'; did you mean 'audit.uploads'?
observers=tensorbord → observers names 'tensorbord'; allowed, separated by commas: tensorboard,
    mlflow, wandb
observers=no_such:Class → observer 'no_such:Class': module 'no_such' cannot be imported
observers=math:pi → observer 'math:pi': expected a class, found float
observers=builtins:object → observer 'builtins:object': it lacks begin
""",
    ),
    *(
        key(f"{_OF_RECORDS} {wrong}", told)
        for wrong, told in {
            "method=pfedlora": "method pfedlora does not say that what it sends reveals a",
            "method=fd": "method fd does not say that what it sends reveals a record by noised",
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
    *table(
        unused,
        r"""
partition.alpha=0.1 → partition.alpha is not used: partition.kind is pathological
partition.kind=iid partition.classes-per-client=3 → partition.classes-per-client is not used:
    partition.kind is iid
optimizer=adamw momentum=0.5 → momentum is not used: optimizer is adamw, whose own is 0.9
partition.min-samples=20 → partition.min-samples is not used: partition.kind is pathological
lora.rank=4 → lora.rank is not used: train is all
method=lg_fedavg models=cnn1,cnn5 setting=homogeneous → setting is not used: models names the client
    models
method=pfedlora_plus adapter.predict=sum neck=always pfedlora_plus.mu=0.5 → pfedlora_plus.mu is not
    used: adapter.predict is sum
max-tokens=32 → max-tokens is not used: data.text-column is auto
data.text-column=note → data.text-column is not used: dataset 'digits' does not take
method=standalone representation-width=64 → representation-width is not used: neck is auto, and
    method standalone takes each model's
models=cnn1 representation-width=64 → representation-width is not used: neck is auto, and all
    clients have the same model
model-input=64 → model-input is not used: no model is of timm or torchvision
data.label-column=y → data.label-column is not used: dataset 'digits' does not take it
fml.alpha=0.7 → fml.alpha is not used: it is an option of another method than pfedlora
dp.clip=1 dp.noise=1 adapter.down=fixed dp.trained-down=true → dp.trained-down is not used: noise is
    on no two matrices of an adapter here
dp.clip=1 dp.noise=1 method=lg_fedavg dp.trained-down=true → dp.trained-down is not used: noise is
    on no two matrices of an adapter here
dp.delta=1e-6 → dp.delta is not used: none of dp.clip, dp.noise and dp.epsilon is
dp.clip=1 dp.noise=1 adapter.down=fixed clip-norm-factor=3 → clip-norm-factor is not used: with dp
    all updates are clipped and weigh the same
audit.uploads=true method=standalone → audit.uploads is not used: method standalone sends nothing
method=pfedlora_plus adapter.predict=sum neck=always adapter.init=lora → adapter.init is not used:
    adapter.down is fixed, and with adapter.predict=sum the second
aggregation.liars=2 → aggregation.liars is not used: aggregation is mean
secagg.clip=2 → secagg.clip is not used: secagg.enabled is false
secagg.enabled=true clip-norm-factor=3 → clip-norm-factor is not used: with secagg.enabled the
    server sees no single update
secagg.enabled=true partition.kind=iid → secagg.max-samples is 10000, and the largest client has
secagg.enabled=true min-success=0.5 → min-success is 0.5; secagg.threshold needs 7 of 10 clients
data-path=data → data-path is not used: dataset 'digits' takes no files from there
""",
    ),
    *table(
        Wrong,
        r"""
run --resume --overwrite → resume and overwrite exclude each other
run --superlink '' → --superlink is ''; allowed: a connection
run --tensorboard → No such option '--tensorboard'
run --superlink x --engine local → --engine local trains here, --superlink x on nodes
run --superlink x --dry-run → --dry-run is for simulations
run --superlink x --ray y:1 → ray is for simulations, --superlink x for real nodes: give only one
run --ray y:1 --engine local → ray is 'y:1', a cluster, and --engine local trains in this process:
    give only one
run --ray here -o output=out → ray is 'here'; allowed: HOST:PORT, as `ray start --head` prints it,
    on a node
run --ray ray://127.0.0.1:10001 -o output=out → ray is 'ray://127.0.0.1:10001'; allowed: HOST:PORT
run --ray 127.0.0.1:9 -o output=out → ray is '127.0.0.1:9' and nothing answers there (Connection
    refused); start it
run --ray 127.0.0.1:9 -o output=out --dry-run → ray is '127.0.0.1:9' and nothing answers there
compare quick/sharing --ray y:1 --engine local → ray is 'y:1', a cluster, and --engine local trains
    in this process
compare quick/sharing --ray y:1 --jobs 2 → --jobs is 2; allowed: 1 on a Ray cluster (y:1), of which
    each run takes all CPUs
run --superlink x --port 9 → --port 9 is for simulations
run --engine ray → --engine is 'ray'; allowed: flower, local
run --engine local --port 9 → --port 9 is for the engine flower
run --port 99999 → port is 99999; allowed: 0 to 65535
run --port http → Invalid value for '--port': 'http' is not a valid integer; see pfedlora run --help
run --rounds 3 → No such option '--rounds'; see pfedlora run --help
run a.yaml b.yaml → unexpected extra argument (b.yaml)
run -o → Option '-o' requires an argument
train → No such command 'train'. Did you mean 'align'? see pfedlora --help
zzz → No such command 'zzz'; see pfedlora --help
compare → Missing argument 'CONF'; see pfedlora compare --help
predict run a.png → give either --client K or --all-clients
predict run --client one a.png → Invalid value for '--client': 'one'
predict run --client -1 a.png → Invalid value for '--client': -1 is not in the range x>=0
export run --client 0 → --format FORMAT is missing: a client's model needs --client
report a b → a is not a directory
report a --target 2 → target-accuracy is 2.0; allowed: auto, or a number > 0 and ≤ 1
compare quick/table2 --seeds one → --seeds is 'one'; allowed: integers separated by commas
compare quick/table2 --methods fedsgd → --methods 'fedsgd' is not in the comparison; allowed:
compare quick/table2 --methods , → --methods is ','; allowed: names separated by
compare quick/table2 --seeds '' → --seeds is ''; allowed: integers separated by
compare quickstart → a run's keys are for `pfedlora run`, or stand in base
compare quick/table2 --only rounds=3 → expected key=value with a key of an axis
compare quick/table2 --engine ray --dry-run → --engine is 'ray'; allowed: auto, flower, local
""",
    ),
]
BASIC = (
    "methods: [standalone, pfedlora]\nseeds: [0, 1]\nbase: {clients: 4, rounds: 2, partition:"
    " {kind: iid}, dataset: 'synthetic:100', models: 'tests.methods.narrow:Narrow'}\n"
)
YAML = [
    *table(
        conf,
        r"""
- a\n- b\n → expected `key: value` lines, found list
rounds\n → expected `key: value` lines, found str
a: [1\nb: 2\n → not valid YAML at line 2, column 2: expected ',' or ']'
a: {b\n → not valid YAML at line 2, column 1
rounds: 1\n\tlr: 0.1\n → not valid YAML at line 2, column 1
rounds:1\nlr: 0.1\n → not valid YAML at line 2
rounds: 1\nlr: 0.1\nrounds: 0\n → not valid YAML at line 3, column 1: 'rounds' is there twice
partition: {kind: iid, kind: dirichlet}\n → line 1, column 24: 'kind' is there twice
partition: {kind: iid}\npartition.kind: dirichlet\n → partition.kind appears twice, under its
    section and with a dot
rounds: {a: 1}\n → unknown key 'rounds.a'
rounds:\n → rounds is None; allowed
rounds: 1:30\n → rounds is '1:30'; allowed
rounds: '3'\n → rounds is '3'; allowed
1: 2\n → unknown key '1'
clients: 3\ninput-shape: 4\ndata.class-names: benign,malignant,normal\n → which dataset 'digits'
    has; without a superlink this run is a simulation, of dataset 'digits'
? [a]\n: 1\n → not valid YAML
adapter: decomposed\n → adapter is a section, not a key; its keys: adapter.kind,
adapter: {kindd: reduced}\n → unknown key 'adapter.kindd'; did you mean 'adapter.kind'?
partition: {}\nadapter:\n → adapter is a section, not a key
mu: 0.5\n---\nmu: 0.9\n → not valid YAML at line 2, column 1: but found another document
mu: *there\n → not valid YAML at line 1, column 5: found undefined alias 'there'
partition: &a {kind: *a}\n → conf.yaml: kind holds itself
mu: !!python/object/apply:os.system [true]\n → not valid YAML at line 1, column 5: could not
    determine a constructor
output: 2026-01-01\n → output is datetime.date(2026, 1, 1); allowed: text
output: "a\0b"\n → cannot be used as a path (embedded null byte)
methods: [pfedlora]\nbase: {rounds: 2}\n → is a comparison (it has methods): use pfedlora compare
rounds: 2\nabout: {format: 3}\n → is the file of a run (it has about): continue that by --resume
""",
    ),
    *table(
        compared,
        r"""
rounds: 2\n → unknown key 'rounds'; allowed: base, methods, seeds, axes
- 1\n → expected `key: value` lines, found list
metods: [fd]\n → unknown key 'metods'; allowed: base, methods, seeds, axes
methods: pfedlora\n → methods: expected a list of at least one value
methods: [1]\n → methods is [1]; allowed: names of methods
base: 3\nmethods: [fd]\n → base: expected `key: value` lines, found int
methods: [fedavg, pfedlora]\n → fedavg: method fedavg needs the same model at all
methods: [pfedlora]\nbase: {rounds: 2}\naxes: {clients: [5, 4]}\n → pfedlora, clients=4, seed 0: 4
    clients × 2
""",
    ),
    *table(
        lambda axes, told: compared(BASIC + axes, told),
        r"""
axes: {mu: []}\n → axes.mu: expected a list of at least one value
axes: {mu: [2]}\n → axes.mu: mu is 2.0; allowed: a number ≥ 0 and ≤ 1
axes: {speed: [1, 2]}\n → axes.speed: 'speed' is no key of a run, so each of its values must set
    some
axes: {federation: [{client: 2}]}\n → axes.federation: unknown key 'client'
axes: {mu: {try: [0.5]}}\n → axes.mu: expected a list of values, or {tune: [values], methods:
    [names]}
axes: {mu: {tune: [0.5], methods: [fml]}}\n → axes.mu: 'fml' is not among the methods: standalone
axes: {method-options: [a/b, a-b]}\n → would share the folder method-options-a-b/standalone/seed-0
axes: {models: {tune: ["cnn1,cnn2", "cnn1, cnn2"]}}\n → would share the folder
    standalone_models-cnn1-cnn2
axes: {mu: [0.5], more: [{mu: 0.6}]}\n → mu is on two axes
axes: {sharing: {tune: [none, mean]}}\n → axes.sharing: sharing cannot be tuned: it would choose the
    task or the control
axes: {part: {tune: [{partition: {classes-per-client: 2}}]}}\n → axes.part:
    partition.classes-per-client cannot be tuned
""",
    ),
    conf(
        b"rounds: 1\nname: gr\xfc\xdf\n", "not valid YAML at line 2: it is not in UTF-8 (byte 0xfc)"
    ),
    conf(
        "rounds: 1\n".encode("utf-16"), "not valid YAML at line 1: it is not in UTF-8 (byte 0xff)"
    ),
    conf(b"rounds: 1\x00\n", "not valid YAML"),
    conf(made.picture(), "not valid YAML at line 1"),
    conf("", "methods: expected a list of at least one value", "compare"),
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
    conf(
        "methods: [pfedlora]\nbase: {rounds: 2}\naxes: {clients: [5, 4]}\n",
        "pfedlora, clients=4, seed 0: 4 clients",
        "compare --dry-run",
    ),
]
MANY = np.arange(30) % 3
GAPS = np.where(np.arange(60) == 9, np.nan, np.arange(60)).reshape(30, 2)
DATA = [
    *table(
        data,
        r"""
npz:own.npz → own.npz does not exist
npz: → dataset is 'npz:'; allowed: digits
folder:own → own does not exist; expected a folder of one folder of images for each class
csv:t.csv → t.csv does not exist
synthetic:none → dataset is 'synthetic:none'; allowed: synthetic:COUNT with 10 to 5000000 images
synthetic:9 → allowed: synthetic:COUNT with 10 to 5000000 images
synthetic:-100 → allowed: synthetic:COUNT with 10 to 5000000 images
synthetic:99999999999 → allowed: synthetic:COUNT with 10 to 5000000 images
""",
    ),
    *table(
        csv,
        r"""
a;b;label\n1;2;x\n → is this the separator? set data.sep=semicolon
a\tb\tlabel\n1\t2\tx\n → is this the separator? set data.sep=tab
a;b;label\n1,5;2,5;x\n → its first line has another separator: set data.sep=semicolon
a,label\n1,x\n1,2,x\n → t.csv: no readable table (CSV parse error: Expected 2 columns, got 3
a,label\n1,x\n2,y\n → t.csv has 2 rows; a client needs 10
a,label\n → t.csv: it has no rows
a,y\n1,x\n2,y\n → t.csv: it has no column 'label', but a, y; mend data.label-column
a,label\n1,0.5\n2,1\n → t.csv: column 'label' holds double; expected text or integers
a,label\n1,x\n2,\n → t.csv: column 'label' has no value in row 2, and 1 are missing
a,label\n1,x\n2,x\n → t.csv: all labels are x; expected at least two classes
a,label\nred,x\n2,y\n → no columns of features beside label, and no numbers in a (string)
a,label\n1,x\nnan,y\n → 1 are missing: fill or remove them, or let data.missing=mean do it
a,label\ninf,x\n2,y\n → t.csv: column 'a' is inf in row 1; expected finite numbers
a,label\n1,x\n1e40,y\n → t.csv: column 'a' is 1e+40 in row 2; expected finite numbers below 3e38
a,a,label\n1,2,x\n2,3,y\n → t.csv: it has 2 columns 'a'; mend its header
,a,label\n0,1,x\n1,2,y\n → t.csv: its first column has no name, as a row index has: write
label\nx\ny\n → t.csv: it has no columns of features beside label
""",
    ),
    *table(
        lambda name, told: data(name, told, made.own_code),
        r"""
own_data:nowhere → dataset 'own_data:nowhere': module 'own_data' has no 'nowhere'
own_date:raises → module 'own_date' cannot be imported from
own_data:raises → dataset 'own_data:raises': RuntimeError: in the function, at own_data.py:
own_data:none → dataset 'own_data:none': it returned None, expected (inputs, labels), (inputs,
    labels, class names), or a dict
own_data:other → it returned a dict of inputs, labels, weights, expected
own_data:uneven → dataset 'own_data:uneven': its rows have 1 to 2 numbers; expected the same
own_data:short → inputs is int64 [4, 3], labels int64 [3]; expected
own_data:value → TypeError: 3 is not a callable object
""",
    ),
    *table(
        data,
        r"""
| files(own__npz='no archive') → own.npz: it is not an npz file; expected
| files(own__npz='') → own.npz: it is empty; expected
| cut_npz → own.npz: it is damaged or cut off; expected
| lambda folder: np.save((folder / 'own.npz').open('wb'), np.zeros(3)) → own.npz: it is an .npy file
    of one array: save all arrays together by np.savez
| lambda folder: np.savez(folder / 'own.npz', x=np.zeros(3), y=np.zeros(3)) → own.npz: it holds x,
    y; expected an npz with `images` or `inputs`, and `labels` [n]
| npz(np.zeros((30, 32, 32, 3)), MANY) → images is float64 [30, 32, 32, 3]
| npz(np.zeros((30, 28, 28), np.float32), MANY) → images is float32 [30, 28, 28]; expected uint8 [n,
    h
| npz((30, 784), MANY) → scale images to 0 … 255 and save them as uint8, or call series
| npz((30, 32, 32, 4), MANY) → images is uint8 [30, 32, 32, 4]
| npz(MANY / 1, MANY, key='inputs') → inputs is float64 [30]
| npz(GAPS, MANY, key='inputs') → inputs[4, 1] is nan; expected finite numbers
| npz((30, 8, 8), MANY, clients=MANY / 1) → clients is float64 [30]; expected integers or text [n]
| npz((30, 3, 32, 32), MANY) → images is uint8 [30, 3, 32, 32]
| npz((100, 32, 32, 3), np.arange(50)) → images is uint8 [100, 32, 32, 3], labels int64 [50];
    expected
| npz((30, 8, 8), MANY[:, None]) → of one column take labels[:, 0]
| npz((30, 8, 8), MANY / 1) → methods here classify, and predict no numbers (regression)
| npz((30, 8, 8), np.ones((30, 3), int)) → (multi-label)
| npz((30, 8, 8), np.eye(3, dtype=int)[MANY % 3]) → labels.argmax(1)
| npz((600, 4), np.arange(600) // 4, key='inputs') → (regression); if they are classes, set
    classes=150
| npz((30, 4), np.arange(30) // 2, key='inputs') → set classes=15
| npz((30, 8, 8), MANY.astype(str)) → number the classes from 0
| npz((30, 32, 32, 3), np.array([None] * 30)) → own.npz: `labels` holds objects: save it as numbers,
    or as text; expected an npz with
| npz((0, 32, 32, 3), np.zeros(0, int)) → it has no images
| npz((30, 32, 32, 3), np.zeros(30, int)) → all labels are 0; expected at least two classes
| npz((30, 32, 32, 3), np.arange(30) - 1) → labels go from -1 to 28; allowed: 0 to 99999
| npz((2, 32, 32, 3), np.array([0, 2 ** 63], np.uint64)) → labels go from 0 to 9223372036854775808
| npz((30, 32, 32, 3), MANY, class_names=['a', 'b']) → labels go up to 2, and class_names names 0 to
    1
| npz((30, 32, 32, 3), MANY, class_names=['a', 'b', 'a']) → class_names has 'a' twice
| npz((30, 32, 32, 3), MANY, class_names='abc') → own.npz: class_names is ndarray []; expected a
    list of names
| npz((5, 32, 32, 3), np.arange(5)) → has 5 images; a client needs 10
""",
        "npz:own.npz",
    ),
    *table(
        data,
        r"""
| files(own='a file') → own does not exist; expected a folder of one folder
| folder('own') → expected at least two class folders with images (PNG, JPEG
| images({'cats': ['png']}) → expected at least two class folders with images (PNG, JPEG
| images({'.': ['png'] * 20}) → expected at least two class folders with images (PNG, JPEG
| images({'cats': ['tga'] * 20, 'dogs': ['ppm'] * 20}) → expected at least two class folders
| images({'cats': [b'text'], 'dogs': ['png']}) → own/cats/0.png: no readable image
| images({'cats': [b''], 'dogs': ['png']}) → own/cats/0.png: no readable image
| images({'cats': [picture()[:900]], 'dogs': [picture()]}) → 0.png: no readable image
| images({'cats': [picture('tga')], 'dogs': ['png']}) → 0.png: no readable image
| images({'a': ['png'], 'b': [picture()]}) → (a/0.png has 8 × 8 pixels and b/0.png has 64 × 64
    pixels): set image-size
| images({'cats': ['png'] * 2, 'dogs': ['jpg'] * 2}) → has 4 images; a client needs 10
""",
        "folder:own",
    ),
    *table(
        data,
        r"""
| files(data='file') → data' does not exist
| folder('data') → holds neither train.parquet and test.parquet nor cifar-10-batches-py/
| parquets({}, None) → test.parquet is missing: both
| cut_parquet → train.parquet is corrupt
| parquets({'column': 'x'}, {}) → train.parquet is corrupt or no cifar10 file
| parquets({'size': 28}, {}) → an image of (28, 28, 3)
| parquets({'label': 90}, {}) → the labels are not cifar10's (0 to 9)
| parquets({'count': 0}, {'count': 0}) → data holds no images
| batches(os.system) → cifar-10-batches-py is corrupt or not cifar10's
""",
        "cifar10 -o data-path=data",
    ),
    *table(
        data,
        r"""
npz:own | folder('own') → own: Is a directory; expected an npz with
npz:own.npz -o image-size=16 | npz(GAPS[:, :1], MANY, key='inputs') → image-size is 16; allowed:
    auto, for npz:
npz:own.npz -o input-shape=13 | npz(GAPS[:, :1], MANY, key='inputs') → input-shape is 13; allowed:
    auto, or 1, which
npz:own.npz -o partition.kind=natural | npz(GAPS[:, :1], MANY, key='inputs') → has no owners of
    samples: a table does by
npz:own.npz -o partition.kind=natural | npz(GAPS[:, :1], MANY, clients=np.arange(30) // 14,
    key='inputs') → has 2 owners of at least 10 samples (1 have fewer and are left out): set
    clients=2
npz:own.npz -o partition.kind=natural -o partition.min-samples=11 | npz(GAPS[:, :1], MANY,
    clients=MANY, key='inputs') → has 0 owners of at least 11 samples (3 have fewer and are left
    out): lower partition.min-samples
csv:t.csv | raw('t.csv', b'\x1f\x8b\x08' + bytes(50)) → t.csv: it is gzipped; call it t.csv.gz
csv:t.csv | raw('t.csv', 'a,label\n1,x\n'.encode('utf-16')) → t.csv: its text is not UTF-8
csv:t.csv | files(t__csv='# made today\na,b,label\n1,2,x\n') → remove the comment from its first
    line, which names the columns
csv:t.csv | raw('t.csv', b'PK\x03\x04' + bytes(50)) → it is a zip archive, as an Excel file is: save
    it as CSV
csv:t.csv | files(t__csv='') → t.csv: no readable table (
csv:t.csv | files(t__csv='größe,label\n1,x\n2,y\n'.encode('latin-1')) → t.csv: its text is not
    UTF-8; save it anew
csv:t.csv | files(t__csv='a,label\n1,grün\n2,rot\n'.encode('latin-1')) → t.csv: its text is not
    UTF-8; save it anew
csv:t.csv -o data.client-column=label | files(t__csv='a,label\n1,x\n2,y\n') → t.csv: column 'label'
    is the label, and data.client-column, too: mend it, or data.label-column
csv:t.csv -o data.client-column=site | files(t__csv='a,label\n1,x\n2,y\n') → it has no column
    'site', but a, label; mend data.client-column
parquet:t.csv | files(t__csv='a,label\n1,x\n2,y\n') → t.csv: no readable table (
hf:./own | files(own='a file') → dataset 'hf:/
hf:./own | folder('own') → own' cannot be read:
hf:some/name | no_hub → some/name': the hub does not give it (
cifar10 -o data-path=/nowhere → data-path '/nowhere' does not exist
cifar100 -o data-path=data | parquets({}, {}) → train.parquet is corrupt or no cifar100 file
synthetic:120 | cut_cache → is damaged (mmap length is greater than file size); remove it; it will
    be created again
""",
    ),
]
OWN_CODE = [
    *table(
        code,
        r"""
models=own_models:ForwardRaises → model 'own_models:ForwardRaises': RuntimeError: in forward, at
    own_models.py:
models=own_models:ConstructorRaises → RuntimeError: in the constructor, at own_models.py:
models=own_models:EncoderRaises → RuntimeError: Given groups=1
models=own_models:EncoderNone → the encoder gives None, expected a tensor
models=own_models:Wide → the encoder gives [2, 3072] for 2 images, its head takes [2, 20]
models=own_models:Maps → the encoder gives [2, 3, 32, 32] for 2 images, its head takes [2, 20]
models=own_models:Double → model 'own_models:Double': RuntimeError: mat1 and mat2 must have the same
    dtype
models=own_models:NoHead → expected an nn.Module with a `forward`, or with an `encoder` and a `head`
models=own_models:OtherHead → its head gives 7 logits, the dataset has 10 classes
models=own_models:NoSuper → AttributeError: cannot assign module before Module.__init__() call, at
    own_models.py:
models=own_models:Differs → its forward gives something else than its last linear layer, 'head', on
    what comes before
models=own_models:NoLinear → no nn.Linear runs in its forward; the last one is its head
models=own_models:Lazy → module.later.weight has no shape: it belongs to a lazy layer that does not
    run
models=own_models:Tied → one.weight and module.other.weight are one tensor; allowed: trained
models=own_models:function → expected an nn.Module
models=own_models:value → TypeError: 'int' object is not callable
models=own_models:Nowhere → module 'own_models' has no 'Nowhere'
models=own_models: → module 'own_models' has no ''
models=:Good → model ':Good': ValueError: Empty module name
models=own_models.py:Good → module 'own_models.py' cannot be imported from
models=./own_models:Good → './own_models:Good'
models=nowhere:X → module 'nowhere' cannot be imported from
models=broken_syntax:X → model 'broken_syntax:X': SyntaxError: invalid syntax, at broken_syntax.py:2
models=broken_import:X → KeyError: 'gone', at broken_import.py:2
models=broken_exits:X → SystemExit: 3, at broken_exits.py:2
models=broken_needs:X → ModuleNotFoundError: No module named 'no_such_package', at broken_needs.py:1
models=broken_bytes:X → SyntaxError: source code string cannot contain null bytes
models=os:path → model 'os:path': TypeError: 'module' object is not callable
models=torch.nn:Linear → missing 1 required positional argument
models=torch.nn:Identity → its forward gives [2, 3, 32, 32] for 2 images, expected logits, [2, 10]
method=nowhere:Thing → module 'nowhere' cannot be imported
method=json:JSONDecoder → expected a subclass of pfedlora_flwr.methods.method.Method
method=broken_exits:X → method 'broken_exits:X': SystemExit: 3, at broken_exits.py:2
method=own_methods:Abstract → it lacks aggregate, local_update
method=own_methods:InitRaises → method 'own_methods:InitRaises': RuntimeError: in the constructor,
    at own_methods.py:
method=own_methods:CheckRaises → KeyError: 'in check_experiment', at own_methods.py:
method=own_methods:StateNone → method 'own_methods:StateNone': state_init returned None, expected a
    dict of tensors
method=own_methods:StateLists → state_init returned a dict with other values, expected a dict of
    tensors
method=own_methods:PrivateNone → method 'own_methods:PrivateNone': private_init returned None,
    expected an nn.Module
method=own_methods:Integers -o clients=3 -o secagg.enabled=true → shares the integer tensors steps,
    of which secagg.enabled
method=own_methods:DownloadRaises → method 'own_methods:DownloadRaises': RuntimeError: in download,
    at own_methods.py:
method=own_methods:DownloadNone → download returned None, expected a dict of tensors
method=own_methods:DownloadNone -o sharing=start → download returned None, expected a dict of
    tensors
method=own_methods:PredictShape → predictor gives [3, 3] for 2 images, expected [2, 10]
method=own_methods:PredictRaises → method 'own_methods:PredictRaises': RuntimeError: in predictor,
    at own_methods.py:
models=own_models:Late → model 'own_models:Late': ValueError: in training alone, at own_models.py:
method=own_methods:Options -o method-options=strength → method-options is 'strength'; allowed:
    key=value key=value
method=own_methods:Options -o method-options=strenght=2 → has no option 'strenght'; it has:
method=own_methods:Options -o method-options=strength=-2 → strength is -2.0; allowed: a number ≥ 0
method=own_methods:Options -o 'method-options=name="a' → method-options is 'name="a': No closing
    quotation
""",
    ),
    *table(
        partial(code, code=1),
        r"""
models=own_models:Nan → diverged in round 1: client 0: its loss is nan (and 1 more)
secagg.enabled=true -o clients=3 -o secagg.clip=9.5367431640625e-07 → its update is beyond
    secagg.clip, 9.53674e-07
method=own_methods:LocalExits → clients 0, 1: method 'own_methods:LocalExits': SystemExit: 5, at
    own_methods.py:
method=own_methods:LocalImages → AttributeError: 'Samples' object has no attribute 'images', at
    own_methods.py:
method=own_methods:LocalNone → TypeError: local_update returned None, expected an Upload
method=own_methods:LocalFloat → TypeError: local_update returned an Upload of 3.7 samples, expected
    an integer
method=own_methods:LocalList → TypeError: local_update returned an Upload whose 'one' is list, no
    tensor
method=own_methods:LocalNan → diverged in round 1: client 0: down.weight has values that are not
    finite
method=own_methods:LocalOther → its tensors are ['other'], expected
method=own_methods:LocalCount → its sample count n_k is -1; allowed: an integer from 1
method=own_methods:AggregateNone → aggregate returned None, expected a dict of tensors
method=own_methods:AggregateRaises → AggregateRaises': RuntimeError: in aggregate, at
    own_methods.py:
method=own_methods:AggregateNan → diverged in round 2: method 'own_methods:AggregateNan': aggregate
    returned down.weight
method=own_methods:AggregateKeeps → method 'own_methods:AggregateKeeps': aggregate changed
    self.momentum, which a resumed run would not have; keep what lasts in the state that it returns
method=own_methods:AggregateOther → aggregate returned a state of another layout: its tensors are
    ['foo']
""",
    ),
    code(
        "method=own_methods:NeedsOne",
        "method own_methods:NeedsOne needs the same model at all clients, and theirs are 5; set"
        " setting=homogeneous, or models to one",
        models="",
    ),
    code(
        "method=own_methods:WrongModel",
        "RuntimeError: Error(s) in loading state_dict for CNN: size mismatch for fc1.weight:"
        " copying a param with shape torch.Size([800, 800]) from checkpoint, the shape in"
        " current model is torch.Size([500, 800]) (and 2 more), at own_methods.py:",
        code=1,
    ),
    *(
        code(
            f"method=own_methods:{name}",
            f"method 'own_methods:{name}': its Options is no frozen dataclass; expected"
            " `@dataclass(frozen=True)`",
        )
        for name in ("OptionsPlain", "OptionsThawed", "OptionsBare")
    ),
]
THESIS = made.folder("thesis", "thesis.txt")
SAVE = "export run --client 0 --format safetensors"
PATHS = [
    *table(
        Wrong,
        r"""
run nowhere.yaml → nowhere.yaml: no such file, and not a configuration of the package; those are
    cifar10,
run quickstar → quickstar: no such file, and not a configuration of the package; did
compare table2 → table2: no such file, and not a configuration of the package; did you
run '' → '': no such file, and not a configuration
compare nowhere.yaml → nowhere.yaml: no such file, and not a configuration of the package
run -o output=/ --overwrite → '/' is not a run's directory, so it is not overwritten
run -o output=/proc/nowhere/x → cannot be written
run -o output=/dev/null → cannot be written (Not a directory)
run -o output=~nosuchuser/x → '~nosuchuser/x' cannot be used as a path (Could not determine home
    directory)
run --resume -o output=~nosuchuser/x → '~nosuchuser/x' cannot be used as a path
run -o dataset=npz:~nosuchuser/x.npz → '~nosuchuser/x.npz' cannot be used as a path
run -o dataset=cifar10 -o data-path=~nosuchuser/x → '~nosuchuser/x' cannot be used as a path
report nowhere → nowhere is not a directory
list nowhere → nowhere is not a directory
audit nowhere → nowhere is not a directory
predict nowhere --client 0 a.png → nowhere is not a directory
""",
    ),
    *table(
        partial(Wrong, needs=[THESIS]),
        r"""
run thesis → thesis: a folder, and not a configuration of the package
run -o output=thesis/thesis.txt → is a file; choose a directory
run -o output=thesis/thesis.txt/out → cannot be used as a path (Not a directory)
run -o output=thesis → is not a run's directory; choose another
run -o output=thesis --overwrite → is not a run's directory, so it is not overwritten
run -o output=. --overwrite → is not a run's directory, so it is not overwritten
run --dry-run -o output=thesis/thesis.txt/out → cannot be used as a path (Not a directory)
report thesis/thesis.txt → thesis/thesis.txt is not a directory
report thesis → thesis holds no completed run
list thesis/thesis.txt → thesis/thesis.txt is not a directory
audit thesis → thesis holds no run
predict thesis --client 0 a.png → thesis holds neither a run nor a model of client 0
""",
    ),
    *table(
        file,
        r"""
report run --output run/result.json → run/result.json cannot be written (File exists)
report run --output /proc/nowhere → /proc/nowhere cannot be written
predict run --client 0 a.png → a.png: no such file
predict run --client 2 a.png → client is 2; allowed: 0 to 1
export run --client 0 --format tflite → format is 'tflite'; allowed: safetensors, torch-export, onnx
export run --client 0 --format safetensors --output /dev/full --overwrite → /dev/full is not a
    regular file
export run --client 0 --format safetensors --output /proc/nowhere/a → cannot be written
""",
    ),
    *table(
        lambda command, told: file(command, told, THESIS),
        r"""
predict run --client 0 thesis → thesis: no file of images (.png, .jpg,
predict run --client 0 thesis/thesis.txt → thesis/thesis.txt: no readable image
export run --client 0 --format safetensors --output thesis → thesis is a directory; give a file
export run --client 0 --format safetensors --output thesis/thesis.txt → exists; replace it with
    --overwrite
export run --client 0 --format safetensors --output thesis/thesis.txt/a → cannot be used as a path
    (Not a directory)
""",
    ),
    *table(
        command,
        r"""
run loop | link('loop', 'loop') → loop: no such file, and not a configuration
""",
    ),
    Wrong(f"run -o output={'x' * 300}", "cannot be used as a path (File name too long)"),
    Wrong(f"list {'x' * 300}", "File name too long"),
    *table(
        command,
        r"""
run -o output=loop | link('loop', 'loop') → loop
run -o output=gone | link('gone', '/proc/nowhere') → cannot be written
compare conf.yaml --shard 3/2 | files(conf__yaml=BASIC) → --shard is '3/2'; allowed: I/N with 1 ≤ I
    ≤ N
compare conf.yaml --shard half | files(conf__yaml=BASIC) → --shard is 'half'; allowed: I/N
""",
    ),
    *(
        Wrong(
            f"compare conf.yaml --jobs {jobs}",
            f"--jobs is '{jobs}'; allowed: auto, or 1 to 256",
            [made.files(conf__yaml=BASIC)],
        )
        for jobs in ("0", "257", "two", "1.5")
    ),
    *table(
        command,
        r"""
compare conf.yaml --output thesis/thesis.txt | THESIS, files(conf__yaml=BASIC) → Not a directory
""",
    ),
    *table(
        file,
        r"""
predict run --client 0 a.png | files(a__png=picture()[:900]) → a.png: no readable image
predict run --client 0 a.png | files(a__png=broken_picture()) → a.png: no readable image
export run --client 0 --format safetensors --output a | files(a__md='irreplaceable') → a.md exists;
    replace it with
""",
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
    *table(
        file,
        r"""
| locked('run/server/lock') → is in use by a running run
""",
        AGAIN,
    ),
    *table(
        file,
        r"""
| without('clients') → does not hold the models of 2 clients after round 2
| changed('config.yaml', ': pfedlora', ': fedkd') → with method fedkd each round depends on how many
    there are
| changed('config.yaml', 'narrow:Narrow', 'gone:Gone') → module 'tests.methods.gone' cannot be
    imported
| written('server/partition', '0') → the data or its partition is not what the run in
| locked('run/server/lock') → is in use by a running run
| locked('run/logs/launch.lock') → is in use by a running run
""",
        EXTEND,
    ),
    *table(
        command,
        r"""
| environment(FLWR_HOME='flower') → which is not there; docs/deployment.md has one
| connections('[superlink') → cannot be read as Flower's configuration
| connections('') → allowed, by flower/config.toml: none: it has no connection
| connections(CONNECTIONS) → --superlink is 'site'; allowed, by flower/config.toml: a, b
""",
        "run --superlink site",
    ),
    *table(
        command,
        r"""
run --resume → holds no run to resume: it has no config.yaml
run --resume -o output=thesis | THESIS → holds no run to resume
run --resume -o output=thesis | folder('thesis') → holds no run to resume
""",
    ),
    file(
        f"run {RUN} -o output=run", "exists; continue it with --resume, replace it with --overwrite"
    ),
    file(
        f"run {RUN} -o output=run --dry-run",
        "exists; continue it with --resume, replace it with --overwrite",
    ),
    *table(
        file,
        r"""
run --resume -o output=run -o mu=0.9 → holds a different Experiment (mu: 0.5 → 0.9); resume it with
    its own keys
run --resume -o output=run -o method=fml → method: 'pfedlora' → 'fml'
run --resume -o output=run conf.yaml | files(conf__yaml='lr: 0.5\n') → lr: 0.01 → 0.5
run --resume -o output=run -o rounds=1 → ends at 2: it can be extended, not shortened
audit run | locked('run/server/lock') → is in use by a running run
audit run | written('server/partition', '0') → the data or its partition is not what the run in
audit run | written('server/partition', 'own') → have data of their own, which is not here
""",
    ),
    file(REPLACE, "is in use by a running run", made.locked("run/server/lock")),
    file(REPLACE, "is in use by a running run", made.locked("run/logs/launch.lock")),
    *table(
        file,
        r"""
compare conf.yaml --output run | COMPARE, locked('run/.lock') → run is in use by a running compare
compare conf.yaml --output run | COMPARE, files(run__plan__json=OTHER) → holds the comparison
    'other'; give another output folder
""",
    ),
    *table(
        command,
        r"""
run -o output=out | removed_folder → the current folder has been removed; change to an existing one
list . | full_stdout → No space left on device
run -o dataset=synthetic:130 | environment(PFEDLORA_CACHE='/proc/x') → set PFEDLORA_CACHE to a
    writable folder
""",
    ),
    Wrong(
        f"run --port {made.PORT} -o output=out",
        "cannot be used (Address already in use); choose another",
        [made.listening],
    ),
    code("models=broken_patience:X", "stopped by the user", 130),
]
IMAGE = made.files(a__png=made.picture())
PREDICT = "predict run --client 0 a.png"
MODELS, CHECKPOINTS, ABOUT = (
    "clients/0/*.safetensors",
    "server/*.checkpoint",
    "clients/0/about.json",
)
FILES = [
    *table(
        file,
        r"""
| written('config.yaml', '') → run/config.yaml cannot be read as a run's configuration; put it back
    from a copy, or run again
| written('config.yaml', '- 1\n') → run/config.yaml cannot be read as a run's configuration
| written('config.yaml', picture()) → run/config.yaml cannot be read as a run's configuration
| halved('config.yaml') → run/config.yaml cannot be read as a run's configuration
| gone('config.yaml') → holds no run to resume: it has no config.yaml
| changed('config.yaml', 'format: 3', 'format: 1') → has format 1, and this version reads 3
| changed('config.yaml', 'format: 3', 'format: 4') → has format 4, and this version reads 3
| changed('config.yaml', 'about:', 'later: 3\nabout:') → config.yaml: unknown key 'later'
| changed('config.yaml', 'mu: 0.5', 'mu: 5') → run/config.yaml: mu is 5.0; allowed
| gone(CHECKPOINTS) → has no checkpoint of the 3 rounds in rounds.jsonl
| written('result.json', '[]') → result.json is not the result of a run; remove it; --resume creates
    it again
| result(accuracy=...) → result.json lacks accuracy; remove it
""",
        AGAIN,
    ),
    *table(
        file,
        r"""
| flipped(CHECKPOINTS) → no checkpoint in
| gone('rounds.jsonl') → rounds.jsonl ends at round 0, and 2 rounds are done; restore it
| cut_lines('rounds.jsonl') → rounds.jsonl ends at round 1, and 2 rounds are done
| changed('rounds.jsonl', '{"round": 1', '{round: 1') → rounds.jsonl is damaged at line 2 (
| gone('clients.jsonl') → clients.jsonl ends at round 0, and 2 rounds are done
| gone('server/token') → server/token is missing, by which nodes recognise the run
""",
        EXTEND,
    ),
    *table(
        file,
        r"""
| halved('config.yaml') → run/config.yaml cannot be read as a run's configuration
| gone(CHECKPOINTS) → has no checkpoint of the 3 rounds in rounds.jsonl
| flipped(CHECKPOINTS) → can be read (round-000001.checkpoint, round-000002.checkpoint)
| halved(CHECKPOINTS) → can be read (round-000001.checkpoint,
| emptied(CHECKPOINTS) → can be read (round-000001.checkpoint,
| gone(MODELS) → the model of client 0 is not in run; on a deployed node it is in <state-path>/
| without('clients'), gone('server/token') → the model of client 0 is not in run
| halved(MODELS) → round-000002.safetensors cannot be read:
| flipped(MODELS) → round-000002.safetensors is damaged: its checksum differs
| emptied(MODELS) → round-000002.safetensors cannot be read:
| gone(ABOUT) → about.json cannot be read (No such file or directory)
| halved(ABOUT) → about.json cannot be read (
| written(ABOUT, '{}') → about.json lacks experiment, class_names, mean, std
| IMAGE, changed(ABOUT, 'mean', 'meen') → about.json lacks mean
| changed(ABOUT, 'narrow:Narrow', 'gone:Gone') → module 'tests.methods.gone' cannot be
| changed(ABOUT, 'tests.methods.narrow:Narrow', 'cnn5') → the code here builds another model than
    client 0 has
""",
        PREDICT,
    ),
    *table(
        file,
        r"""
| gone('result.json') → the first one there is unfinished after round 2
| halved('result.json') → result.json cannot be read as a result (
| written('result.json', '{}') → result.json is not the result of a run
| result(status='perfect') → result.json is not the result of a run
| result(per_client=...) → result.json lacks per_client; remove it
| result(format=4) → result.json has format 4, and this version reads 3: another version made this
    run
| result(status='failed', error='the disk is full') → the first one there is failed: the disk is
    full
| gone('rounds.jsonl') → its rounds.jsonl does not reach round 2
| cut_lines('rounds.jsonl') → its rounds.jsonl does not reach round 2
| written('rounds.jsonl', 'no JSON\n') → rounds.jsonl is damaged at line 1 (
| written('rounds.jsonl', b'\xff\n') → rounds.jsonl is damaged at line 1 (
| changed('rounds.jsonl', '"round"', '"rund"') → rounds.jsonl is damaged at line 1 (it lacks round)
| files(run__audit__json='irreplaceable') → audit.json cannot be read as an audit (
| files(run__audit__json='{}') → audit.json lacks format, method, source
| changed('config.yaml', 'format: 3', 'format: 1') → config.yaml has format 1, and this version
    reads 3
| files(run__plan__json='irreplaceable') → run/plan.json cannot be read as the plan of a comparison
""",
        "report run",
    ),
    *table(
        file,
        r"""
predict run/clients --client 0 a.png | halved(MODELS) → run/clients/0 holds no readable model:
export run --client 0 --format safetensors | flipped(MODELS) → is damaged: its checksum differs
status run | gone('rounds.jsonl') → its rounds.jsonl does not reach round 2
status run | gone('config.yaml') → run has no config.yaml, as a
audit run | gone('server/round-000001.checkpoint') → has no checkpoint of round 1, without which
    round 2 tells nothing
audit run | folder('run/uploads/round-000001', 'state.safetensors') → state.safetensors cannot be
    read:
compare conf.yaml --output run | files(run__plan__json='[]'), COMPARE → plan.json cannot be read
""",
    ),
    *table(
        partial(file, code=0, out=True),
        r"""
list run | written('result.json', '[]') → unreadable
list run | written('rounds.jsonl', '[]\n') → unreadable
list run | halved('config.yaml') → unreadable
""",
    ),
]
PRETRAINED = [
    *table(
        pretrained,
        r"""
efficientnet lora.rank=0 | base() → lora.rank is '0'; allowed: integers ≥ 1
efficientnet lora.targets=qkv | base() → names 'qkv', with which no layer's name ends; those that
    take LoRA end with conv_stem
efficientnet lora.targets=conv_dw | base() → 0.conv_dw is depthwise (
vit | base() → its weights lack
""",
    ),
    *table(
        text,
        r"""
models=hf:./bert-32-3 | texts(tokeniser=False) → bert-32-3' has no tokeniser:
models=timm:test_vit | texts() → timm:test_vit' is for images, and the inputs
models=hf:./bert-32-3 | texts('label,message\n0,ice\n1,\n') → docs.csv: column 'message' has an
    empty text in row 2: fill or remove it
""",
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
