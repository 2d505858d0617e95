"""Checks every file of a checkpoint, and reports the problems."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import FIRST_STEPS, Manifest
from headgate.checkpoint.spark_log import problems_in_log
from headgate.core.errors import HeadgateError
from headgate.tables.lineage import leads
from headgate.tables.ports import EMPTY_TOKEN


def problems(checkpoint: Checkpoint) -> list[str]:
    """Return one sentence per problem; empty if the checkpoint is sound."""
    texts: list[str] = []
    try:
        job = str(checkpoint.identity()["job"])
        checkpoint.later_meaning()
        steps = checkpoint.steps()
    except HeadgateError as error:
        return [str(error)]
    manifests: list[Manifest] = []
    for step in steps:
        try:
            manifests.append(checkpoint.read(step))
        except HeadgateError as error:
            texts.append(str(error))
    if any(manifest.job != job for manifest in manifests):
        place = checkpoint.files.at("identity.json")
        texts.append(f"{place} is of another checkpoint than the manifests: restore it from a copy")
    # a driver's first manifest stays while its files are removed; the chains check the needed files
    firsts = set(manifests[-1].engine.get(FIRST_STEPS, ())) if manifests else set()
    for manifest in manifests:
        if manifest.step not in firsts:
            texts += _bad_blobs(checkpoint, manifest)
    for before, after in itertools.pairwise(manifests):
        if after.step == before.step + 1 and after.previous != before.digest:
            texts.append(f"step {after.step} does not follow step {before.step}")
    for manifest in manifests[-2:]:
        texts += _bad_files(checkpoint, manifest)
    if manifests and not texts:
        texts += _bad_chains(checkpoint, manifests[-1])
    texts += _bad_notes(checkpoint)
    if not checkpoint.files.shared:
        texts += problems_in_log(checkpoint, manifests[-1] if manifests else None)
    return texts


def _bad_notes(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the problems of intents, and of the note about Spark's log."""
    names: Sequence[str] = ()
    try:
        names = checkpoint.files.names("intents")
    except FileNotFoundError:
        pass  # tools that copy files may omit an empty directory
    except OSError as error:
        place = checkpoint.files.at("intents")
        yield f"{place} cannot be read ({error.strerror}): restore the checkpoint from a copy"
    steps = [int(name) for name in names if name.isdecimal()]
    reads: list[Callable[[], object]] = [checkpoint.read_note]
    reads += [partial(checkpoint.read_intent, step) for step in sorted(steps)]
    for read in reads:
        try:
            read()
        except HeadgateError as error:
            yield str(error)


def _bad_blobs(checkpoint: Checkpoint, manifest: Manifest) -> Iterator[str]:
    for index in range(len(manifest.blobs)):
        try:
            checkpoint.blob(manifest, index)
        except HeadgateError as error:
            yield f"step {manifest.step}: {error}"


def _bad_files(checkpoint: Checkpoint, manifest: Manifest) -> Iterator[str]:
    for file in manifest.files:
        kind, _, name = file.name.partition("/")
        try:
            checkpoint.read_file(kind, name, length=file.length, crc32=file.crc32)
        except HeadgateError as error:
            yield f"step {manifest.step}: {error}"


def _bad_chains(checkpoint: Checkpoint, manifest: Manifest) -> Iterator[str]:
    for operator, heads in manifest.heads.items():
        for group, (token, step) in enumerate(zip(heads.tokens, heads.steps, strict=True)):
            try:
                sections = checkpoint.chain(operator, group, step, token)(EMPTY_TOKEN)
            except HeadgateError as error:
                yield f"{operator}, key group {group}: {error}"
                continue
            full = bool(sections) and sections[0].full
            start = sections[0].token if full else EMPTY_TOKEN
            if not leads(sections[1:] if full else sections, start, token):
                yield f"{operator}, key group {group}: its chain does not lead to {token}"
