"""run_wave: every request that departs has a record, in the order in which they end."""

from kvaudit.records import Message, Outcome, Role
from kvaudit.target import PlannedRequest, Reply, Wave
from probes.runner import run_wave


def planned(name, role=Role.TRIGGER):
    return PlannedRequest(
        request_id=name, tenant="a", messages=(Message(role="user", content="hi"),),
        scenario="s", stratum="x", role=role,
    )  # fmt: skip


class FakeTarget:
    """Lets all but `never` depart, and replies to all but `silent`, last first."""

    def __init__(self, *, never=(), silent=()):
        self.never, self.silent = never, silent

    def send(self, wave, departing):
        leaving = [request for request in wave.requests if request.request_id not in self.never]
        for request in leaving:
            departing(request)
        for request in reversed(leaving):
            if request.request_id not in self.silent:
                yield Reply(request_id=request.request_id, outcome=Outcome.ANSWERED, status=200)


class FakeRecorder:
    def __init__(self):
        self.lines = []

    def begin(self, request, wave_index):
        self.lines.append(("begin", request.request_id, wave_index))

    def end(self, reply):
        self.lines.append(("end", reply.request_id))

    def twin(self, request):
        self.lines.append(("twin", request.request_id))


def send(target, *names, twins=()):
    recorder = FakeRecorder()
    wave = Wave(
        index=4, scenario="s", requests=tuple(map(planned, names)), twins=tuple(map(planned, twins))
    )
    return run_wave(target, wave, recorder), recorder.lines


def test_records_come_in_the_order_in_which_requests_ended():
    records, lines = send(FakeTarget(), "a", "b")
    assert [record.request_id for record in records] == ["b", "a"]
    assert {record.wave for record in records} == {4}
    assert lines == [("begin", "a", 4), ("begin", "b", 4), ("end", "b"), ("end", "a")]


def test_twins_are_noted_before_anything_leaves_and_have_no_record():
    records, lines = send(FakeTarget(), "a", twins=("t",))
    assert lines[0] == ("twin", "t")
    assert [record.request_id for record in records] == ["a"]


def test_a_request_that_departed_without_a_reply_is_unknown():
    records, _ = send(FakeTarget(silent=("a",)), "a", "b")
    outcomes = {record.request_id: record.outcome for record in records}
    assert outcomes == {"a": Outcome.UNKNOWN, "b": Outcome.ANSWERED}


def test_a_request_that_never_departed_has_no_record():
    records, lines = send(FakeTarget(never=("b",)), "a", "b")
    assert [record.request_id for record in records] == ["a"]
    assert ("begin", "b", 4) not in lines
