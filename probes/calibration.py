"""Prompt lengths for servers without `/tokenize`: a line through what their usage reported."""

PAIRS_MAX = 256


class LengthCalibration:
    """Fits tokens = offset + slope x characters on prompts whose length the server reported.

    Feed it in-limit requests only that were sent before any fill: a length reported under suspicion
    must not shape the ruler that it is measured with.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[int, int]] = []

    def add(self, text: str, tokens: int) -> None:
        """Take one prompt and its reported length in tokens."""
        if len(self._pairs) < PAIRS_MAX and text and tokens > 0:
            self._pairs.append((len(text), tokens))

    def estimate(self, text: str) -> int | None:
        """Return the estimated length of `text`, at least 1; None before the first pair."""
        if not self._pairs:
            return None
        mean_length = sum(length for length, _ in self._pairs) / len(self._pairs)
        mean_tokens = sum(tokens for _, tokens in self._pairs) / len(self._pairs)
        spread = sum((length - mean_length) ** 2 for length, _ in self._pairs)
        together = sum(
            (length - mean_length) * (tokens - mean_tokens) for length, tokens in self._pairs
        )
        if spread > 0 and together > 0:
            slope = together / spread
            return max(1, round(mean_tokens + slope * (len(text) - mean_length)))
        return max(1, round(len(text) * mean_tokens / mean_length))
