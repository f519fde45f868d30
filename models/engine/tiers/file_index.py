"""Files of prefixes: which there are, of which tokens, and which go when there are too many."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path
from time import monotonic

import msgspec
import numpy as np

from blockstride.models.engine.prefix_tree import Node, PrefixTree, Tokens
from blockstride.models.engine.tiers.stored_file import Part, StoredFile, Tag
from blockstride.transfer.tiers import CacheFile, CacheFileError

SUFFIX = ".cache"
LOOK_SECONDS = 1.0
"""How often a folder is looked at for what other processes have written or removed."""

ONE_FILE = 1 << 40
"""More tokens than any sequence has: to the tree a file is a block that has all of them."""

logger = logging.getLogger(__name__)


class FileIndex:
    """Files of one model's prefixes, each a part of a sequence after those of others.

    The tokens are in the files, so a folder is all that is needed to find what any process has
    kept: any number of processes may share one.

    Args:
        folder: Where they are; made if need be.
        most_bytes: What they may take. Those that were of use longest ago are removed.
        has_states: Whether a sequence can go on only where states are.
        has_windows: Whether a part can be used only to its end.

    Attributes:
        damaged: Files that turned out to be damaged, or gone.

    Raises:
        OSError: The folder can't be made, or looked into.
    """

    def __init__(
        self, folder: Path, most_bytes: int, *, has_states: bool, has_windows: bool
    ) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self.damaged = 0
        self._has_states, self._has_windows = has_states, has_windows
        self._tree = PrefixTree((ONE_FILE,), 1)
        self._files: dict[int, StoredFile] = {}
        self._numbers: dict[str, int] = {}
        self._ignored: set[str] = set()
        self._next, self._looked, self._changed = count(1), 0.0, -1
        folder.mkdir(parents=True, exist_ok=True)
        self._look()

    @property
    def nbytes(self) -> int:
        """What the files take."""
        return sum(file.nbytes for file in self._files.values())

    def match(self, tokens: Tokens, salt: str) -> list[Part]:
        """What to read, in order, for the longest prefix of a sequence that can go on; or nothing.

        At least one token is left to compute.
        """
        if monotonic() - self._looked > LOOK_SECONDS:
            with suppress(OSError):
                self._look()
        match = self._tree.match(tokens, _digest(salt))
        known: list[tuple[Node, StoredFile]] = []
        best: list[Part] = []
        for node in match.path:
            file = self._whole(node.blocks[0][0])
            if file is None:
                break
            known.append((node, file))
            stop = min(node.stop, match.length)
            states = self._whole(node.states[0]) if node.states else None
            if self._has_states and (states is None or stop < node.stop):
                continue
            parts = self._parts(known, stop, states)
            if self._has_windows and any(p.num_tokens < len(p.file.tokens) for p in parts):
                continue
            best = parts
        return best

    def known(self, tokens: Tokens, salt: str) -> int:
        """Tokens that a sequence begins with and that files have, if it can't go on there, too."""
        return self._tree.match(tokens, _digest(salt)).length

    def _parts(
        self, known: Sequence[tuple[Node, StoredFile]], stop: int, states: StoredFile | None
    ) -> list[Part]:
        """Files that have the first tokens together, and the states after them, few and in order.

        Args:
            known: Nodes up to there, and for each the file that has its tokens.
            stop: The tokens.
            states: Who has the states; None where there are none.
        """
        parts, end = [], stop
        if self._has_states and states is not None:
            parts, end = [Part(states, stop, True)], states.start
        while end > 0:
            # a file of tokens up to some has all from its start on
            file = next(file for node, file in known if node.stop >= end)
            parts.append(Part(file, end, False))
            end = file.start
        return parts[::-1]

    def _whole(self, number: int) -> StoredFile | None:
        file = self._files.get(int(number))
        return file if file is not None and file.is_whole else None

    def use(self, files: Sequence[StoredFile]) -> None:
        """Files of one sequence, in order, are of use: the first more than those after it."""
        for file in reversed(files):
            with suppress(OSError):
                os.utime(file.path)
                file.used = file.path.stat().st_mtime

    def begin(self, tokens: Tokens, salt: str, has_states: bool) -> StoredFile | None:
        """A file for what no file has of a sequence; None where there is nothing.

        `on_written` says that it is there.
        """
        salt = _digest(salt)
        match, start = self._tree.match(tokens, salt), 0
        for node in match.path:
            if int(node.blocks[0][0]) not in self._files:
                break
            start = min(node.stop, match.length)
        is_end = bool(match.path) and match.path[-1].stop == match.length == len(tokens)
        known = match.path[-1].states if is_end else None
        if start == len(tokens) and not (has_states and not known):
            return None
        file = StoredFile(
            self._path(tokens, salt, start, has_states), salt, tokens, start, has_states
        )
        self._add(file)
        return file

    def _path(self, tokens: Tokens, salt: str, start: int, has_states: bool) -> Path:
        digest = blake2b(tokens.tobytes(), digest_size=16)
        digest.update(f"{salt}/{start}/{has_states}".encode())
        return self.folder / f"{digest.hexdigest()}{SUFFIX}"

    def on_written(self, file: StoredFile, is_whole: bool) -> None:
        """A file has been written, or has come to nothing."""
        if not is_whole:
            self._forget(file)
            return
        with suppress(OSError):
            file.nbytes, file.is_whole = file.path.stat().st_size, True
        path = self._tree.match(file.tokens, file.salt).path
        before = [self._whole(node.blocks[0][0]) for node in path]
        self.use([*dict.fromkeys(each for each in before if each is not None), file])
        self._make_room()

    def on_damaged(self, path: str) -> None:
        """A file can't be read: it is a miss from now on, and removed."""
        number = self._numbers.get(Path(path).name)
        if number is not None:
            self.damaged += 1
            self._remove(self._files[number])

    def _make_room(self) -> None:
        surplus = self.nbytes - self.most_bytes
        # of a sequence, the parts after others go first
        whole = [file for file in self._files.values() if file.is_whole]
        for file in sorted(whole, key=lambda file: (file.used, -len(file.tokens))):
            if surplus <= 0:
                return
            surplus -= file.nbytes
            self._remove(file)

    def _remove(self, file: StoredFile) -> None:
        with suppress(OSError):
            file.path.unlink(missing_ok=True)
        self._forget(file)

    def _add(self, file: StoredFile) -> None:
        """Puts a file into the tree, where no other has what it has."""
        number, tokens = next(self._next), file.tokens
        self._files[number], self._numbers[file.path.name] = file, number
        match = self._tree.match(tokens, file.salt)
        node = match.path[-1] if match.path else self._tree.root(file.salt)
        if match.length < node.stop:
            node, _ = self._tree.split(node, match.length - node.start)
        for known in node.ancestors():
            if known.start >= file.start and int(known.blocks[0][0]) not in self._files:
                known.blocks = [np.array([number])]
        if match.length < len(tokens):
            # what is before its start may be in no file yet
            covered = number if file.start <= match.length else 0
            rest = tokens[match.length :]
            node = Node(rest, match.length, node, [np.array([covered])], None)
            self._tree.append(node)
            if not covered:
                upper, _ = self._tree.split(node, file.start - match.length)
                upper.blocks, node.blocks = [np.array([0])], [np.array([number])]
        if file.has_states and not (node.states and node.states[0] in self._files):
            node.states = [number]

    def _forget(self, file: StoredFile) -> None:
        number = self._numbers.pop(file.path.name)
        del self._files[number]
        for node in [*self._tree.nodes()]:
            if int(node.blocks[0][0]) == number:
                node.blocks = [np.array([0])]
            if node.states and node.states[0] == number:
                node.states = None
        # ends that no file has
        for node in sorted(self._tree.nodes(), key=lambda node: -node.stop):
            if not node.children and not node.states and not node.blocks[0][0]:
                self._tree.remove(node)

    def _look(self) -> None:
        """Takes in what has come and gone since the last time."""
        self._looked = monotonic()
        changed = self.folder.stat().st_mtime_ns
        if changed == self._changed:
            return
        self._changed = changed
        there = {entry.name for entry in os.scandir(self.folder) if entry.name.endswith(SUFFIX)}
        for name in [name for name in self._numbers if name not in there]:
            if (file := self._files[self._numbers[name]]).is_whole:
                self._forget(file)
        found = list(self._read(sorted(there - self._numbers.keys() - self._ignored)))
        for file in sorted(found, key=lambda file: (file.start, len(file.tokens))):
            self._add(file)
        self._make_room()

    def _read(self, names: Sequence[str]) -> Iterator[StoredFile]:
        for name in names:
            path = self.folder / name
            try:
                with CacheFile(path) as file:
                    tag = msgspec.msgpack.decode(file.tag, type=Tag)
                    tokens = np.frombuffer(tag.tokens, np.int32)
                    if len(tokens) != file.num_tokens:
                        raise CacheFileError(f"{path}: expected {file.num_tokens} tokens")
                    start, has_states = file.start, file.num_states > 0
                    size, used = path.stat().st_size, path.stat().st_mtime
                yield StoredFile(path, tag.salt, tokens, start, has_states, size, used, True)
            except (CacheFileError, msgspec.DecodeError, ValueError, OSError) as error:
                self.damaged += 1
                # it may be a later version's
                self._ignored.add(name)
                logger.warning("%s: not used: %s", path, error)


def _digest(salt: str) -> str:
    return blake2b(salt.encode(), digest_size=16).hexdigest()
