"""What an engine can do wrong, by name, and what has to come of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from dataclasses import dataclass
from typing import Any, Literal

from tests.gateway.faulty_engine import (
    END,
    IDS,
    Ask,
    Behaviour,
    Connection,
    answer,
    choice,
    chunk,
    chunks,
    hang,
    logprob,
    refusal,
    right,
)

Outcome = Literal["right", "error", "any"]
"""What has to come of a fault: the right text; an error, before or in the stream; either, but well-formed."""


@dataclass(frozen=True)
class Fault:
    """`statuses`: one of them an error has before a stream has begun; empty: any. `slow`: the gateway has to give up
    waiting. `fields`: what is asked for beside. `only`: for which answers there is such a fault."""

    behave: Behaviour
    outcome: Outcome = "error"
    statuses: tuple[int, ...] = ()
    slow: bool = False
    fields: tuple[tuple[str, Any], ...] = ()
    only: Literal["stream", "whole"] | None = None


FAULTS: dict[str, Fault] = {}


def _fault(outcome: Outcome = "error", *statuses: int, **fields: Any) -> Any:
    def add(behave: Behaviour) -> Behaviour:
        FAULTS[behave.__name__] = Fault(behave, outcome, statuses, **fields)
        return behave

    return add


async def _begin(ask: Ask, to: Connection, *, events: int = 4) -> None:
    """The head and some events of a right stream; of a whole answer, the head and a part of its body."""
    if ask.streams:
        await to.head()
        for one in chunks(ask)[:events]:
            await to.event(one)
    else:
        body = json.dumps(answer(ask)).encode()
        await to.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
        await to.raw(body[:40])
    await asyncio.sleep(0.01)


async def _told(ask: Ask, to: Connection, events: list[Any], *, end: bytes = b"\n\n") -> None:
    """A stream of just these events, ended as it should be."""
    await to.head()
    for one in events:
        await to.event(one, end=end)
    await to.event(b"[DONE]", end=end)
    await to.end()


async def _said(ask: Ask, to: Connection, *choices: dict[str, Any]) -> None:
    """An answer of just these choices: each an event, or all in one body."""
    if ask.streams:
        await _told(ask, to, [chunk(ask, one) for one in choices])
    else:
        await to.json(chunk(ask, *choices))


# ------------------------------------------------------------------------------------------- it dies, or hangs


@_fault("error", 502)
async def closes_before_head(ask: Ask, to: Connection) -> None:
    to.close()


@_fault("error", 502)
async def dies_before_head(ask: Ask, to: Connection) -> None:
    to.reset()


@_fault("error", 502)
async def dies_in_head(ask: Ask, to: Connection) -> None:
    await to.raw(b"HTTP/1.1 200 OK\r\ncontent-ty")
    to.close()


@_fault("error", 502)
async def closes_after_head(ask: Ask, to: Connection) -> None:
    await to.head(kind="text/event-stream" if ask.streams else "application/json")
    to.close()


@_fault("error", 502)
async def dies_after_head(ask: Ask, to: Connection) -> None:
    await to.head(kind="text/event-stream" if ask.streams else "application/json")
    await asyncio.sleep(0.01)
    to.reset()


@_fault("error", 502)
async def dies_between_chunks(ask: Ask, to: Connection) -> None:
    await _begin(ask, to)
    to.reset()


@_fault("error", 502)
async def closes_between_chunks(ask: Ask, to: Connection) -> None:
    await _begin(ask, to)
    to.close()


@_fault("error", 502)
async def dies_in_frame(ask: Ask, to: Connection) -> None:
    await _begin(ask, to)
    if ask.streams:
        await to.chunk(b'data: {"request_id": "x", "choi')
    to.close()


@_fault("error", 502)
async def half_frame_then_end(ask: Ask, to: Connection) -> None:
    await to.head(kind="text/event-stream" if ask.streams else "application/json")
    await to.chunk(b'data: {"request_id": "x", "choi' if ask.streams else b'{"request_id": "x", "choi')
    await to.end()


@_fault("error", 504, slow=True)
async def hangs_before_head(ask: Ask, to: Connection) -> None:
    await hang(ask, to)


@_fault("error", 504, slow=True)
async def hangs_before_first(ask: Ask, to: Connection) -> None:
    await to.head(kind="text/event-stream" if ask.streams else "application/json")
    await hang(ask, to)


@_fault("error", 504, slow=True)
async def hangs_in_the_middle(ask: Ask, to: Connection) -> None:
    await _begin(ask, to)
    await hang(ask, to)


@_fault("right", slow=True, only="stream")
async def hangs_after_done(ask: Ask, to: Connection) -> None:
    await to.head()
    for one in chunks(ask):
        await to.event(one)
    await to.event(b"[DONE]")
    await hang(ask, to)


@_fault("error", 504, slow=True, only="stream")
async def only_comments(ask: Ask, to: Connection) -> None:
    await to.head()
    while True:
        await to.chunk(b": ping\n\n")
        await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------------------- it talks nonsense


@_fault("error", 502)
async def garbage_instead_of_json(ask: Ask, to: Connection) -> None:
    if ask.streams:
        await _told(ask, to, [b"{nope}"])
    else:
        await to.whole(b"{nope}")


@_fault("error", 502)
async def garbage_in_the_middle(ask: Ask, to: Connection) -> None:
    await _begin(ask, to)
    if ask.streams:
        await to.event(b'{"choices": [{"index": 0, "token_ids": "abc"}]}')
    await to.raw(b"\0\xff\xfe")
    to.close()


@_fault("error", 502)
async def garbage_instead_of_http(ask: Ask, to: Connection) -> None:
    await to.raw(b"\x16\x03\x01\x02\x00 garbage \xff\r\n\r\n")
    to.close()


@_fault("error", 502)
async def broken_chunks(ask: Ask, to: Connection) -> None:
    await to.head(kind="text/event-stream" if ask.streams else "application/json")
    await to.raw(b"zz\r\nnothing\r\n")
    await asyncio.sleep(0.01)
    to.close()


@_fault("error", 502)
async def head_of_a_megabyte(ask: Ask, to: Connection) -> None:
    await to.head("x-much: " + "a" * (1 << 20))
    await to.end()


@_fault("error", 502)
async def text_lines(ask: Ask, to: Connection) -> None:
    await to.head(kind="text/plain")
    await to.chunk(b"Hello!\nThis is no engine.\n")
    await to.end()


@_fault("error", 502)
async def invalid_utf8(ask: Ask, to: Connection) -> None:
    body = b'{"request_id": "\xff\xfe", "choices": []}'
    if ask.streams:
        await _told(ask, to, [body])
    else:
        await to.whole(body)


@_fault("error", 502)
async def nested_deeply(ask: Ask, to: Connection) -> None:
    body = b'{"metrics": ' + b"[" * 100_000
    if ask.streams:
        await _told(ask, to, [body])
    else:
        await to.whole(body)


@_fault("error", 502)
async def nothing_at_all(ask: Ask, to: Connection) -> None:
    if ask.streams:
        await to.head()
        await to.end()
    else:
        await to.whole(b"")


@_fault("error", 502)
async def done_at_once(ask: Ask, to: Connection) -> None:
    if ask.streams:
        await _told(ask, to, [])
    else:
        await to.json({"request_id": ask.id, "choices": []})


@_fault("error", 502)
async def null_choices(ask: Ask, to: Connection) -> None:
    made = {"request_id": ask.id, "choices": None}
    if ask.streams:
        await _told(ask, to, [made])
    else:
        await to.json(made)


@_fault("error", 502)
async def json_where_a_stream_was_asked(ask: Ask, to: Connection) -> None:
    if ask.streams:
        await to.json(answer(ask))
    else:
        await _told(ask, to, chunks(ask))


@_fault("error", 502)
async def html(ask: Ask, to: Connection) -> None:
    await to.whole(b"<html><body>nginx</body></html>", kind="text/html")


# -------------------------------------------------------------------------------------------- its tokens are wrong


@_fault("error", 502)
async def negative_id(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(n, [104, -1], finish="stop") for n in range(ask.choices)))


@_fault("error", 502)
async def id_beyond_the_vocabulary(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(n, [104, 100_000], finish="stop") for n in range(ask.choices)))


@_fault("error", 502)
async def id_beyond_numbers(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(n, [104, 1 << 70], finish="stop") for n in range(ask.choices)))


@_fault("error", 502)
async def choice_beyond_those_asked(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(n, IDS, finish="stop") for n in range(ask.choices + 1)))


@_fault("error", 502)
async def negative_choice(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(n - 1, IDS, finish="stop") for n in range(ask.choices)))


@_fault("error", 502)
async def the_same_choice_again(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(0, IDS, finish="stop") for _ in range(ask.choices + 1)))


@_fault("right")
async def choices_backwards(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(n, IDS, finish="stop") for n in reversed(range(ask.choices))))


@_fault("error", 502, only="stream")
async def goes_on_after_the_end(ask: Ask, to: Connection) -> None:
    await _told(ask, to, [*chunks(ask), chunk(ask, choice(0, [104]))])


@_fault("error", 502)
async def more_than_max_tokens(ask: Ask, to: Connection) -> None:
    most = ask.body["sampling_params"]["max_tokens"]
    await _said(ask, to, *(choice(n, [104] * (most + 1), finish="length") for n in range(ask.choices)))


@_fault("error", 502, only="stream")
async def never_ends(ask: Ask, to: Connection) -> None:
    await to.head()
    while True:
        await to.event(chunk(ask, choice(0, [104])))
        await asyncio.sleep(0)  # a write waits for nothing before the buffers are full


@_fault("error", 502)
async def no_finish_reason(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(n, IDS) for n in range(ask.choices)))


@_fault("error", 502)
async def one_choice_has_no_end(ask: Ask, to: Connection) -> None:
    last = ask.choices - 1
    await _said(ask, to, *(choice(n, IDS, finish=None if n == last else "stop") for n in range(ask.choices)))


@_fault("any", only="stream")
async def no_done(ask: Ask, to: Connection) -> None:
    await to.head()
    for one in chunks(ask):
        await to.event(one)
    await to.end()


@_fault("any")
async def each_event_twice(ask: Ask, to: Connection) -> None:
    if ask.streams:
        await _told(ask, to, [one for pair in zip(chunks(ask), chunks(ask), strict=True) for one in pair])
    else:
        await to.json(answer(ask))


@_fault("any")
async def unknown_finish_reason(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(n, IDS, finish="because") for n in range(ask.choices)))


@_fault("any")
async def aborted_by_another(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *(choice(n, None, finish="abort") for n in range(ask.choices)))


@_fault("error", 502)
async def finish_reason_is_a_number(ask: Ask, to: Connection) -> None:
    await _said(ask, to, *({**choice(n, IDS), "finish_reason": 7} for n in range(ask.choices)))


# ------------------------------------------------------------------------------------------------------- logprobs

_CHAT_LOGPROBS = (("logprobs", 1),)


async def _with_logprobs(ask: Ask, to: Connection, content: Any) -> None:
    def made(number: int) -> dict[str, Any]:
        return {**choice(number, IDS, finish="stop"), "logprobs": content}

    await _said(ask, to, *(made(number) for number in range(ask.choices)))


@_fault("right", fields=_CHAT_LOGPROBS)
async def right_logprobs(ask: Ask, to: Connection) -> None:
    assert ask.logprobs
    await right(ask, to)


@_fault("error", 502, fields=_CHAT_LOGPROBS)
async def missing_logprobs(ask: Ask, to: Connection) -> None:
    await _with_logprobs(ask, to, None)


@_fault("error", 502, fields=_CHAT_LOGPROBS)
async def empty_logprobs(ask: Ask, to: Connection) -> None:
    await _with_logprobs(ask, to, {"content": None})


@_fault("error", 502, fields=_CHAT_LOGPROBS)
async def too_few_logprobs(ask: Ask, to: Connection) -> None:
    await _with_logprobs(ask, to, {"content": [logprob(104)]})


@_fault("error", 502, fields=_CHAT_LOGPROBS)
async def too_many_logprobs(ask: Ask, to: Connection) -> None:
    await _with_logprobs(ask, to, {"content": [logprob(one) for one in [*IDS, 104]]})


@_fault("right", fields=_CHAT_LOGPROBS)  # as if they were the lowest that there are
async def logprobs_not_a_number(ask: Ask, to: Connection) -> None:
    await _with_logprobs(ask, to, {"content": [logprob(one, float("nan")) for one in IDS]})


@_fault("error", 502, fields=_CHAT_LOGPROBS)
async def logprobs_of_unknown_tokens(ask: Ask, to: Connection) -> None:
    await _with_logprobs(ask, to, {"content": [logprob(100_000) for _ in IDS]})


@_fault("any")
async def logprobs_unasked(ask: Ask, to: Connection) -> None:
    await _with_logprobs(ask, to, {"content": [logprob(one) for one in IDS]})


# --------------------------------------------------------------------------------------------------------- errors


def _events_of(*errors: Any, after: int) -> Behaviour:
    async def behave(ask: Ask, to: Connection) -> None:
        if ask.streams:
            await _told(ask, to, [*chunks(ask)[:after], *errors])
        else:
            await to.json(errors[0])

    return behave


for _status in (400, 500):
    _error = refusal("the engine says no", status=_status, type_="BadRequestError" if _status == 400 else "Internal")
    FAULTS[f"error_event_{_status}_first"] = Fault(
        _events_of(_error, after=0), "error", (400,) if _status == 400 else (502,), only="stream"
    )
    FAULTS[f"error_event_{_status}_later"] = Fault(_events_of(_error, after=4), only="stream")
for _name, _value in (("text", "no"), ("list", [1]), ("number", 5), ("empty", {}), ("code_text", {"code": "400"})):
    FAULTS[f"error_event_{_name}"] = Fault(_events_of({"error": _value}, after=0), "error", (502,))
FAULTS["error_event_401"] = Fault(
    _events_of(refusal("who are you?", status=401), after=0), "error", (502,), only="stream"
)
FAULTS["error_event_503"] = Fault(_events_of(refusal("busy", status=503), after=0), "error", (503,), only="stream")


def _status_with(status: int, body: bytes, kind: str) -> Behaviour:
    async def behave(ask: Ask, to: Connection) -> None:
        await to.whole(body, status=status, kind=kind)

    return behave


_MEANING = {
    400: 400,
    422: 422,
    413: 413,
    401: 502,
    403: 502,
    404: 502,
    408: 502,
    429: 503,
    500: 502,
    502: 502,
    503: 503,
}
for _status, _told_as in _MEANING.items():
    for _kind, _body in (
        ("json", json.dumps(refusal("the engine says no", status=_status)).encode()),
        ("detail", b'{"detail": "Not here"}'),
        ("html", b"<html><h1>No</h1></html>"),
        ("empty", b""),
        ("nested", b"[" * 50_000),
    ):
        FAULTS[f"status_{_status}_{_kind}"] = Fault(
            _status_with(_status, _body, "text/html" if _kind == "html" else "application/json"), "error", (_told_as,)
        )
for _status in (204, 206, 302, 307, 418, 599):
    FAULTS[f"status_{_status}"] = Fault(_status_with(_status, b"", "text/plain"))


@_fault("error", 502)
async def redirects(ask: Ask, to: Connection) -> None:
    host = ask.headers["host"]
    await to.whole(b"", f"location: http://{host}/health", status=307, kind="text/plain")


@_fault("error", 400)
async def refusal_in_pieces(ask: Ask, to: Connection) -> None:
    body = json.dumps(refusal("the engine says no", status=400)).encode()
    await to.raw(b"HTTP/1.1 400 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
    for place in range(0, len(body), 10):
        await asyncio.sleep(0.001)
        await to.raw(body[place : place + 10])


@_fault("error", 400)
async def refusal_without_end(ask: Ask, to: Connection) -> None:
    await to.head(status=400, kind="application/json")
    while True:
        await to.chunk(b'{"error": "' + b"x" * 1000)
        await asyncio.sleep(0)


# ------------------------------------------------------------------------------------------------- odd, but right


@_fault("right")
async def one_byte_at_a_time(ask: Ask, to: Connection) -> None:
    if ask.streams:
        await to.head()
        for one in chunks(ask):
            for byte in b"data: " + json.dumps(one).encode() + b"\n\n":
                await to.chunk(bytes([byte]))
        await to.event(b"[DONE]")
        await to.end()
        return
    body = json.dumps(answer(ask)).encode()
    await to.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
    for number, byte in enumerate(body):
        await to.raw(bytes([byte]))
        if number % 50 == 0:
            await asyncio.sleep(0)


@_fault("right", only="stream")
async def all_in_one_packet(ask: Ask, to: Connection) -> None:
    await to.head()
    body = b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in chunks(ask))
    await to.chunk(body + b"data: [DONE]\n\n")
    await to.end()


@_fault("right")
async def large(ask: Ask, to: Connection) -> None:
    """More than is read in the event loop."""
    padding = {"padding": "x" * 300_000}
    if ask.streams:
        await _told(ask, to, [{**one, **(padding if number == 0 else {})} for number, one in enumerate(chunks(ask))])
    else:
        await to.json({**answer(ask), **padding})


@_fault("right", only="stream")
async def crlf(ask: Ask, to: Connection) -> None:
    await _told(ask, to, chunks(ask), end=b"\r\n\r\n")


@_fault("right", only="stream")
async def comments_and_other_fields(ask: Ask, to: Connection) -> None:
    await to.head()
    await to.chunk(b": hello\n\nretry: 100\n\n")
    for number, one in enumerate(chunks(ask)):
        await to.chunk(b"event: message\nid: %d\ndata:%s\n: more\n\n" % (number, json.dumps(one).encode()))
    await to.event(b"[DONE]")
    await to.end()


@_fault("right", only="stream")
async def goes_on_after_done(ask: Ask, to: Connection) -> None:
    await to.head()
    for one in [*chunks(ask), b"[DONE]", chunk(ask, choice(0, [104])), b"[DONE]"]:
        await to.event(one)
    await to.end()


@_fault("right")
async def no_usage(ask: Ask, to: Connection) -> None:
    if ask.streams:
        await _told(ask, to, chunks(ask)[:-1])
    else:
        await to.json({**answer(ask), "usage": None})


@_fault("right")
async def other_request_ids(ask: Ask, to: Connection) -> None:
    if ask.streams:
        await _told(ask, to, [{**one, "request_id": f"{ask.id}-{number}"} for number, one in enumerate(chunks(ask))])
    else:
        await to.json({**answer(ask), "request_id": "another"})


@_fault("right", only="stream")
async def empty_events(ask: Ask, to: Connection) -> None:
    made: list[Any] = [{"request_id": ask.id, "choices": []}]
    for one in chunks(ask):
        made += [one, {"request_id": ask.id, "choices": []}, chunk(ask, *(choice(n, []) for n in ()))]
    await _told(ask, to, made)


@_fault("right", only="stream")
async def end_without_tokens(ask: Ask, to: Connection) -> None:
    made = [chunk(ask, choice(number, IDS)) for number in range(ask.choices)]
    await _told(ask, to, [*made, *(chunk(ask, choice(number, None, finish="stop")) for number in range(ask.choices))])


@_fault("right")
async def compressed(ask: Ask, to: Connection) -> None:
    if not ask.streams:
        await to.whole(gzip.compress(json.dumps(answer(ask)).encode()), "content-encoding: gzip")
        return
    await to.head("content-encoding: gzip")
    packer = zlib.compressobj(wbits=31)
    for one in [*chunks(ask), "[DONE]"]:
        data = b"data: %s\n\n" % (one if one == "[DONE]" else json.dumps(one)).encode()
        await to.chunk(packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))
    await to.chunk(packer.flush())
    await to.end()


@_fault("error", 502)
async def compressed_wrongly(ask: Ask, to: Connection) -> None:
    if ask.streams:
        await to.head("content-encoding: gzip")
        await to.event(chunks(ask)[0])
        await to.end()
    else:
        await to.whole(json.dumps(answer(ask)).encode(), "content-encoding: gzip")


@_fault("error", 502)
async def compressed_bomb(ask: Ask, to: Connection) -> None:
    bomb = gzip.compress(b"data: " + b" " * (8 << 20))
    if ask.streams:
        await to.head("content-encoding: gzip")
        await to.chunk(bomb)
        await to.end()
    else:
        await to.whole(bomb, "content-encoding: gzip")


@_fault("error", 502, only="whole")
async def length_too_long(ask: Ask, to: Connection) -> None:
    body = json.dumps(answer(ask)).encode()
    await to.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (len(body) + 9))
    await to.raw(body)
    to.close()


@_fault("error", 502, only="whole")
async def length_too_short(ask: Ask, to: Connection) -> None:
    body = json.dumps(answer(ask)).encode()
    await to.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (len(body) - 9))
    await to.raw(body)


@_fault("error", 502)
async def length_is_no_number(ask: Ask, to: Connection) -> None:
    await to.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: many\r\n\r\n{}")
    to.close()


@_fault("right")
async def ends_with_the_connection(ask: Ask, to: Connection) -> None:
    kind = b"text/event-stream" if ask.streams else b"application/json"
    await to.raw(b"HTTP/1.0 200 OK\r\ncontent-type: " + kind + b"\r\n\r\n")
    if ask.streams:
        for one in [*chunks(ask), "[DONE]"]:
            await to.raw(b"data: %s\n\n" % (one if one == "[DONE]" else json.dumps(one)).encode())
    else:
        await to.raw(json.dumps(answer(ask)).encode())
    to.close()


@_fault("right")
async def continues_first(ask: Ask, to: Connection) -> None:
    await to.raw(b"HTTP/1.1 100 Continue\r\n\r\n")
    await right(ask, to)


@_fault("error", 502)
async def answer_too_large(ask: Ask, to: Connection) -> None:
    """More than the client's bounds (see `under_test.connect`)."""
    if ask.streams:
        await to.head()
        await to.event(b'{"choices": [], "x": "' + b"x" * (3 << 20) + b'"}')
        await to.end()
    else:
        await to.whole(b'{"choices": [], "x": "' + b"x" * (5 << 20) + b'"}')


TEXT = bytes(one for one in IDS if one != END).decode()
"""The text of a right answer."""
