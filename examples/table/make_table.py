"""Writes tumours.csv: scikit-learn's breast cancer table, 569 tumours by 30 measures of their
cells' nuclei, and a made-up `site` for each.

The table does not say where a sample was taken. The site here is an eighth of the tumours by `mean
texture`, the spread of grey values, which a microscope and its lamp shift: it stands for eight
laboratories, and is none. And new.csv: three tumours of no site's data."""

import csv

import numpy as np
from sklearn.datasets import load_breast_cancer

SITES, NEW = 8, 3


def main() -> None:
    table = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(table.data))
    new, own = order[:NEW], np.sort(order[NEW:])
    texture = table.data[:, list(table.feature_names).index("mean texture")]
    edges = np.quantile(texture[own], np.arange(1, SITES) / SITES)
    sites = [f"lab-{number + 1}" for number in np.searchsorted(edges, texture, side="right")]
    with open("tumours.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["site", *table.feature_names, "diagnosis"])
        rows.writerows([sites[i], *table.data[i], table.target_names[table.target[i]]] for i in own)
    with open("new.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(table.feature_names)
        rows.writerows(table.data[new])
    print(
        f"tumours.csv: {len(own)} rows; new.csv: {', '.join(table.target_names[table.target[new]])}"
    )


if __name__ == "__main__":
    main()
