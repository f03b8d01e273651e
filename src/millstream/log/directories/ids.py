"""Missing data directories, and empty ones in their place: a disk that is not mounted (KIP-858).

Each directory has an id in meta.properties. Every directory also lists the ids of all directories
of its broker, and so does the metadata. If a listed directory is missing while another is empty,
the broker does not start: an empty mount point would hide the partitions of the disk that belongs
there.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Collection, Iterable

from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import encode_uuid
from millstream.log.directories.log_directory import LogDir, LogDirError
from millstream.ports.files import Files

logger = logging.getLogger("millstream.log.directory_ids")


def listed(log_dirs: Iterable[LogDir]) -> set[str]:
    """Return the ids that the directories list, including their own."""
    ids: set[str] = set()
    for log_dir in log_dirs:
        ids.update(filter(None, log_dir.meta.get("directory.ids", "").split(",")))
        ids.update(filter(None, (log_dir.meta.get("directory.id"),)))
    return ids


def assign_ids(log_dirs: Collection[LogDir]) -> set[str]:
    """Give new directories an id. Return the ids of all.

    Directories that are offline stay in the list.
    """
    online = [log_dir for log_dir in log_dirs if log_dir.online]
    ids = set() if len(online) == len(log_dirs) else listed(online)
    for log_dir in online:
        log_dir.directory_id = log_dir.directory_id or uuid.uuid4()
        ids.add(encode_uuid(log_dir.directory_id))
    return ids


def check_not_replaced(log_dirs: Collection[LogDir], known: Iterable[str]) -> None:
    """Raise LogDirError if an empty directory replaces one that is listed or `known`."""
    online = [log_dir for log_dir in log_dirs if log_dir.online]
    present = {log_dir.meta["directory.id"] for log_dir in online if "directory.id" in log_dir.meta}
    missing = (listed(online) | set(known)) - present
    empty = [log_dir for log_dir in online if not log_dir.meta and _is_empty(log_dir)]
    # A directory that is offline may be one of those that are missing.
    if empty and len(missing) > len(log_dirs) - len(online):
        raise LogDirError(
            f"the data directory {empty[0].path} is empty, and the directory with the id"
            f" {min(missing)} is missing: is its disk mounted? If it is lost, create"
            f" {empty[0].file(file_names.ACCEPT_LOSS)} to continue without it"
        )


def _is_empty(log_dir: LogDir) -> bool:
    """Return whether a directory has no partition, and no file that accepts data loss."""
    names = log_dir.files.listdir(log_dir.path)
    if any(file_names.parse_directory(name) is not None for name in names):
        logger.warning("%s is missing; rewriting it", log_dir.file(file_names.META_PROPERTIES))
        return False
    return file_names.ACCEPT_LOSS not in names


def check_not_new(files: Files, paths: Iterable[str]) -> None:
    """Raise LogDirError if no broker has used a directory yet (`millstream serve --existing`)."""
    for path in map(os.path.abspath, paths):
        if not files.exists(os.path.join(path, file_names.META_PROPERTIES)):
            raise LogDirError(
                f"the data directory {path} has no {file_names.META_PROPERTIES}, and --existing"
                " rejects new directories: is its disk mounted? Start once without --existing to"
                " begin with an empty directory"
            )


def warn_if_missing(files: Files, store: str, log_dirs: Iterable[LogDir]) -> None:
    """Warn if a broker of Millstream has used the directories, but its metadata store is gone."""
    if not files.exists(store) and any(log_dir.knows_directories for log_dir in log_dirs):
        logger.warning(
            "the metadata store %s is missing, and all settings with it. Topics are restored from"
            " the disk, with settings that delete nothing; restore the file from a copy to get the"
            " settings back",
            store,
        )
