"""A bounded queue between serving threads and the writer: it drops and counts, never blocks."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """A queue with many producers and one consumer. `append` is atomic: a put takes no lock."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque()
        self._capacity, self._open = capacity, True
        self.dropped = 0
        """Number of items refused because the queue was full."""

    def put(self, item: T) -> bool:
        """Append `item`; False if the queue is closed, or if it is full: then it is counted."""
        if len(self._items) >= self._capacity:
            self.dropped += self._open
            return False
        self._items.append(item)
        return True

    def close(self) -> None:
        """Refuse all further items."""
        self._open, self._capacity = False, 0

    def take_all(self) -> list[T]:
        """Remove and return everything that is queued."""
        take = self._items.popleft
        return [take() for _ in range(len(self._items))]
