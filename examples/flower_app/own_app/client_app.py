"""The ClientApp, with a mod of your own."""

from __future__ import annotations

import time

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from own_app.task import config_of
from pfedlora_flwr.client_app import app_of


def timed(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Prints the seconds that each message takes."""
    begun = time.monotonic()
    reply = call_next(message, context)
    kind, seconds = message.metadata.message_type, time.monotonic() - begun
    print(f"{kind}: {seconds:.1f} s", flush=True)
    return reply


app = app_of(config_of, [timed])
