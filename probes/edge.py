"""The edge finder: up to which prompt length a server answers right, and what it does past it.

A pure planner. `next_step` takes what was seen so far and returns what to send next, by running the
search again from its start; `edges_found` returns what is known by then. A length has one of three
values, told apart by the answer and not by the status: refused, answered right, answered wrong. Cut
prompts are wrong answers of a kind of their own, and so is no answer at all.

The first change of value lies between the longest length answered right and the shortest that was
not. The search bisects between the two, on a logarithmic scale while they are more than an octave
apart, so a range of 192 to 1,048,576 tokens takes at most 4 + 16 looks to pages of 16. A limit that
a refusal names is tried first. One look in a hundred may lie: an end of the interval that rests on
one look is asked again once four looks in a row have gone away from it, and outvoted if need be.
"""

import math
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from probes.documents import Depth

FLOOR_TOKENS = 192
TOP_TOKENS = 1_048_576
PAGE_TOKENS = 16  # where the server does not tell its page size
ANSWER_TOKENS = 24
PART_TOKENS_MIN = 192  # shortest document of a pair that is in flight together
REQUESTS_MAX = 25
SUM_REQUESTS_MAX = 24  # more, where the limit on the sum lies apart from that of one request
RUN_TO_DOUBT = 4  # looks in a row away from an end that rests on one look
VOTES_MAX = 5
FLOOR_TRIES = 2
LOOKS_AT_KIND = 3  # shortest lengths past the edge whose looks say what happens there


class Value(StrEnum):
    """What a server did with a prompt of some length."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    TRUNCATED = "truncated"  # wrong, since the server read a part of the prompt only
    SILENT = "silent"  # no answer that could be examined: an error or a timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to send next: one prompt, or several that are in flight together.

    Attributes:
        lengths: Wanted prompt lengths, in the server's tokens.
        depths: Where each prompt has the code that it asks for.
    """

    lengths: tuple[int, ...]
    depths: tuple[Depth, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a step showed.

    Attributes:
        values: One for each prompt of the step.
        named_limit: A length that a refusal names, in tokens.
        kept_tokens: What the server kept of a cut prompt, by its usage.
        kept_part: `start` or `end` of the prompt, where the answer shows it.
    """

    values: tuple[Value, ...]
    named_limit: int | None = None
    kept_tokens: int | None = None
    kept_part: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTask:
    """Between which lengths to search, and what is known beforehand. Lengths in tokens.

    Attributes:
        floor, top: Shortest and longest prompt to send.
        page: Precision that is wanted: the server's page.
        known_limit: Longest prompt that every role admits, by the server's own word.
        known_over: Shortest prompt that is over it.
        requests_max: Requests to spend, those for a limit on the sum apart from the first included.
    """

    floor: int = FLOOR_TOKENS
    top: int = TOP_TOKENS
    page: int = PAGE_TOKENS
    known_limit: int | None = None
    known_over: int | None = None
    requests_max: int = REQUESTS_MAX
    sum_requests_max: int = SUM_REQUESTS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Every change of value that was found. Lengths in tokens; None = not found.

    Attributes:
        right_up_to: Longest prompt that was answered right.
        not_right_from: Shortest prompt that was not.
        past: What happens from there on.
        refused_above, refused_from: Between them lies the first refusal; the same as the first
            change where the server refuses at it.
        kept_tokens, kept_part: Of a prompt that is cut, what the server keeps.
        sum_right_up_to: Largest sum of prompts in flight together that were all answered right.
        sum_fails_from: Smallest sum of which one was not.
        lost_depths: Places in a prompt whose code was lost although the prompt was within limits.
        requests: Prompts sent.
        problem: Why the search ended before its precision; None if it did not.
    """

    right_up_to: int | None = None
    not_right_from: int | None = None
    past: Value | None = None
    refused_above: int | None = None
    refused_from: int | None = None
    kept_tokens: int | None = None
    kept_part: str | None = None
    sum_right_up_to: int | None = None
    sum_fails_from: int | None = None
    lost_depths: tuple[Depth, ...] = ()
    requests: int = 0
    problem: str | None = None

    @property
    def wrong_from(self) -> int | None:
        """Shortest prompt that was answered wrong; None where none was."""
        is_wrong = self.past in (Value.WRONG, Value.TRUNCATED)
        return self.not_right_from if is_wrong else None


def next_step(task: EdgeTask, looks: Sequence[Look]) -> Step | None:
    """Return what to send after these looks; None when the search is over."""
    step, _ = _replayed(task, looks)
    return step


def edges_found(task: EdgeTask, looks: Sequence[Look]) -> Edges:
    """Return what these looks show."""
    _, search = _replayed(task, looks)
    return search.edges()


def _replayed(task: EdgeTask, looks: Sequence[Look]) -> "tuple[Step | None, _Search]":
    search = _Search(task)
    steps = search.run()
    try:
        step = next(steps)
        for look in looks:
            step = steps.send(look)
    except StopIteration:
        return None, search
    return step, search


_Steps = Generator[Step, Look, None]


@dataclass
class _Search:
    """One search as a generator of steps. Invariant: `_votes` holds what every single look said."""

    task: EdgeTask
    _votes: dict[int, list[Value]] = field(default_factory=dict)
    _named: list[int] = field(default_factory=list)
    _found: Edges = field(default_factory=Edges)
    _requests: int = 0
    _run: int = 0  # looks in a row that moved the same end
    _last_end: str = ""

    def run(self) -> _Steps:
        """Yield steps, take looks."""
        yield from self._first_looks()
        if self._low() is None and self._high() is None:
            self._stop("no prompt was answered right, refused or wrong")
            return
        if self._low() is None:
            self._stop(f"a prompt of {self.task.floor} tokens is not answered right already")
            return
        yield from self._bisect()
        yield from self._settle_ends()
        if self._is_fine():
            yield from self._tell_truncation()
            yield from self._sum_in_flight()
            yield from self._first_refusal()

    def edges(self) -> Edges:
        """Return what is known by now."""
        low, high = self._low(), self._high()
        past = self._past(high) if high is not None else None
        if past is Value.WRONG and (self._found.kept_part or self._keeps_the_edge(low)):
            past = Value.TRUNCATED
        above, refused = self._refusal()
        return replace(
            self._found,
            right_up_to=low,
            not_right_from=high,
            past=past,
            refused_above=above,
            refused_from=refused,
            requests=self._requests,
        )

    # --- the first change of value ---------------------------------------------------------------

    def _first_looks(self) -> _Steps:
        task = self.task
        if task.known_limit is not None and task.known_over is not None:
            # The server's word is a vote: one look that contradicts it is asked again.
            self._votes[task.known_limit] = [Value.RIGHT]
            yield from self._ask(task.known_limit)
            yield from self._ask(task.known_over)
            if self._is_fine() and self._past(task.known_over) is Value.REFUSED:
                yield from self._ask(task.known_over + task.page)
            low, high = self._low(), self._high()
            if low is not None and high is not None:
                return
            if low is not None and task.known_over >= task.top:
                return
        for _ in range(FLOOR_TRIES):
            if self._low() is None:
                yield from self._ask(task.floor)

    def _bisect(self) -> _Steps:
        while self._has_budget() and not self._is_fine():
            yield from self._doubt()
            length = self._next_length()
            if length is None:
                return
            yield from self._ask(length)

    def _is_fine(self) -> bool:
        low, high = self._low(), self._high()
        if low is None:
            return False
        if high is None:
            return low >= self.task.top
        return low < high <= low + self.task.page

    def _next_length(self) -> int | None:
        low, high = self._low(), self._high()
        if low is None:
            return None
        if high is not None and low > high:  # a look lied: the end with fewer votes is asked again
            return min((low, high), key=lambda end: len(self._votes[end]))
        for named in self._named:
            for length in (named - ANSWER_TOKENS - 1, named + 1):
                if low < length < (high or self.task.top) and length not in self._votes:
                    return length
        if high is None:
            if low >= self.task.top:
                return None
            return min(self.task.top, math.isqrt(low * 2 * self.task.top))
        middle = math.isqrt(low * high) if high > 2 * low else (low + high) // 2
        return middle if low < middle < high else None

    def _doubt(self) -> _Steps:
        """Ask again for an end that rests on one look and was gone away from for long."""
        if self._run < RUN_TO_DOUBT:
            return
        end = self._high() if self._last_end == "low" else self._low()
        self._run = 0
        if end is not None and len(self._votes[end]) == 1:
            yield from self._ask(end)

    def _settle_ends(self) -> _Steps:
        """Ask again for an end that is older than the last looks, so that no single lie stays."""
        for _ in range(VOTES_MAX):
            low, high = self._low(), self._high()
            single = [end for end in (low, high) if end is not None and len(self._votes[end]) == 1]
            old = [end for end in single if end in list(self._votes)[:-2]]
            if not old or not self._has_budget():
                return
            yield from self._ask(old[0])
            yield from self._bisect()

    def _ask(self, length: int, depth: Depth = Depth.HEAD) -> _Steps:
        """Ask until more looks than not agree; a length that twice gives nothing is silent."""
        held = self._votes.setdefault(length, [])
        for _ in range(VOTES_MAX):
            if not self._has_budget():
                break
            look = yield from self._send(Step(lengths=(length,), depths=(depth,)))
            held.append(look.values[0])
            if look.named_limit is not None and look.named_limit not in self._named:
                self._named.append(look.named_limit)
            self._keep(look)
            if self._value(length) is not None and held != [Value.SILENT]:
                break
        moved = "low" if self._low() == length else "high"
        self._run = self._run + 1 if moved == self._last_end else 1
        self._last_end = moved

    def _keep(self, look: Look) -> None:
        if Value.TRUNCATED in look.values or look.kept_part is not None:
            self._found = replace(
                self._found,
                kept_tokens=look.kept_tokens or self._found.kept_tokens,
                kept_part=look.kept_part or self._found.kept_part,
            )

    def _value(self, length: int) -> Value | None:
        """Return what most looks at a length say; None on a tie, or where nothing was seen."""
        held = self._votes.get(length, [])
        heard: list[Value] = [value for value in held if value is not Value.SILENT]
        if not heard:
            return Value.SILENT if len(held) > 1 else None
        right = heard.count(Value.RIGHT)
        if 2 * right == len(heard):
            return None
        if 2 * right > len(heard):
            return Value.RIGHT
        others: list[Value] = [value for value in heard if value is not Value.RIGHT]
        return max(others, key=lambda value: others.count(value))

    def _low(self) -> int | None:
        right = [length for length in self._votes if self._value(length) is Value.RIGHT]
        return max(right, default=None)

    def _high(self) -> int | None:
        values = {length: self._value(length) for length in self._votes}
        return min(
            (length for length, value in values.items() if value not in (None, Value.RIGHT)),
            default=None,
        )

    def _past(self, high: int) -> Value | None:
        """Return what most looks just past the edge saw, so that no single lie names the kind."""
        lengths = [length for length in sorted(self._votes) if length >= high][:LOOKS_AT_KIND]
        seen = Counter(
            value
            for length in reversed(lengths)  # on a tie the look further off counts
            for value in reversed(self._votes[length])
            if value is not Value.RIGHT
        )
        if len(seen) > 1:
            del seen[Value.SILENT]
        return seen.most_common(1)[0][0] if seen else None

    # --- what lies past it -----------------------------------------------------------------------

    def _tell_truncation(self) -> _Steps:
        """Past the edge a code at the prompt's end still comes back only if the end was read."""
        high = self._high()
        if high is None or self._past(high) is not Value.WRONG:
            return
        if self._found.kept_part or not self._has_budget():
            return
        length = high + self.task.page
        look = yield from self._send(Step(lengths=(length,), depths=(Depth.TAIL,)))
        if look.values[0] is Value.RIGHT:
            self._found = replace(self._found, kept_part="end")
        self._keep(look)

    def _keeps_the_edge(self, low: int | None) -> bool:
        """Whether longer prompts were cut to just what is answered right."""
        kept = self._found.kept_tokens
        slack = max(self.task.page, (low or 0) // 20)
        return kept is not None and low is not None and abs(kept - low) <= slack

    def _refusal(self) -> tuple[int | None, int | None]:
        """Return the longest length under the first refusal that was seen, and that refusal."""
        values = {length: self._value(length) for length in sorted(self._votes)}
        refused = [length for length, value in values.items() if value is Value.REFUSED]
        if not refused:
            return None, None
        return max((held for held in values if held < refused[0]), default=None), refused[0]

    def _first_refusal(self) -> _Steps:
        """Narrow the first refusal down where it lies apart from the first change of value."""
        high = self._high()
        if high is None or self._past(high) is Value.REFUSED:
            return
        if self._refusal()[1] is None and self._has_budget() and high < self.task.top:
            yield from self._ask(self.task.top)
        while self._has_budget():
            above, refused = self._refusal()
            if above is None or refused is None or refused - above <= self.task.page:
                return
            named = [
                length
                for limit in self._named
                for length in (limit - ANSWER_TOKENS - 1, limit + 1)
                if above < length < refused
            ]
            middle = math.isqrt(above * refused) if refused > 2 * above else (above + refused) // 2
            yield from self._ask(named[0] if named else middle)

    # --- prompts in flight together --------------------------------------------------------------

    def _sum_in_flight(self) -> _Steps:
        """Ask for a page more than one prompt may have, in two; then for twice as much."""
        low = self._low()
        if low is None or not self._has_budget(2):
            return
        total = low + self.task.page
        look = yield from self._send(self._parts(total, low))
        if not _all_right(look):
            self._found = replace(self._found, sum_right_up_to=low, sum_fails_from=total)
        else:
            self._found = replace(self._found, sum_right_up_to=total)
        if not self._has_budget(2):
            return
        pair = Step(lengths=(low, low), depths=(Depth.MIDDLE, Depth.TAIL))
        whole = yield from self._send(pair)
        if _all_right(whole):  # then what failed before was an accident
            self._found = replace(self._found, sum_right_up_to=2 * low, sum_fails_from=None)
            return
        if not _all_right(look):
            return
        yield from self._depths_alone(pair, whole)
        if not self._found.lost_depths:
            yield from self._bisect_sum(pair, right=total, fails=2 * low)

    def _bisect_sum(self, pair: Step, *, right: int, fails: int) -> _Steps:
        """Narrow a limit on the sum that lies apart from the limit of one request."""
        until = self._requests + self.task.sum_requests_max
        whole = yield from self._send(pair)
        if _all_right(whole):
            self._found = replace(self._found, sum_right_up_to=fails)
            return
        while fails - right > self.task.page and self._requests + 2 <= until:
            total = (right + fails) // 2
            look = yield from self._send(self._parts(total, pair.lengths[0]))
            right, fails = (total, fails) if _all_right(look) else (right, total)
        self._found = replace(self._found, sum_right_up_to=right, sum_fails_from=fails)

    def _parts(self, total: int, low: int) -> Step:
        """Return two prompts that add up to `total`, the first as long as can be."""
        second = max(total - low, min(PART_TOKENS_MIN, total // 2))
        return Step(lengths=(total - second, second), depths=(Depth.HEAD, Depth.HEAD))

    def _depths_alone(self, pair: Step, look: Look) -> _Steps:
        """A code that is lost alone too was not lost to company."""
        for length, depth, value in zip(pair.lengths, pair.depths, look.values, strict=True):
            if value is Value.WRONG and self._has_budget():
                alone = yield from self._send(Step(lengths=(length,), depths=(depth,)))
                if alone.values[0] is Value.WRONG:
                    lost = (*self._found.lost_depths, depth)
                    self._found = replace(self._found, lost_depths=lost)

    def _send(self, step: Step) -> Generator[Step, Look, Look]:
        look = yield step
        assert len(look.values) == len(step.lengths), "a value for each prompt"
        self._requests += len(step.lengths)
        return look

    def _has_budget(self, requests: int = 1) -> bool:
        return self._requests + requests <= self.task.requests_max

    def _stop(self, problem: str) -> None:
        self._found = replace(self._found, problem=problem)


def _all_right(look: Look) -> bool:
    return all(value is Value.RIGHT for value in look.values)
