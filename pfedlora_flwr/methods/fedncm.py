"""FedNCM. Legate, Bernier, Page-Caccia, Oyallon, Belilovsky: Guiding the Last Layer in Federated
Learning with Pre-Trained Models (NeurIPS 2023, arXiv 2306.03937), its first stage.

Symbols as in sums.py."""

from __future__ import annotations

from pfedlora_flwr.methods.moments import Solver, Sums
from pfedlora_flwr.methods.sums import OfSums


class FedNCM(OfSums):
    """The class is that of the nearest mean μ_c."""

    title = "FedNCM"
    paper = "Legate et al., NeurIPS 2023, arXiv 2306.03937"
    idea = (
        "The nearest of the class means over all clients' samples, in one round and without"
        " training"
    )
    shares = "counts and sums of representations, of the classes held"
    assumes = (
        "frozen encoders with normalised representations of one width; the server may know which"
        " classes a client holds, the number of samples of each, and their sum"
    )
    squares = False

    def solver(self, total: Sums, s: float) -> Solver:
        """None: the score is zᵀμ_c − ½ |μ_c|², half of |z|² − |z − μ_c|²."""
        return lambda columns: columns
