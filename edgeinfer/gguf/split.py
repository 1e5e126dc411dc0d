"""Split models: which files belong together (NAME-00001-of-00003.gguf ...), and whether they agree. Only the reader calls it.

The metadata decides whether a file is a shard (`split.count` above 1); a file name alone never does. Names count from 1, `split.no` counts from 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgeinfer.core.errors import ModelFileError
from edgeinfer.core.printable import printable_path

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class SplitSet:
    """The files of a split model in order, and the index of the one that was opened first."""

    paths: tuple[str, ...]
    opened: int

    def check_shard(self, number: int, metadata: Mapping[str, Any]) -> None:
        """A ModelFileError unless the metadata of the file at index `number` says the same number and count as the set."""
        path = self.paths[number]
        found_count, found_number = _whole_number(path, metadata, "split.count"), _whole_number(path, metadata, "split.no")
        if found_count != len(self.paths) or found_number != number:
            raise ModelFileError(
                f"{printable_path(path)} says in its metadata that it is shard {_shown(found_number)} of {found_count or 1}, but by its name, and "
                f"by {printable_path(self.paths[self.opened])}, it is shard {number + 1} of {len(self.paths)}; it was renamed or belongs to another "
                "model"
            )

    def check_total(self, found: int, metadata: Mapping[str, Any]) -> None:
        """A ModelFileError unless the set holds as many tensors as the first shard announces."""
        announced = _whole_number(self.paths[0], metadata, "split.tensors.count")
        if announced is not None and announced != found:
            raise ModelFileError(
                f"{printable_path(self.paths[0])} announces {announced} tensors in {len(self.paths)} shards, but they hold {found}; the files do not "
                "belong together, fetch them again"
            )


def find_split_set(path: str, metadata: Mapping[str, Any]) -> SplitSet | None:
    """The set that a file belongs to; None if its metadata does not say that it is a shard. A ModelFileError if the others cannot be found."""
    count = _whole_number(path, metadata, "split.count")
    if count is None or count < 2:
        return None
    shown = printable_path(path)
    number = _whole_number(path, metadata, "split.no")
    if number is None or number >= count:
        raise ModelFileError(f"{shown}: split.no is {number}, expected 0 to {count - 1} as split.count is {count}; the file is damaged")
    folder, name = os.path.split(path)
    parts = _SHARD_NAME.fullmatch(name)
    if parts is None:
        raise ModelFileError(
            f"{shown} is shard {number + 1} of {count} of a split model, but is not named like one, so the other shards cannot be found; rename all "
            f"of them to NAME-00001-of-{count:05d}.gguf and so on, and open the first"
        )
    if int(parts["number"]) != number + 1 or int(parts["count"]) != count:
        raise ModelFileError(
            f"{shown} says in its metadata that it is shard {number + 1} of {count}, which contradicts its name; it was renamed, or belongs to "
            "another model"
        )
    stem = parts["stem"]
    paths = tuple(os.path.join(folder, f"{stem}-{index + 1:05d}-of-{count:05d}.gguf") for index in range(count))
    missing = [candidate for candidate in paths if not os.path.exists(candidate)]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ModelFileError(f"{shown} is shard {number + 1} of {count}, but {printable_path(missing[0])}{more} is missing; fetch all {count} shards")
    return SplitSet(paths, number)


def _whole_number(path: str, metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelFileError(f"{printable_path(path)}: {key} is {value!r:.80}, expected a whole number of at least 0; the file is damaged")
    return value


def _shown(number: int | None) -> str:
    return "(no number)" if number is None else str(number + 1)
