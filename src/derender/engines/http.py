"""One engine behind HTTP: pooled connections, bounded answers, and every failure as an `ApiError`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NoReturn
from urllib.parse import urlsplit

import aiohttp
import msgspec

from derender.engines.base import NO_HEADERS
from derender.engines.errors import EngineFailed, EngineRefused, EngineTimeout
from derender.engines.owned import Owned
from derender.protocol.errors import MAX_MESSAGE, ApiError
from derender.protocol.records import DONE, RecordReader, RecordTooLarge

_JSON = "application/json"
_KEEP_SECONDS = 4.0
"""How long an idle connection is kept: less than the five seconds of uvicorn, under which most engines run. A request
that meets a connection just being closed is lost before it begins."""

_CONNECT_SECONDS = 5.0
_END_SECONDS = 1.0
"""How long the end of a body may take to come after the last record."""

_ERROR_BYTES = 65536
TOGETHER = 8
"""Records that are worked on in one go where they came together; then others have their turn."""

_OVERLOADED = (429, 503)
_OURS = (401, 403, 404, 405, 407, 415, 426)
"""Refusals that are about how this server asks, not about what its client asked for."""


class EngineHttp:
    """The address of one engine. Belongs to one event loop; `aclose` ends its connections.

    `url`: `http://host:port/base`, `https://…`, or `unix:/path/of/socket`. `name` stands for the engine in messages:
    its address is no business of a client's.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "the engine",
        api_key: str | None = None,
        connect_seconds: float = _CONNECT_SECONDS,
        max_answer_bytes: int = 1 << 30,
        max_record_bytes: int = 64 << 20,
    ) -> None:
        self.url = _shown(url)
        self.name = name
        self._socket = url.removeprefix("unix:") if url.startswith("unix:") else None
        if self._socket is not None and self._socket.startswith("//"):
            self._socket = self._socket[2:]
        self._base = "http://engine" if self._socket is not None else url.rstrip("/")
        if self._socket is None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError(f"{self.url!r} is no address of an engine: http://HOST:PORT, https://… or unix:/PATH")
        self._headers = {"Content-Type": _JSON}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._connect_seconds = connect_seconds
        self._max_answer_bytes = max_answer_bytes
        self._max_record_bytes = max_record_bytes
        self._open: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._open is None:
            connector: aiohttp.BaseConnector
            if self._socket is not None:
                connector = aiohttp.UnixConnector(self._socket, limit=0, keepalive_timeout=_KEEP_SECONDS)
            else:
                connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_SECONDS, ttl_dns_cache=10)
            self._open = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds),
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
                auto_decompress=True,
                raise_for_status=False,
                trust_env=False,
            )
        return self._open

    async def get(self, path: str, *, seconds: float) -> bytes:
        """The body of a GET that has to end in time. Raises `EngineFailed`, `EngineRefused`."""

        async def got() -> bytes:
            async with self._asked("GET", path, None, NO_HEADERS) as answer:
                return await self._body(answer)

        try:
            return await asyncio.wait_for(got(), seconds)
        except asyncio.TimeoutError:
            raise EngineTimeout(f"{self.name} does not answer {path}") from None

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
        """The body of the answer to a POST. Raises `EngineFailed`, `EngineRefused`. Cancelling closes the connection,
        by which an engine knows that nobody waits any more."""
        async with self._asked("POST", path, body, headers) as answer:
            return await self._body(answer)

    async def events(
        self, path: str, body: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[list[bytes], None]:
        """The records of a streamed answer to a POST, once its head has come: those that came together in one list, of
        at most `TOGETHER`.

        Raises `EngineFailed`, `EngineRefused`: when awaited, and through the iterator. Closing it closes the connection
        unless the answer has come to its end.
        """
        asked = self._asked("POST", path, body, headers)
        answer = await asked.__aenter__()
        if answer.content_type == _JSON:  # an answer of its own where a stream was asked for
            await asked.__aexit__(None, None, None)
            raise EngineFailed(f"{self.name} answered with one body, not with a stream")
        end = partial(self._end, asked, answer, whole=False)
        return Owned(self._records(asked, answer), end=end)

    async def _records(self, asked: Any, answer: aiohttp.ClientResponse) -> AsyncGenerator[list[bytes], None]:
        reader = RecordReader(max_bytes=self._max_record_bytes)
        whole = done = False
        try:
            async for data in answer.content.iter_any():
                records = reader.push(data)
                for start in range(0, len(records), TOGETHER):
                    some = records[start : start + TOGETHER]
                    done = some[-1] == DONE
                    yield some
            whole = True
            if last := reader.finish():
                yield [last]
        except RecordTooLarge:
            raise EngineFailed(f"{self.name} sent an event of over {self._max_record_bytes} bytes") from None
        except (aiohttp.ClientError, OSError) as error:
            self._failed(error)
        finally:
            if done and not whole:
                self.soon(self._read_over(asked, answer))
            else:
                await self._end(asked, answer, whole=whole)

    async def _read_over(self, asked: Any, answer: aiohttp.ClientResponse) -> None:
        """Ends an answer of which only the end of its body is to come, so that its connection can serve the next."""
        whole = False
        with suppress(asyncio.TimeoutError, aiohttp.ClientError, OSError):
            whole = not await asyncio.wait_for(answer.content.readany(), _END_SECONDS)
        await self._end(asked, answer, whole=whole)

    async def _end(self, asked: Any, answer: aiohttp.ClientResponse, *, whole: bool) -> None:
        if not whole:
            answer.close()
        await asked.__aexit__(None, None, None)

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        try:
            answer = await self._session.request(
                method,
                self._base + path,
                data=body,
                headers={**self._headers, **headers} if headers else self._headers,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            self._failed(error)
        try:
            if answer.status != 200:
                await self._refused(answer)
            yield answer
        except BaseException:
            answer.close()
            raise
        finally:
            answer.release()

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async for data in answer.content.iter_any():
                size += len(data)
                if size > self._max_answer_bytes:
                    raise EngineFailed(f"{self.name} sent an answer of over {self._max_answer_bytes} bytes")
                parts.append(data)
        except (aiohttp.ClientError, OSError) as error:
            self._failed(error)
        return b"".join(parts)

    async def _refused(self, answer: aiohttp.ClientResponse) -> NoReturn:
        """Raises what an answer with another status than 200 means."""
        # No `wait_for`: before Python 3.12 it may swallow that the request is cancelled (python/cpython#86296).
        patience = asyncio.get_running_loop().call_later(self._connect_seconds, answer.close)
        try:
            body = await _beginning(answer)
        except (aiohttp.ClientError, OSError):
            body = b""
        finally:
            patience.cancel()
        status = answer.status
        message, type_, param = _told(body)
        if _is_refusal(status):
            raise EngineRefused(
                message or f"{self.name} refused the request", status=status, type_=type_ or "BadRequestError",
                param=param,
            )  # fmt: skip
        if status in _OVERLOADED:
            raise EngineFailed(f"{self.name} has too much to do", begun=False, overloaded=True, answered=status)
        raise EngineFailed(f"{self.name} answered with status {status}", begun=status >= 500, answered=status)

    def _failed(self, error: Exception) -> NoReturn:
        """Raises what a failure of the connection means; the client is told nothing of addresses."""
        if isinstance(error, asyncio.TimeoutError):
            raise EngineTimeout(f"{self.name} takes no connection", begun=False) from error
        if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.InvalidURL, ValueError)):
            raise EngineFailed(f"{self.name} cannot be reached", begun=False) from error
        raise EngineFailed(f"{self.name} broke off the connection") from error

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Does `work` beside what runs now, which may be at its end: an abort goes out when nobody waits any more."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Closes all connections, once what was to be done soon is done."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CONNECT_SECONDS)
        for task in tuple(self._tasks):
            task.cancel()
            await asyncio.wait((task,))
        if self._open is not None:
            await self._open.close()
            self._open = None


class _Error(msgspec.Struct):
    error: Any = None
    message: Any = None
    detail: Any = None
    type: Any = None
    param: Any = None


_error = msgspec.json.Decoder(_Error)


def _told(body: bytes) -> tuple[str, str | None, str | None]:
    """Message, type and param of an error's body, in the forms that engines have for it."""
    try:
        found = _error.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return "", None, None
    inner = found.error if isinstance(found.error, dict) else {}
    message = inner.get("message") or found.message or found.error or found.detail
    type_, param = inner.get("type") or found.type, inner.get("param") or found.param
    return (
        message[:MAX_MESSAGE] if isinstance(message, str) else "",
        type_ if isinstance(type_, str) else None,
        param if isinstance(param, str) else None,
    )


def _shown(url: str) -> str:
    """An address for logs: without a name and a password in it."""
    scheme, slashes, rest = url.partition("://")
    where, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{where.rpartition('@')[2]}{slash}{path}" if slashes else url


def failure_of(error: Any, *, name: str) -> ApiError:
    """The error that an event of a stream tells: a refusal with a status of the caller's, or a failure."""
    told = error if isinstance(error, dict) else {}
    message = told.get("message")
    code = told.get("code")
    text = message[:MAX_MESSAGE] if isinstance(message, str) and message else f"{name} failed"
    if type(code) is not int:
        return EngineFailed(text)
    if _is_refusal(code):
        type_ = told.get("type")
        return EngineRefused(text, status=code, type_=type_ if isinstance(type_, str) else "BadRequestError")
    return EngineFailed(text, overloaded=code in _OVERLOADED, answered=code)


def _is_refusal(status: int) -> bool:
    """Whether a status says that what the client asked for is wrong."""
    return 400 <= status < 500 and status not in _OURS and status not in (408, 429)


async def _beginning(answer: aiohttp.ClientResponse) -> bytes:
    """As much of an error's body as is looked at."""
    body = bytearray()
    async for data in answer.content.iter_any():
        body += data
        if len(body) >= _ERROR_BYTES:
            break
    return bytes(body[:_ERROR_BYTES])
