"""Writes digits.csv: scikit-learn's 1,797 handwritten digits, 64 grey values each, with a made-up
site.

Their file goes from one writer to the next, so its first and its second half are two offices with
writers of their own, as far as one can tell: it does not name them."""

from sklearn.datasets import load_digits

digits = load_digits(as_frame=True).frame.rename(columns={"target": "digit"})
half = len(digits) // 2
digits["office"] = ["north" if row < half else "south" for row in range(len(digits))]
digits.to_csv("digits.csv", index=False)
