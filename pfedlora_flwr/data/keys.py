"""The keys of data: how a dataset is read, and divided among clients."""

from __future__ import annotations

from dataclasses import dataclass

from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.keys import Form, Listed, Section, key, nonempty


@dataclass(frozen=True)
class PartitionKeys(Section):
    """How samples are assigned to clients."""

    kind: str = key("pathological", "how samples are assigned to clients")
    classes_per_client: int = key(
        2,
        "classes per client (pathological); their product with the number of clients must be a"
        " multiple of the number of classes; auto, in a run: 2, or the smallest number that divides"
        " evenly",
        low=1,
        needs="partition.kind=pathological",
    )
    alpha: float = key(
        0.3,
        "concentration of the Dirichlet distribution",
        above=0,
        needs="partition.kind=dirichlet",
    )
    min_samples: int = key(
        10,
        "owners with fewer samples are left out (natural)",
        low=10,
        needs="partition.kind=natural",
    )
    samples_per_client: int | None = key(
        None,
        "maximum of training samples per client, taken from its classes in turn; validation and"
        " test parts stay; auto: all",
        low=2,
    )
    share: float = key(
        1.0,
        "the share of its training samples that a client has, taken in the same way; a report says"
        " what a gain is worth in rows if an axis has several",
        above=0,
        high=1,
    )
    last: int | None = key(
        None,
        "the client that takes the last number, by the number that it has otherwise: with"
        " clients-held-out=1 an axis over it leaves each site out in turn; auto: as they come",
        low=0,
        needs="clients-held-out",
    )


def _share(word: str) -> int:
    if not word.isdecimal() or not 0 < int(word) < 100:
        raise ValueError(word)
    return int(word)


@dataclass(frozen=True)
class SplitKeys(Section):
    """What divides a client's samples into training, validation and test."""

    kind: str = key(
        "random",
        "what divides a client's samples. random: by chance, stratified. groups: samples with one"
        " value of split.column stay together. time: the last ones by split.column are for tests."
        " given: by split.column (train, validation, test), or the data's own parts",
    )
    column: str | None = key(
        None,
        "the column of groups, times or parts, which is no feature; of an npz file the array, of a"
        " function the entry, of that name; auto: none",
        needs="split.kind",
    )
    shares: Listed[int] = key(
        "8,1,1",
        "the shares of training, validation and test",
        form=Form("three integers from 1 to 99", _share),
    )
    folds: int | None = key(
        None,
        "cross-validation: each client's samples, or groups, in so many parts. split.fold is for"
        " tests, a ninth of the others for validation. A comparison runs all folds of a seed; auto:"
        " split.shares",
        low=2,
        high=100,
    )
    fold: int = key(
        0, "the fold that is for tests, from 0; a comparison sets it", low=0, needs="split.folds"
    )

    def check(self) -> None:
        if len(self.shares) != 3:
            raise wrong("split.shares", self.shares, "three integers, such as 8,1,1")
        if self.kind in ("groups", "time") and self.column is None:
            raise UserError(f"split.kind is {self.kind}, and split.column is auto: name the column")
        if self.folds and self.kind not in ("random", "groups"):
            raise wrong("split.folds", self.folds, f"auto, with split.kind={self.kind}")
        if self.folds and self.fold >= self.folds:
            raise wrong("split.fold", self.fold, f"0 to {self.folds - 1}")


@dataclass(frozen=True)
class DataKeys(Section):
    """How a dataset is read."""

    label_column: str | None = key(
        None, "the label column; auto: `label`, for `hf:` the column of class labels"
    )
    input_column: str | None = key(
        None,
        "the input column, only for `hf:`; auto: its only column of images or arrays, otherwise"
        " all numeric columns",
    )
    text_column: str | None = key(
        None, "the column of texts, of `csv:`, `parquet:` and `hf:`; auto: none"
    )
    max_tokens: int = key(
        64,
        "tokens of a text that a model takes",
        name="max-tokens",
        low=2,
        high=8192,
        needs="data.text-column",
    )
    client_column: str | None = key(
        None, "the column that names a sample's owner (partition.kind=natural); auto: none"
    )
    class_names: Listed[str] | None = key(
        None, "a table's classes in order; auto: its sorted labels", form=Form("names", nonempty)
    )
    features: Listed[str] | None = key(
        None,
        "a table's columns that are features, by name, in any order and among others; auto: all"
        " numeric ones but the label and the client",
        form=Form("names", nonempty),
    )
    drop: Listed[str] | None = key(
        None, "a table's columns that are no features; auto: none", form=Form("names", nonempty)
    )
    missing: str = key(
        "refuse",
        "a value that is missing of a feature. mean, median: that of the training rows takes its"
        " place, and with median features are centred there",
        choices=("refuse", "mean", "median"),
    )
    categories: str = key(
        "drop",
        "a table's columns of text that are no label. one-hot: each of a column's values becomes a"
        " feature, COLUMN=VALUE, by which data.features may name it; sites agree on all",
        choices=("drop", "one-hot"),
    )
    class_map: str = key(
        "",
        "a CSV with the columns label and class: the class that each label of the data means; of a"
        " node, class-map in its node-config; empty: as they are spelt",
    )
    sep: str = key(
        "comma", "column separator of a CSV", choices=("comma", "semicolon", "tab", "bar")
    )
    decimal: str = key("point", "decimal separator in a CSV", choices=("point", "comma"))
    subfolders: bool = key(False, "include images in sub-folders of a class's folder (`folder:`)")

    def check(self) -> None:
        if self.sep == self.decimal:
            raise UserError("data.decimal is comma, and data.sep, too: a CSV needs two marks")
        chosen = {"data.features": self.features, "data.drop": self.drop}
        for name, held in chosen.items():
            if held and len(set(held)) < len(held):
                raise wrong(name, held, "names, each once")
        if self.features and self.drop:
            raise wrong("data.drop", self.drop, "auto, with data.features, which names the others")
        for name, held in chosen.items():
            if held and self.text_column:
                raise wrong(name, held, "auto, with data.text-column")
        if self.text_column and self.categories != "drop":
            raise wrong("data.categories", self.categories, "drop, with data.text-column")
        names = self.class_names or ()
        if len(set(names)) < len(names) or len(names) == 1:
            raise wrong(
                "data.class-names", self.class_names, "auto, or at least two names, each once"
            )
