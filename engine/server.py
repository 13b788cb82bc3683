"""`kvaudit serve`: the reference engine behind HTTP, from an open port to a graceful stop.

Two threads beside the caller's: the engine's and the event loop's. Nothing is stepped in the
caller's thread, so that it is free to wait for a signal.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable

import uvicorn

from engine.config import EngineConfig
from engine.engine import build_engine
from engine.http_app import Face
from engine.stepper import EngineThread
from kvaudit.clock import Clock, WallClock
from kvaudit.errors import ConfigError, EngineError

BACKLOG = 2048
GRACE_S = 5  # what is in flight may take so long to end when the server stops
START_TIMEOUT_S = 30.0
KEEP_ALIVE_S = 30


class ReferenceServer:
    """One reference engine on one port.

    Attributes:
        url: Base URL, with the port that was really taken.
        thread: The engine; tests read it, no client can.

    Args:
        config: The engine.
        host, port: Where to listen; port 0 = any free one.
        clock: Where reported times come from.
        grace_s: What is in flight when the server stops may take so long to end, in seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        host: str,
        port: int,
        clock: Clock | None = None,
        grace_s: int = GRACE_S,
    ) -> None:
        self._grace_s = grace_s
        # The port first: it is known at once whether it is free, and a model takes a while.
        self._socket = open_port(host, port)
        try:
            engine, model = build_engine(config, clock=clock)
        except BaseException:
            self._socket.close()
            raise
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._socket.getsockname()[1]}"
        self.thread = EngineThread(engine, model)
        started = (clock or WallClock()).unix_ns() // 1_000_000_000
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                Face(self.thread, started_unix_s=started).app(),
                log_level="error",
                access_log=False,
                lifespan="off",
                backlog=BACKLOG,
                timeout_graceful_shutdown=grace_s,
                timeout_keep_alive=KEEP_ALIVE_S,
                server_header=False,
            )
        )
        self._http = threading.Thread(target=self._serve_http, name="kvaudit-http", daemon=True)

    def start(self) -> None:
        """Serve; returns once requests are taken.

        Raises:
            EngineError: The HTTP side did not come up.
        """
        self.thread.start()
        self._http.start()
        pause = threading.Event()
        for _ in range(round(START_TIMEOUT_S / 0.01)):
            if self._uvicorn.started:
                return
            if not self._http.is_alive():
                break
            pause.wait(0.01)
        self.stop()
        raise EngineError("the HTTP server did not come up")

    def stop(self) -> None:
        """Take no more requests, let those in flight end for a while, then cut them."""
        self._uvicorn.should_exit = True
        self._http.join(self._grace_s + GRACE_S)
        self.thread.stop()
        self._socket.close()

    @property
    def is_alive(self) -> bool:
        """Whether requests are being served."""
        return self._http.is_alive() and self.thread.is_alive

    def _serve_http(self) -> None:
        asyncio.run(self._uvicorn.serve(sockets=[self._socket]))


def open_port(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 takes any free one.

    Raises:
        ConfigError: The port is taken or not allowed, or the host is none of this machine's.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"`{port}` is no port", hint="choose 1 to 65535, or 0 for any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only where it is; without, every answer
    # on a kept connection waits 40 ms for an acknowledgement.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # A port of a server that has just ended may be taken again at once; one in use may not.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        opened.close()
        raise _port_error(host, port, error) from None
    return opened


def is_loopback_host(host: str) -> bool:
    """Return whether only this machine can reach a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve_until(
    server: ReferenceServer, stopped: threading.Event, ready: Callable[[str], None]
) -> None:
    """Serve until `stopped` is set or the server has died of itself; `ready` gets the URL.

    Raises:
        EngineError: The server died.
    """
    server.start()
    try:
        ready(server.url)
        while not stopped.wait(0.2):
            if not server.is_alive:
                raise EngineError("the server ended unexpectedly", hint="see the lines above")
    finally:
        server.stop()


def _port_error(host: str, port: int, error: Exception) -> ConfigError:
    if isinstance(error, socket.gaierror | UnicodeError):
        return ConfigError(f"`{host}` is no host of this machine", hint="use `127.0.0.1`")
    if isinstance(error, PermissionError):
        return ConfigError(f"port {port} needs more rights", hint="choose one from 1024 up, or 0")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return ConfigError(
        f"can't listen on `{host}` port {port}: {reason}",
        hint="choose another `--port`, or 0 for any free one",
    )
