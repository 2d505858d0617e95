"""Checks that a server listens at an address before libraries of stores and brokers retry for long."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

REFUSED_S = 1.0
"""How long addresses that refuse connections, or that no name service knows yet, are tried, in seconds.
With more, a server may start a little later than its user; a wrong address is told later. Chosen."""

_CONNECT_S = 3.0
_POLL_S = 0.1


def not_listening(addresses: Sequence[tuple[str, int]], patience_s: float) -> Exception | None:
    """Return why none of some addresses takes a connection; None as soon as one of them does.

    `addresses`: hosts and ports. `patience_s`: how long they are tried; addresses that refuse are
    for `REFUSED_S`, unknown hosts once.
    """
    began_s = time.monotonic()
    while True:
        failures = []
        for host, port in addresses:
            try:
                socket.create_connection((host, port), _CONNECT_S).close()
            except (OSError, OverflowError, UnicodeError) as error:
                failures.append(error)
            else:
                return None
        limit_s = max(_tried_for_s(failure, patience_s) for failure in failures)
        if time.monotonic() - began_s >= limit_s:
            return failures[-1]
        time.sleep(_POLL_S)


def _tried_for_s(failure: Exception, patience_s: float) -> float:
    if isinstance(failure, socket.gaierror) and failure.errno != socket.EAI_AGAIN:
        return 0.0
    if isinstance(failure, socket.gaierror | ConnectionRefusedError):
        return min(REFUSED_S, patience_s)
    return patience_s if isinstance(failure, OSError) else 0.0
