"""The ServerApp: PersonalisedStrategy, and what one adds to it."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from own_app.task import config_of
from pfedlora_flwr.server_app import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    with strategy_of(config_of(context)) as strategy:
        strategy.complete(grid)
        print("accuracy by round:", [row["accuracy"] for row in strategy.run.rounds()])
