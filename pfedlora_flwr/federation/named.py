"""Sites by the names under which their nodes are registered at the SuperLink (`flwr supernode
register KEY CONNECTION --name NAME`). A node that a run does not name is sent nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flwr.serverapp import Grid

from pfedlora_flwr.errors import UserError


def connected(grid: Grid, sites: Sequence[str]) -> dict[int, str]:
    """The connected nodes that a run may ask, with their names; where it names no sites, all of
    them. Raises UserError where names cannot tell nodes apart."""
    if not sites:
        return dict.fromkeys(grid.get_node_ids(), "")
    every = {node.node_id: node.name for node in grid.get_nodes()}
    if every and not any(every.values()):
        raise UserError(
            f"sites is {','.join(sites)}, and no connected node has a name: register nodes with"
            " `flwr supernode register KEY CONNECTION --name NAME`"
        )
    found = {node: name for node, name in every.items() if name in sites}
    if twice := [name for name, count in Counter(found.values()).items() if count > 1]:
        raise UserError(f"two connected nodes are registered as site {twice[0]!r}: unregister one")
    return found
