"""Fetches single jars from Maven Central into klamm's cache, checked against the published checksum."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple

from klamm.pipelines.lake_state import LakeError

_CENTRAL: Final = "https://repo1.maven.org/maven2"
_BLOCK_BYTES: Final = 1 << 20
_SILENCE_SECONDS_MAX: Final = 60


class Artifact(NamedTuple):
    group: str
    name: str
    version: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def url(self) -> str:
        """
        >>> Artifact("junit", "junit", "4.13.2").url.removeprefix(_CENTRAL)
        '/junit/junit/4.13.2/junit-4.13.2.jar'
        """
        return f"{_CENTRAL}/{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.file}"


def cached_jar(artifact: Artifact, directory: Path) -> Path:
    """The jar in this directory, fetched first if it is not there. It enters by rename: complete or not at all."""
    target = directory / artifact.file
    if target.is_file():
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".fetching-", delete=False) as part:
            try:
                digest = hashlib.sha1(usedforsecurity=False)
                with urllib.request.urlopen(artifact.url, timeout=_SILENCE_SECONDS_MAX) as answer:
                    while block := answer.read(_BLOCK_BYTES):
                        digest.update(block)
                        part.write(block)
                with urllib.request.urlopen(f"{artifact.url}.sha1", timeout=_SILENCE_SECONDS_MAX) as answer:
                    expected = answer.read().decode().split()[0]
                if digest.hexdigest() != expected:
                    raise LakeError(f"{artifact.url} does not fit its checksum: try again")
                part.close()
                os.replace(part.name, target)
            finally:
                Path(part.name).unlink(missing_ok=True)
    except (OSError, urllib.error.URLError) as e:
        raise LakeError(f"cannot fetch {artifact.url} into {directory}: {e}") from e
    return target
