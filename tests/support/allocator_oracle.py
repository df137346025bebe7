"""The caching allocator as its documentation tells it, slow and obvious: lists, and a look at every block.

Default settings and max_split alone. Segments lie where the caller says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(slots=True)
class Piece:
    """A part of a segment."""

    address: int
    size: int
    name: int | None = None


@dataclass(slots=True)
class Oracle:
    """Segments by pool (small or large, and stream), each a list of pieces from its begin to its end."""

    capacity: int = 1 << 62
    max_split: int = 1 << 62
    segments: dict[tuple[bool, int], list[list[Piece]]] = field(default_factory=dict)
    next_address: int = 1 << 44
    failed: bool = False

    @property
    def reserved(self) -> int:
        return sum(piece.size for pool in self.segments.values() for segment in pool for piece in segment)

    def malloc(self, name: int, requested: int, stream: int = 0) -> int | None:
        size = max(512, (requested + 511) // 512 * 512)
        pool = self.segments.setdefault((size <= MIB, stream), [])
        segment = self._fitting(pool, size)
        if segment is None:
            wanted = (
                2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            )
            is_enough = self.reserved + wanted <= self.capacity
            if not is_enough and self.max_split < 1 << 62:
                is_enough = self._release_oversize(pool, max(size, self.max_split))
            if not is_enough or self.reserved + wanted > self.capacity:
                self.empty_cache()
            if self.reserved + wanted > self.capacity:
                return None
            segment = [Piece(self.next_address, wanted)]
            self.next_address += wanted
            pool.append(segment)
            index = 0
        else:
            segment, index = segment
        piece = segment[index]
        rest = piece.size - size
        if rest >= 512 if size <= MIB else rest > MIB and size < self.max_split:
            segment.insert(index + 1, Piece(piece.address + size, rest))
            piece.size = size
        piece.name = name
        return piece.address

    def free(self, name: int) -> None:
        for pool in self.segments.values():
            for segment in pool:
                for piece in segment:
                    if piece.name == name:
                        piece.name = None
                index = 0
                while index + 1 < len(segment):
                    one, other = segment[index : index + 2]
                    if one.name is None and other.name is None:
                        one.size += other.size
                        del segment[index + 1]
                    else:
                        index += 1

    def empty_cache(self) -> None:
        for pool in self.segments.values():
            pool[:] = [segment for segment in pool if len(segment) > 1 or segment[0].name is not None]

    def _fitting(self, pool: list[list[Piece]], size: int) -> tuple[list[Piece], int] | None:
        free = [
            (piece.size, piece.address, segment, index)
            for segment in pool
            for index, piece in enumerate(segment)
            if piece.name is None and piece.size >= size
        ]
        if not free:
            return None
        best = min(free, key=lambda each: each[:2])
        if size < self.max_split <= best[0]:
            return None
        if size >= self.max_split and best[0] >= size + 20 * MIB:
            return None
        return best[2], best[3]

    def _release_oversize(self, pool: list[list[Piece]], wanted: int) -> bool:
        """One large enough goes; else the largest ones, until they are enough; whether they are.

        Where they are not, PyTorch gives back all that is cached, even if they were enough for the device.
        """
        free = sorted(
            (piece.size, piece.address)
            for segment in pool
            for piece in segment
            if piece.name is None and piece.size >= self.max_split
        )
        enough = [pair for pair in free if pair[0] >= wanted]
        gone, total = enough[:1], 0
        if not enough:
            for pair in reversed(free):
                if total >= wanted:
                    break
                gone.append(pair)
                total += pair[0]
        addresses = {address for _, address in gone}
        is_enough = sum(size for size, _ in gone) >= wanted
        pool[:] = [segment for segment in pool if segment[0].address not in addresses]
        return is_enough
