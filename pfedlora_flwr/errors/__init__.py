"""Errors that users see as one line, and how any other error becomes one."""

from pfedlora_flwr.errors.errors import UserCodeError, UserError, needed, wrong
from pfedlora_flwr.errors.one_line import (
    brief,
    final_line,
    for_users,
    is_ours,
    names_traceback,
    no_room,
    told,
    user_code,
    with_traceback,
)
from pfedlora_flwr.errors.words import (
    apart,
    as_line,
    counted,
    differing,
    first_line,
    kind,
    looks,
    meant,
    printable,
    short,
    some,
)
