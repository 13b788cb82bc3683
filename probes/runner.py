"""Sends waves and yields records: the only loop that drives a target. It decides nothing."""

from typing import Protocol

from kvaudit.records import RequestRecord
from kvaudit.target import PlannedRequest, Reply, Target, Wave, record_of


class Recorder(Protocol):
    """Where a run writes what happens, before and after each request."""

    def begin(self, planned: PlannedRequest, wave_index: int) -> None:
        """Note a request just before its first byte leaves."""
        ...

    def end(self, reply: Reply) -> None:
        """Note a reply after its last byte."""
        ...

    def twin(self, planned: PlannedRequest) -> None:
        """Note a request that is sent to no one."""
        ...


def run_wave(target: Target, wave: Wave, recorder: Recorder) -> list[RequestRecord]:
    """Send one wave and return a record for each request, in the order in which they ended.

    Requests that departed and got no reply come last, as UNKNOWN; those that never departed have
    no record and may be sent later.
    """
    for twin in wave.twins:
        recorder.twin(twin)
    planned = {request.request_id: request for request in wave.requests}
    departed: dict[str, PlannedRequest] = {}

    def departing(request: PlannedRequest) -> None:
        recorder.begin(request, wave.index)
        departed[request.request_id] = request

    records: list[RequestRecord] = []
    for reply in target.send(wave, departing):
        recorder.end(reply)
        records.append(record_of(planned[reply.request_id], reply, wave=wave.index))
        departed.pop(reply.request_id, None)
    records += [record_of(request, None, wave=wave.index) for request in departed.values()]
    return records
