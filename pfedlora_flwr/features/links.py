"""The links of the chain for uploads, those of features and the others, in their order."""

from __future__ import annotations

from pfedlora_flwr.features.dp.link import Clipped, Noised, OfRecords, OwnNoise
from pfedlora_flwr.federation.liars import Claims, Robust
from pfedlora_flwr.federation.link import Link
from pfedlora_flwr.federation.links import KeptUploads, Outliers
from pfedlora_flwr.federation.secure.link import Masks

LINKS: tuple[type[Link], ...] = (
    # client_out, on the client: a bound on its update, or noise of its own, goes here
    OfRecords,
    Clipped,
    OwnNoise,
    Masks,  # the last thing before the wire, and the first after it
    # the server: `refused` of all links, `server_in` of all, `Method.aggregate`, `server_out`
    Outliers,
    KeptUploads,
    Claims,
    Robust,  # after it there is one upload, where whole ones are averaged
    Noised,  # after it there are no single updates
)
"""All links, in the order in which an upload meets them. In each hook they are asked in this
order."""
