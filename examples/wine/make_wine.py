"""Writes wine.csv: scikit-learn's 178 wines of three cultivars, with a made-up site.

The site is one of five equal parts by the alkalinity of the ash, so the mixture of cultivars shifts
from site to site."""

import numpy as np
from sklearn.datasets import load_wine

wine = load_wine(as_frame=True).frame.rename(columns={"target": "cultivar"})
wine["cultivar"] = np.array(["barolo", "grignolino", "barbera"])[wine["cultivar"]]
order = wine["alcalinity_of_ash"].rank(method="first") - 1
wine["site"] = [f"cellar-{int(place * 5 // len(wine)) + 1}" for place in order]
wine.to_csv("wine.csv", index=False)
