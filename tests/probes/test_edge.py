"""The edge finder against random simulated servers, scored; and its single moves."""

import random
from collections import Counter

import pytest

from probes.documents import Depth
from probes.edge import REQUESTS_MAX, EdgeTask, Look, Value, edges_found, next_step

KINDS = ("refuses", "wrong", "truncates", "sum")
ERRORS = 0.01
# Half of the errors fail and half lie, as a slip of the model or a stray refusal would.
ERROR_VALUES = (Value.SILENT, Value.SILENT, Value.WRONG, Value.REFUSED)


class Simulated:
    """A server with one limit: log-uniform from 1,024 to 1,048,576, a multiple of its page."""

    def __init__(self, seed, kind, *, errors=ERRORS):
        self.rng = rng = random.Random(seed)
        self.kind, self.errors = kind, errors
        self.page = rng.choice((16, 32, 64, 128))
        self.limit = max(1024, int(2 ** rng.uniform(10, 20)) // self.page * self.page)
        self.names_limit = rng.random() < 0.5
        self.says_usage = rng.random() < 0.5
        self.keeps = rng.choice(("start", "end"))

    def look(self, step):
        values, in_flight = [], 0
        for length, depth in zip(step.lengths, step.depths, strict=True):
            if self.rng.random() < self.errors:
                values.append(self.rng.choice(ERROR_VALUES))
                continue
            in_flight += length
            counted = in_flight if self.kind == "sum" else length
            values.append(Value.RIGHT if counted <= self.limit else self.past(depth))
        is_cut = self.kind == "truncates"
        shows_start = is_cut and self.keeps == "start" and Value.WRONG in values
        return Look(
            values=tuple(values),
            named_limit=self.limit if self.names_limit and Value.REFUSED in values else None,
            kept_tokens=self.limit if Value.TRUNCATED in values else None,
            kept_part="start" if shows_start and max(step.lengths) > self.limit else None,
        )

    def past(self, depth):
        if self.kind == "wrong":
            return Value.WRONG
        if self.kind != "truncates":
            return Value.REFUSED
        if self.says_usage:
            return Value.TRUNCATED
        is_read = self.keeps == "end" and depth is Depth.TAIL
        return Value.RIGHT if is_read else Value.WRONG


def search(server, task):
    looks = []
    while (step := next_step(task, looks)) is not None:
        assert len(looks) < 100, "a search ends"
        looks.append(server.look(step))
    return edges_found(task, looks)


def is_found(server, found, *, with_facts):
    """Within one page, and of the right kind."""
    if found.right_up_to is None or found.not_right_from is None:
        return False
    if abs(found.right_up_to - server.limit) > server.page:
        return False
    if abs(found.not_right_from - 1 - server.limit) > server.page:
        return False
    if server.kind == "sum" and not with_facts:
        fails = found.sum_fails_from
        return fails is not None and abs(fails - 1 - server.limit) <= server.page
    kinds = {"refuses": Value.REFUSED, "wrong": Value.WRONG, "truncates": Value.TRUNCATED}
    return found.past is kinds.get(server.kind, Value.REFUSED)


def scored(seed, *, with_facts, servers=1000):
    found, spent = Counter(), []
    for number in range(servers):
        kind = KINDS[number % len(KINDS)]
        server = Simulated(f"{seed}/{number}", kind)
        task = EdgeTask()
        if with_facts:
            task = EdgeTask(
                page=server.page, known_limit=server.limit, known_over=server.limit + 1,
                requests_max=3, sum_requests_max=0,
            )  # fmt: skip
        edges = search(server, task)
        found[kind] += is_found(server, edges, with_facts=with_facts)
        spent.append(edges.requests)
    return found, spent


@pytest.mark.slow
def test_blind_it_finds_99_of_100_edges_to_a_page_in_25_requests():
    found, spent = scored("blind", with_facts=False)
    in_time = sum(requests <= REQUESTS_MAX for requests in spent)
    print(f"\nblind: {dict(found)} of 250 each; requests mean {sum(spent) / 1000:.1f},"
          f" {in_time} of 1,000 within {REQUESTS_MAX}, most {max(spent)}")  # fmt: skip
    assert found.total() >= 990
    # More are sent only where a limit on the sum seems to lie apart from that of one request.
    assert in_time >= 990


def test_with_facts_it_takes_three_requests():
    found, spent = scored("facts", with_facts=True)
    print(f"\nwith facts: {dict(found)} of 250 each; requests mean {sum(spent) / 1000:.2f},"
          f" most {max(spent)}")  # fmt: skip
    assert found.total() >= 990
    assert max(spent) <= 3


def test_a_refusal_that_names_its_limit_saves_requests():
    spent = {}
    for names_limit in (True, False):
        server = Simulated("named", "refuses", errors=0.0)
        server.limit, server.names_limit = 9000, names_limit
        spent[names_limit] = search(server, EdgeTask()).requests
    assert spent[True] <= 9 < spent[False]


@pytest.mark.parametrize("kind", KINDS)
def test_without_errors_every_edge_is_found_exactly(kind):
    for number in range(25):
        server = Simulated(f"calm/{number}", kind, errors=0.0)
        found = search(server, EdgeTask(requests_max=40))
        assert is_found(server, found, with_facts=False), (server.limit, found)
        assert found.right_up_to <= server.limit < found.not_right_from


def test_a_limit_on_the_sum_that_lies_apart_is_found_too():
    for limit, total in ((8192, 12_000), (2048, 2_400), (4096, 8_000)):

        def look(step, limit=limit, total=total):
            values = [Value.RIGHT if n <= limit else Value.REFUSED for n in step.lengths]
            if sum(step.lengths) > total:
                values[-1] = Value.REFUSED
            return Look(values=tuple(values))

        server = Simulated("sum", "sum")
        server.look = look
        found = search(server, EdgeTask())
        assert found.right_up_to <= limit < found.not_right_from
        assert total - 16 <= found.sum_right_up_to <= total < found.sum_fails_from <= total + 16


def test_a_wrong_answer_below_the_first_refusal_is_a_change_of_its_own():
    def look(step):
        (length,) = step.lengths[:1]
        kind = (Value.RIGHT if length <= 1321 else
                Value.WRONG if length <= 2041 else Value.REFUSED)  # fmt: skip
        named = 2048 if kind is Value.REFUSED else None
        return Look(values=(kind,) * len(step.lengths), named_limit=named)

    server = Simulated("band", "wrong")
    server.look = look
    found = search(server, EdgeTask(requests_max=40))
    assert (found.past, found.wrong_from) == (Value.WRONG, found.not_right_from)
    assert 1321 - 16 <= found.right_up_to <= 1321 < found.not_right_from
    assert found.refused_above <= 2041 < found.refused_from <= found.refused_above + 32


def test_a_server_that_answers_everything_has_no_edge():
    server = Simulated("none", "refuses", errors=0.0)
    server.limit = 10**9
    found = search(server, EdgeTask(top=32_768))
    assert (found.right_up_to, found.not_right_from, found.past) == (32_768, None, None)
    assert found.sum_right_up_to == 65_536


def test_a_server_that_never_answers_ends_the_search_at_once():
    server = Simulated("dead", "refuses")
    server.look = lambda step: Look(values=(Value.SILENT,) * len(step.lengths))
    found = search(server, EdgeTask())
    assert found.problem is not None
    assert found.requests <= 5
