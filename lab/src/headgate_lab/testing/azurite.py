"""Runs Azurite, an emulator of Azure's blob store, for tests; npm installs it once in a directory.

Azurite's version is fixed, but npm chooses those of its dependencies, so only thorough tests use it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from headgate_lab.testing.servers import (
    BUCKET,
    ServerUnavailable,
    cache,
    free_port,
    install,
    running,
)

AZURITE = "azurite@3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The default account of Azurite, from its documentation."""

PLACE = f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net"
"""Prefix of the address of a checkpoint on the store."""


@contextmanager
def azurite() -> Iterator[dict[str, str]]:
    """Yield the options of a store on loopback with an empty container named `BUCKET`.

    Raises
    ------
    ServerUnavailable
        Azurite cannot be installed or started.
    """
    program, port = _installed(), free_port()
    arguments = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command = ["node", str(program), *arguments, "--inMemoryPersistence", "--skipApiVersionCheck"]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"

    def container() -> urllib.request.Request:
        url = f"{endpoint}/{BUCKET}?restype=container"
        return urllib.request.Request(url, data=b"", headers=_signed(), method="PUT")

    with running("Azurite", command, container):
        yield {"endpoint": endpoint, "accountName": ACCOUNT, "accountKey": KEY}


def _signed() -> dict[str, str]:
    """Return the headers of the request for a new container, signed as Azure's Shared Key has it."""
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{text}\n" for name, text in headers.items())
    text = "PUT\n" + "\n" * 11 + named + f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    authorization = f"SharedKey {ACCOUNT}:{signature}"
    # urllib would name a type that is not part of what was signed
    return {**headers, "Authorization": authorization, "Content-Type": ""}


def _installed() -> Path:
    """Return the program; fetched if it is not there.

    Raises
    ------
    ServerUnavailable
        npm is missing, or the installation fails.
    """
    if shutil.which("npm") is None or shutil.which("node") is None:
        msg = "Azurite needs node and npm"
        raise ServerUnavailable(msg)
    place = cache() / AZURITE.replace("@", "-")
    program = Path("node_modules", "azurite", "dist", "src", "blob", "main.js")
    if (place / program).exists():
        return place / program
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="azurite-", dir=place.parent))
    quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev", "--loglevel=error"]
    try:
        install("Azurite", ["npm", "install", *quiet, "--prefix", str(made), AZURITE])
        if not place.exists():
            made.rename(place)
    except OSError as error:
        msg = f"Azurite cannot be installed: {error}"
        raise ServerUnavailable(msg) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return place / program
