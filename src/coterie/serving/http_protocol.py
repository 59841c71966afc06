"""HTTP whose requests must come: whoever sends half of the headers and waits is cut off."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """A connection that ends where the headers of a request take too long."""

    headers_timeout = 10.0  # seconds
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection waits for its first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Some bytes: of headers that are not whole yet, or the rest of them."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        super().connection_lost(exc)
        self._stop()

    def on_response_complete(self) -> None:
        """The next request may come; its first bytes start the clock."""
        super().on_response_complete()
        self._stop()

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()  # the headers are whole
        elif self._timer is None:
            self._timer = self.loop.call_later(self.headers_timeout, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
