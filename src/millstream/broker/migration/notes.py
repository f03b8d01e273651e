"""The marker file `millstream.moved`: the metadata of the broker is or will be in ZooKeeper.

A migration writes it before anything else, in every directory. From then on the broker does not
start alone, because its changes would go to its own store and not to ZooKeeper. While the store is
still beside the marker, the migration is not complete. At its end the store is renamed. A broker of
a cluster writes the marker too, in case `zookeeper.connect` is forgotten one day.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millstream.ports.embedded_coordination import MIGRATION_FILE, STORE_FILE
from millstream.ports.files import Files


class MigrationNote(NamedTuple):
    """A marker file.

    ``fingerprint`` is that of the migrated metadata. It is empty if a broker of a cluster wrote it.
    """

    path: str
    address: str
    fingerprint: str


def read_note(files: Files, directory: str) -> MigrationNote | None:
    path = os.path.join(directory, MIGRATION_FILE)
    if not files.exists(path):
        return None
    address, _, rest = files.read_bytes(path).decode().partition("\n")
    return MigrationNote(path, address.strip(), rest.strip())


def read_notes(files: Files, directories: Iterable[str]) -> list[MigrationNote]:
    notes = (read_note(files, directory) for directory in directories)
    return [note for note in notes if note is not None]


def write_note(files: Files, directory: str, address: str, fingerprint: str = "") -> None:
    """Write a note durably, unless the directory has the same one."""
    note = MigrationNote(os.path.join(directory, MIGRATION_FILE), address, fingerprint)
    if read_note(files, directory) != note:
        text = f"{address}\n{fingerprint}\n" if fingerprint else f"{address}\n"
        files.write_atomic(note.path, text.encode())


def stores(files: Files, directories: Iterable[str]) -> list[str]:
    """Return the stores in these directories that no migration has renamed."""
    paths = (os.path.join(directory, STORE_FILE) for directory in directories)
    return [path for path in dict.fromkeys(paths) if files.exists(path)]


def migrate_command(address: str, log_dirs: Sequence[str], metadata_dir: str | None = None) -> str:
    """Return the command that migrates a broker, or completes a migration."""
    words = ["millstream", "migrate", "--to", address]
    for path in log_dirs:
        words += ["--data", path]
    words += ["--metadata", metadata_dir] if metadata_dir else []
    return shlex.join(words)


def why_not_alone(note: MigrationNote, unfinished: Sequence[str], command: str) -> str:
    """Return why the broker does not start without ZooKeeper.

    ``unfinished`` are the stores that still exist.
    """
    if unfinished:
        return (
            f"the migration of this broker to ZooKeeper is not complete ({note.path}): "
            f"`{command}` completes it, and with --undo reverts it. "
            "Alone the broker would write a second history of its data"
        )
    return (
        f"this broker belongs to a cluster ({note.path}): set zookeeper.connect={note.address}. "
        "Alone it would write a second history of its data"
    )


def why_not_in_cluster(store: str, note: MigrationNote | None, command: str) -> str:
    """Return why the broker does not start with ZooKeeper while it has its own store."""
    if note is not None:
        return (
            f"the migration of this broker to ZooKeeper is not complete ({note.path}): "
            f"`{command}` completes it (or move {store} away, if its metadata is not needed)"
        )
    return (
        f"this broker has run without ZooKeeper so far, and its metadata is in {store}: "
        f"`{command}` migrates it (or move that file away, if its metadata is not needed)"
    )
