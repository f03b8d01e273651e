"""The note `millstream.moved` in the directories of a broker: its metadata is in ZooKeeper, or on its way there.

A move writes it before anything else, in every directory, so that from then on the broker does not start alone: what it then took
would be in its own store and not in ZooKeeper. While the store lies beside the note the move has not finished; when it has, the store is
put aside. A broker of a cluster writes the note as well, for whoever forgets `zookeeper.connect` one day.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millstream.ports.embedded_coordination import MIGRATION_FILE, STORE_FILE
from millstream.ports.files import Files


class MoveNote(NamedTuple):
    """``fingerprint`` is that of the metadata that a move takes along; empty in the note of a broker of a cluster."""

    path: str
    address: str
    fingerprint: str


def read_note(files: Files, directory: str) -> MoveNote | None:
    path = os.path.join(directory, MIGRATION_FILE)
    if not files.exists(path):
        return None
    address, _, rest = files.read_bytes(path).decode().partition("\n")
    return MoveNote(path, address.strip(), rest.strip())


def read_notes(files: Files, directories: Iterable[str]) -> list[MoveNote]:
    found = (read_note(files, directory) for directory in directories)
    return [note for note in found if note is not None]


def write_note(files: Files, directory: str, address: str, fingerprint: str = "") -> None:
    """Durably, unless it says so already."""
    note = MoveNote(os.path.join(directory, MIGRATION_FILE), address, fingerprint)
    if read_note(files, directory) != note:
        said = f"{address}\n{fingerprint}\n" if fingerprint else f"{address}\n"
        files.write_atomic(note.path, said.encode())


def stores(files: Files, directories: Iterable[str]) -> list[str]:
    """The stores in these directories that nobody has put aside."""
    paths = (os.path.join(directory, STORE_FILE) for directory in directories)
    return [path for path in dict.fromkeys(paths) if files.exists(path)]


def move_command(address: str, log_dirs: Sequence[str], metadata_dir: str | None = None) -> str:
    """What an operator types to move a broker, or to finish that."""
    words = ["millstream", "migrate", "--to", address]
    for path in log_dirs:
        words += ["--data", path]
    words += ["--metadata", metadata_dir] if metadata_dir else []
    return shlex.join(words)


def refusal_alone(note: MoveNote, unfinished: Sequence[str], command: str) -> str:
    """Why the broker does not start without ZooKeeper; ``unfinished`` are the stores that are still there."""
    if unfinished:
        return (
            f"this broker is being moved to ZooKeeper, says {note.path}, and that was not finished: `{command}` finishes it, and with "
            "--undo takes it back. Alone it would write another history of what it has"
        )
    return (
        f"this broker belongs to a cluster, says {note.path}: set zookeeper.connect={note.address}. Alone it would write another history of "
        "what it has"
    )


def refusal_in_cluster(store: str, note: MoveNote | None, command: str) -> str:
    """Why the broker does not start with ZooKeeper while it has a store of its own."""
    if note is not None:
        return (
            f"this broker is being moved to ZooKeeper, says {note.path}, and that was not finished: `{command}` finishes it (or move {store} away, "
            "if nobody needs what it knows)"
        )
    return (
        f"this broker was alone so far, and its metadata is in {store}, not in ZooKeeper: `{command}` takes it there (or move that file away, if "
        "nobody needs what it knows)"
    )
