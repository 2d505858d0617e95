"""Versity's S3 and a fake of Google's store for tests, built by Go in fixed versions, once.

Building one takes a minute or two and the modules that Go fetches for it, so only thorough tests ask.
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
        It cannot be built or started.
    """
    program, port = _built(VERSITY), free_port()
    address = f"http://127.0.0.1:{port}"
    # unlike the others it checks signatures
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
    """Yield the options of a store as Google's on loopback, with an empty bucket named `BUCKET`.

    The server knows conditions of a write in Google's JSON API only, and our library writes by the XML
    API; a server in this process stands between and says each write in the other one.

    Raises
    ------
    ServerUnavailable
        It cannot be built or started.
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
    """Hands requests on; a write of the XML API as one of the JSON API."""

    keeps_host = False  # the server picks what it does by the name of the host that was asked

    def do_PUT(self) -> None:
        bucket, _, name = urlsplit(self.path).path.removeprefix("/").partition("/")
        asked = {"uploadType": "media"}
        condition = self.headers.get("x-goog-if-generation-match")
        if condition is not None:
            asked["ifGenerationMatch"] = condition
        # the name is quoted already
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(asked)}&name={name}"
        answer, body = self.ask("POST", path)
        if answer.status == HTTPStatus.OK:
            made = json.loads(body)
            known = {"ETag": made["etag"], "x-goog-generation": made["generation"]}
            self.say(answer.status, known, b"")
        else:
            # of what it is asked for here, only a bucket can be missing
            code = "NoSuchBucket" if answer.status == HTTPStatus.NOT_FOUND else answer.reason
            self.say(answer.status, {}, f"<Error><Code>{code}</Code></Error>".encode())


def _built(package: str) -> Path:
    """Return a program; built if it is not there.

    Raises
    ------
    ServerUnavailable
        There is no Go, or it cannot build it.
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
