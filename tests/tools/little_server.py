"""A server of raw sockets on a free port of the loopback, and requests to send it."""

import asyncio
import json
import ssl
import threading
from dataclasses import dataclass, field

from kvaudit.config import AuditConfig
from kvaudit.records import Message, Role
from kvaudit.target import PlannedRequest, Wave
from probes.client import http_target


@dataclass
class Asked:
    """One request as the little server got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class LittleServer:
    """A HTTP/1.1 server of raw sockets; `answer(asked, writer)` says what it does."""

    answer: object
    page: object = None
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)
    alive_now: int = 0
    alive_max: int = 0
    dropped: threading.Event = field(default_factory=threading.Event)

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.server = asyncio.run_coroutine_threadsafe(start, self.loop).result()
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_):
        async def stop():
            self.server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _serve(self, reader, writer):
        try:
            while (asked := await self._read(reader)) is not None:
                self.asked.append(asked)
                self.alive_now += 1
                self.alive_max = max(self.alive_max, self.alive_now)
                try:
                    if asked.method == "GET":
                        await self._page(asked, writer)
                    else:
                        await self.answer(asked, writer)
                    await writer.drain()
                finally:
                    self.alive_now -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.dropped.set()
        finally:
            writer.close()

    async def _read(self, reader):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.strip().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        return Asked(method, path, headers, body)

    async def _page(self, asked, writer):
        if self.page is not None:
            await self.page(asked, writer)
        elif asked.path == "/v1/models":
            entry = {"id": "little", "object": "model", "owned_by": "nobody", "max_model_len": 512}
            whole(writer, {"object": "list", "data": [entry]})
        else:
            whole(writer, {"error": "not here"}, status=404)


def whole(writer, body, *, status=200, kind="application/json", headers=()):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)


def stream_head(writer):
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        b"Transfer-Encoding: chunked\r\nX-Replica: r7\r\n\r\n"
    )


async def packet(writer, data: bytes, *, wait_s=0.0):
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()
    await asyncio.sleep(wait_s)


def event(body) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def planned(request_id="r1", tenant="a", text="hello there", **changes):
    return PlannedRequest(
        request_id=request_id,
        tenant=tenant,
        messages=(Message(role="user", content=text),),
        scenario="s",
        stratum="t",
        role=changes.pop("role", Role.CONTROL),
        **changes,
    )


def wave_of(*requests, **changes):
    return Wave(index=0, scenario="s", requests=requests, **changes)


def ask(server, *requests, limits=None, concurrency=None, departed=None, **changes):
    """Send one wave to a little server and return the replies by id."""
    target = http_target(AuditConfig(target=server.url), limits=limits, **changes)
    try:
        sent = target.send(
            wave_of(*requests, concurrency=concurrency),
            lambda item: departed.append(item.request_id) if departed is not None else None,
        )
        return {reply.request_id: reply for reply in sent}
    finally:
        target.close()


def answering(body, **changes):
    async def answer(asked, writer):
        whole(writer, body, **changes)

    return answer


def streaming(*packets):
    async def answer(asked, writer):
        stream_head(writer)
        for data in packets:
            await packet(writer, data, wait_s=0.001)
        writer.write(b"0\r\n\r\n")

    return answer


def choice(text, reason=None, **changes):
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": reason}]} | (
        changes
    )
