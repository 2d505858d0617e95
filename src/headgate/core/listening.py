"""Checks that a server listens at an address; clients of stores and brokers notice only after long."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

REFUSED_S = 1.0
"""Seconds for which an address is tried that refuses connections, or whose name cannot be resolved for
now. A larger value lets a server start later, and reports a wrong address later. Chosen, not tuned."""

_CONNECT_S = 3.0
_POLL_S = 0.1


def not_listening(addresses: Sequence[tuple[str, int]], patience_s: float) -> Exception | None:
    """Return the error if no address accepts a connection; None as soon as an address accepts one.

    `addresses`: hosts and ports. `patience_s`: seconds for which to try. If all addresses refuse, the
    limit is `REFUSED_S`; if all hosts are unknown, each address is tried once.
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
