"""Lists the stores for checkpoints (object stores and HDFS), and checks their options."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import PurePosixPath

from headgate.core.errors import CheckpointError, ConfigError, nearest
from headgate.core.installed import STORES, Plugin, installed

SCHEMES: Mapping[str, str] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "abfss": "abfss",
    "abfs": "abfss",
    "hdfs": "hdfs",
}
"""The name before ``://`` -> the kind of store."""

PREFIX = "headgate.store."
"""Prefix of the options of a checkpoint's store."""

_EVERY = ("timeout",)

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "s3": (
        "accessKeyId",
        "disableBulkDelete",
        "endpoint",
        "region",
        "requestPayer",
        "roleArn",
        "roleSessionName",
        "s3Express",
        "secretAccessKey",
        "serverSideEncryption",
        "sessionToken",
        "skipSignature",
        "sseKmsKeyId",
        "virtualHostedStyleRequest",
        "webIdentityTokenFile",
        *_EVERY,
    ),
    "gs": ("baseUrl", "bearerToken", "serviceAccount", "serviceAccountKey", *_EVERY),
    "abfss": (
        "accountKey",
        "accountName",
        "clientId",
        "clientSecret",
        "endpoint",
        "federatedTokenFile",
        "sasKey",
        "tenantId",
        "token",
        "useAzureCli",
        *_EVERY,
    ),
    "hdfs": ("configDir",),
}
"""Names of options by kind of store, without `PREFIX`; the store's library has its own defaults."""

_BY_LOWER = {f"{PREFIX}{name}".lower(): name for names in OPTIONS.values() for name in names}


class Hidden(str):
    """Hides a secret text: its `repr` does not contain the text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'(hidden)'"


_SECRET = re.compile(r"^/*[^/]*:[^/]*@|[?&](sig|token|x-amz-\w+)=", re.IGNORECASE)
"""A name and a secret before the bucket, or a signature after the key. These parts of an address grant
access, so they must not get into a log, a page or a metric."""


def store_url(location: str | os.PathLike[str]) -> str | None:
    """Return the address of a location on a store, ``scheme://bucket/key``; None if on no store.

    The bucket of HDFS is its name node or name service; the key is a directory.

    `location` (str or path): the text as the user wrote it; a ``pathlib.Path``, which has lost a
    slash, is accepted, too. Raises `CheckpointError`: `location` names a store but no bucket or key,
    or contains a credential.
    """
    text = os.fspath(location)
    scheme, colon, rest = text.partition(":")
    if not colon or (scheme not in SCHEMES and _plugin(scheme, tuple(sys.path)) is None):
        return None
    if _SECRET.search(rest):
        msg = (
            f"a checkpoint at {scheme}:// has a credential in its address, which is not shown; leave "
            "it out, and set it as its cloud does, or by options headgate.store.*."
        )
        raise CheckpointError(msg)
    slashes = "//" if isinstance(location, str) else "/"
    bucket, _, key = rest.removeprefix(slashes).partition("/")
    parts = PurePosixPath(key.lstrip("/")).parts
    if not rest.startswith(slashes) or not bucket or not parts or ".." in parts:
        what, form = "key in a bucket", "bucket/key"
        if scheme == "hdfs":
            what, form = "directory of a name node", "namenode:8020/directory"
        msg = f"checkpoint {text} names no {what}; write it as {scheme}://{form}."
        raise CheckpointError(msg)
    return f"{scheme}://{bucket}/{'/'.join(parts)}"


_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


@lru_cache(maxsize=16)  # a worker calls this with each task
def _plugin(scheme: str, path: tuple[str, ...]) -> Plugin | None:
    """Return the store of an installed package for a scheme; `path`: as `sys.path`, for the cache."""
    del path
    if scheme == "file" or not _SCHEME.fullmatch(scheme):
        return None
    return installed(STORES).get(scheme)


def plugin_of(url: str) -> Plugin | None:
    """Return the installed package's store for a `store_url`; None for a store of headgate."""
    scheme = url.partition(":")[0]
    return None if scheme in SCHEMES else _plugin(scheme, tuple(sys.path))


def kind_of(url: str) -> str:
    """Return the kind of a `store_url` on one of headgate's own stores."""
    return SCHEMES[url.partition(":")[0]]


def is_store_option(key: str) -> bool:
    """Return whether an option belongs to a store, by its name; case does not matter."""
    return key.lower().startswith(PREFIX)


def store_option(key: str, text: str) -> tuple[str, Hidden]:
    """Return an option's name with the letter case of `OPTIONS`, and its hidden text.

    If packages with stores are installed, an unknown name stays as it was typed: `options_for` checks
    it later. Raises `ConfigError`: there is no such option.
    """
    name = _BY_LOWER.get(key.lower())
    if name is None and installed(STORES):
        name = key[len(PREFIX) :]
    if name is None:
        known = [f"{PREFIX}{name}" for name in _BY_LOWER.values()]
        msg = f'unknown option "{key}"{nearest(key, known) or "."}'
        raise ConfigError(msg)
    return f"{PREFIX}{name}", Hidden(text)


def options_for(url: str | None, options: Mapping[str, str]) -> dict[str, Hidden]:
    """Return the options of a checkpoint's store from all options of a writer, without `PREFIX`.

    Raises `ConfigError`: an option is for another kind of store, or there is no store.
    """
    chosen = {k.removeprefix(PREFIX): Hidden(v) for k, v in options.items() if is_store_option(k)}
    if url is None:
        if chosen:
            msg = (
                f"option {PREFIX}{next(iter(chosen))} is for a checkpoint on a store; leave it "
                "out, or give a checkpointLocation such as s3://bucket/key."
            )
            raise ConfigError(msg)
        return {}
    plugin = plugin_of(url)
    allowed: tuple[str, ...] = (
        OPTIONS[kind_of(url)]
        if plugin is None
        else getattr(plugin.load(type, "class"), "option_names", ())
    )
    for name in chosen:
        if name not in allowed:
            scheme = url.partition(":")[0]
            msg = (
                f"option {PREFIX}{name} is not one of a store {scheme}://; use one of "
                f"{', '.join(allowed) or 'none'}."
            )
            raise ConfigError(msg)
    return chosen


_ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "s3": ("AWS_",),
    "gs": ("GOOGLE_",),
    "abfss": ("AZURE_STORAGE_", "AZURE_"),
    "hdfs": (),
}
"""Prefixes of the environment variables that a store's library reads where an option is missing."""

_UNSENDABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no HTTP header can contain; the library for stores panics on them."""


def refuse_unsendable(url: str, options: Mapping[str, str]) -> None:
    """Refuse a setting of a store, an option or a variable, with a control character.

    A credential that was copied from a file often ends with a line break. Raises `CheckpointError`,
    which does not show the value.
    """
    kind = kind_of(url)
    settings = {f"option {PREFIX}{name}": text for name, text in options.items()}
    for name in OPTIONS[kind]:
        upper = re.sub("([A-Z])", r"_\1", name).upper()
        for begin in _ENVIRONMENT[kind]:
            settings[f"the variable {begin}{upper}"] = os.environ.get(f"{begin}{upper}", "")
    for name, text in settings.items():
        if _UNSENDABLE.search(text):
            msg = f"{url}: {name} holds a line break or another control character; leave it out."
            raise CheckpointError(msg)
