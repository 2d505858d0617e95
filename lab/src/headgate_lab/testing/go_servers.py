"""Runs Versity's S3 and a fake of Google's store for tests; Go builds them once, in fixed versions.

A build takes a minute or two, and Go fetches modules for it, so only thorough tests use these servers.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode, urlsplit

from headgate_lab.testing.forward import Forwarding, forwarding
from headgate_lab.testing.servers import (
    BUCKET,
    ServerUnavailable,
    cache,
    free_port,
    install,
    running,
)

VERSITY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"


@contextmanager
def versity() -> Iterator[dict[str, str]]:
    """Yield the options of an S3 on loopback, over a directory, with an empty bucket named `BUCKET`.

    Raises
    ------
    ServerUnavailable
        The server cannot be built or started.
    """
    program, port = _built(VERSITY), free_port()
    address = f"http://127.0.0.1:{port}"
    # this server checks signatures
    secret = {"ROOT_ACCESS_KEY": "nobody", "ROOT_SECRET_KEY": "nothing"}
    with TemporaryDirectory(prefix="versity-") as files:
        (Path(files) / BUCKET).mkdir()
        listen = ["--quiet", "--health", "/health", "--port", f"127.0.0.1:{port}"]
        well = urllib.request.Request(f"{address}/health")
        with running("Versity's S3", [str(program), *listen, "posix", files], lambda: well, secret):
            yield {
                "endpoint": address,
                "accessKeyId": "nobody",
                "secretAccessKey": "nothing",
                "region": "us-east-1",
            }


@contextmanager
def fake_gcs() -> Iterator[dict[str, str]]:
    """Yield the options of a fake of Google's store on loopback, with an empty bucket named `BUCKET`.

    The server supports conditional writes in Google's JSON API only, and headgate's library writes by the
    XML API. So a proxy in this process translates each write.

    Raises
    ------
    ServerUnavailable
        The server cannot be built or started.
    """
    program, port = _built(FAKE_GCS), free_port()
    address = f"http://127.0.0.1:{port}"
    command = [str(program), "-backend", "memory", "-scheme", "http", "-log-level", "error"]
    command += ["-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    bucket = urllib.request.Request(
        f"{address}/storage/v1/b?project=none",
        data=f'{{"name": "{BUCKET}"}}'.encode(),
        headers={"Content-Type": "application/json"},
    )
    with running("the fake of Google's store", command, lambda: bucket):
        with forwarding(_Translated, port=port) as between:
            yield {"baseUrl": between, "bearerToken": "anybody"}


class _Translated(Forwarding):
    """Forwards requests, and translates a write of the XML API into one of the JSON API."""

    keeps_host = False  # the server selects its API by the request's host

    def do_PUT(self) -> None:
        bucket, _, name = urlsplit(self.path).path.removeprefix("/").partition("/")
        asked = {"uploadType": "media"}
        condition = self.headers.get("x-goog-if-generation-match")
        if condition is not None:
            asked["ifGenerationMatch"] = condition
        # the name is already quoted
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(asked)}&name={name}"
        answer, body = self.ask("POST", path)
        if answer.status == HTTPStatus.OK:
            made = json.loads(body)
            known = {"ETag": made["etag"], "x-goog-generation": made["generation"]}
            self.say(answer.status, known, b"")
        else:
            # in these requests only the bucket can be missing
            code = "NoSuchBucket" if answer.status == HTTPStatus.NOT_FOUND else answer.reason
            self.say(answer.status, {}, f"<Error><Code>{code}</Code></Error>".encode())


def _built(package: str) -> Path:
    """Return the path of a program; build it if it is missing.

    Raises
    ------
    ServerUnavailable
        Go is not installed, or the build fails.
    """
    name, _, version = package.rpartition("/")[2].partition("@")
    place = cache() / f"{name}-{version}"
    if not (place / name).exists():
        go = shutil.which("go")
        if go is None:
            msg = f"{name} is built by Go, which is not here"
            raise ServerUnavailable(msg)
        install(name, [go, "install", package], {"GOBIN": str(place), "GOFLAGS": "-modcacherw"})
    return place / name
