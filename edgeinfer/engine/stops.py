"""Stop texts in a stream: nothing that may turn out to be the start of a match is given out before that is known. Used by generations."""

from __future__ import annotations


class StopMatcher:
    """Feed it pieces of text; it returns what is safe to show. `matched` tells that a stop text was found: nothing after it, or of it, ever comes
    out.

    Of the stop texts that a piece completes the one that starts first counts, whatever the order of `stops`.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.matched = False

    def push(self, piece: str) -> str:
        """The text that can be shown after `piece`."""
        if self.matched:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [position for position in (text.find(stop) for stop in self._stops) if position >= 0]
        if found:
            self.matched = True
            self._held = ""
            return text[: min(found)]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text still held back, at the end of generation."""
        rest, self._held = self._held, ""
        return rest

    def _possible_start(self, text: str) -> int:
        """The length of the longest end of `text` with which a stop text begins."""
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
