"""Pooled of runs/tumours beside scikit-learn's MLP of the same size, on the same rows: the mean of
the seeds, after the last round, in percent."""

from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.models.families import MLP_SHAPES, WIDTH
from pfedlora_flwr.runs.directory import RunDirectory

found = []
for place in sorted(Path("runs/tumours/pooled").glob("seed-*")):
    run = RunDirectory(place.absolute())
    e, result = run.experiment(), run.result()
    data = DataSetup(e, "")
    dataset, partition = data.dataset, data.partition
    labels = np.asarray(dataset.labels)
    train = np.concatenate([split.train for split in partition.clients])
    rows = np.asarray(dataset.inputs)
    rows = StandardScaler().fit(rows[train]).transform(rows)
    size, steps = (*MLP_SHAPES["mlp1"], WIDTH), {"max_iter": e.rounds, "batch_size": e.batch_size}
    model = MLPClassifier(size, learning_rate_init=e.lr, random_state=e.seed, **steps)
    model.fit(rows[train], labels[train])
    theirs = np.mean([model.score(rows[s.test], labels[s.test]) for s in partition.clients])
    found.append((result["accuracy"]["final"], theirs))
ours, theirs = 100 * np.mean(found, axis=0)
print(f"pooled {ours:.1f}, scikit-learn's MLP {theirs:.1f} (mean of {len(found)} seeds)")
