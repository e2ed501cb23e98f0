"""`derender gateway FILE.gguf` with the clients that people have: OpenAI's own, sync and async, and LangChain's."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.e2e.client import Client, Json
from tests.e2e.official import answered, assembled, create, official, official_async, openai, streamed
from tests.e2e.processes import DERENDER, servers
from tests.engines.real_model import gguf
from tests.server.live import wait_for

pytestmark = pytest.mark.real

NAME = "smollm2"
KEY = "sk-a-key"
SLOTS = 2
FRANCE = "What is the capital of France? Answer in one sentence."
ANSWER = "The capital of France is Paris."
TEMPLATE = """{%- if tools %}<|im_start|>system
# Tools
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
For each call return <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for call in m.tool_calls or () %}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""SmolLM2's own template leaves tools and calls out."""


def written(city: str) -> str:
    """A call as a string of a grammar."""
    call = json.dumps({"name": "get_weather", "arguments": {"city": city}}, ensure_ascii=False)
    return json.dumps(f"<tool_call>\n{call}\n</tool_call>", ensure_ascii=False)


CALL = f"root ::= {written('Paris')}"
CALLS = f'root ::= {written("Paris")} "\\n" {written("東京")}'
SAID = "It is 18 °C. ☀️"
SAY = f'root ::= "{SAID}"'
"""Grammars that make a small model write what a large one would."""


def chat(text: str = FRANCE, **fields: Any) -> Json:
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 24,
        **fields,
    }


def completion(prompt: Any = "Once upon a time", **fields: Any) -> Json:
    return {"model": NAME, "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The gateway with the embedded engine."""
    directory = tmp_path_factory.mktemp("gateway")
    template = directory / "tools.jinja"
    template.write_text(TEMPLATE)
    command = [
        *DERENDER, "gateway", str(gguf()), "--served-model-name", NAME, "--chat-template", str(template),
        "--max-model-len", "2048", "--engine-parallel", str(SLOTS), "--enable-request-id-headers", "--api-key", KEY,
    ]  # fmt: skip
    with servers({"gateway": command}, logs=directory, patience=60) as running:
        gateway = running["gateway"]
        wait_for(lambda: gateway.ask("GET", "/ready").status == 200)
        yield gateway


@pytest.fixture(scope="module")
def client(served: Client) -> Iterator[Any]:
    with official(served.url) as made, made.with_options(api_key=KEY) as keyed:
        yield keyed


def in_loop(served: Client, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """What `work` makes with an async client, in an event loop of its own."""

    async def main() -> Any:
        async with official_async(served.url) as made:
            return await work(made.with_options(api_key=KEY))

    return asyncio.run(main())


# ------------------------------------------------------------------------------------------------- OpenAI's client


def test_a_chat(client: Any) -> None:
    answer = create(client, chat())
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.model == NAME
    assert abs(answer.created - time.time()) < 60


@pytest.mark.parametrize(
    "body",
    [
        chat(),
        chat(logprobs=True, top_logprobs=2),
        chat("Tell me a story.", n=2, temperature=1.0, seed=5, logprobs=True),
        chat(stop=["France is"]),
        chat("Hi", structured_outputs={"grammar": 'root ::= "🦜🏴‍☠️"'}, max_tokens=60, logprobs=True, top_logprobs=1),
        completion(),
        completion(["Once upon", "There was"], logprobs=2, n=2, temperature=0.9, seed=1),
        completion(echo=True),
        completion(stop=" was", max_tokens=40),
    ],
    ids=str,
)
def test_a_stream_is_the_batch(client: Any, body: Json) -> None:
    batch, stream = answered(client, body), assembled(streamed(client, body))
    for one, other in zip(stream["choices"], batch["choices"], strict=True):
        text = (
            (one["message"]["content"], other["message"]["content"])
            if "message" in one
            else (one["text"], other["text"])
        )
        assert text[0] == text[1]
        assert (one["finish_reason"], one["stop_reason"]) == (other["finish_reason"], other["stop_reason"])
        if other["logprobs"]:
            for name, values in one["logprobs"].items():
                assert len(values) == len(other["logprobs"][name])
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert stream["usage"][name] == batch["usage"][name]


def test_headers_of_an_answer(client: Any) -> None:
    raw = create(client, chat(), raw=True, extra_headers={"X-Request-Id": "mine-1"})
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert int(raw.headers["content-length"]) == len(raw.content)
    assert raw.headers["x-request-id"] == "mine-1"
    parsed = raw.parse()
    assert (parsed.id, parsed._request_id) == ("chatcmpl-mine-1", "mine-1")


def test_a_streaming_response(client: Any) -> None:
    """The bytes as they come, through the client's own reader of lines."""
    with client.chat.completions.with_streaming_response.create(**chat(), stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-length" not in response.headers
        assert "no-" in response.headers["cache-control"]
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["delta"].get("content", "") for one in events for c in one["choices"]) == ANSWER
    with client.chat.completions.with_streaming_response.create(**chat()) as response:
        assert response.parse().choices[0].message.content == ANSWER


def test_the_client_s_own_accumulator(client: Any) -> None:
    """`stream()` puts chunks together by its own rules, and fails on what it does not understand."""
    with client.chat.completions.stream(
        **chat(logprobs=True, top_logprobs=2), stream_options={"include_usage": True}
    ) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert kinds.count("content.done") == 1
    assert kinds.count("content.delta") == 8  # the role's, and seven tokens that are text
    assert final.choices[0].message.content == ANSWER
    assert len(final.choices[0].logprobs.content) == 8
    assert final.usage.completion_tokens == 8


def test_an_answer_of_a_class(client: Any) -> None:
    """`parse()` sends a strict schema and reads the answer by it."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    model = pydantic.create_model("City", name=(Literal["Paris", "Rome"], ...), capital=(bool, ...))
    done = client.chat.completions.parse(
        **{**chat('Repeat: {"name": "Paris", "capital": true}', max_tokens=100), "response_format": model}
    )
    parsed = done.choices[0].message.parsed
    assert isinstance(parsed, model)
    assert parsed.name in ("Paris", "Rome")


def test_errors_are_the_client_s_own(served: Client, client: Any) -> None:
    with official(served.url) as nobody, pytest.raises(openai.AuthenticationError):
        create(nobody, chat())
    with pytest.raises(openai.NotFoundError) as missing:
        create(client, chat(model="gpt-4"))
    assert missing.value.body["code"] == 404
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            create(client, chat(temperature=-1, stream=stream))
        assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="context length"):
        create(client, completion("word " * 3000))
    assert [one.id for one in client.models.list()] == [NAME]


def test_who_leaves_gives_the_place_back(served: Client, client: Any) -> None:
    """More long answers are begun and left than the engine has places; the next one is answered at once."""
    long = chat("Tell me a story.", max_tokens=1500, ignore_eos=True)
    began = time.monotonic()
    for _ in range(SLOTS + 1):
        with create(client, {**long, "stream": True}) as chunks:
            for _ in range(3):
                next(chunks)
        with pytest.raises(openai.APITimeoutError):
            create(client.with_options(timeout=0.3), long)
    assert create(client, chat()).choices[0].message.content == ANSWER
    assert time.monotonic() - began < 15
    wait_for(lambda: busy(served) == 0, seconds=2)


def busy(served: Client) -> float:
    lines = str(served.ask("GET", "/metrics", headers={"Authorization": f"Bearer {KEY}"}).body).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("derender_gateway_engine_running{"))


def test_many_at_once(served: Client, client: Any) -> None:
    """More than the engine has places; each gets its own answer."""
    prompts = [
        "Once upon a time",
        "The capital of France is",
        "1, 2, 3, 4,",
        "Roses are red,",
        "To be or",
        "def main():",
    ]
    alone = [create(client, completion(prompt)).choices[0].text for prompt in prompts]

    async def work(client: Any) -> list[Any]:
        whole = [create(client, completion(prompt)) for prompt in prompts]
        given = await asyncio.gather(*whole)
        parts = await asyncio.gather(*(collect(client, prompt) for prompt in prompts))
        return [[one.choices[0].text for one in given], parts]

    async def collect(client: Any, prompt: str) -> str:
        stream = await create(client, completion(prompt, stream=True))
        return "".join([chunk.choices[0].text async for chunk in stream])

    assert in_loop(served, work) == [alone, alone]


def test_the_async_client(served: Client) -> None:
    async def work(client: Any) -> list[Any]:
        raw = await create(client, chat(), raw=True)
        async with client.chat.completions.with_streaming_response.create(**chat(), stream=True) as response:
            lines = [line async for line in response.iter_lines() if line]
        task = asyncio.ensure_future(create(client, chat("Tell me a story.", max_tokens=1500, ignore_eos=True)))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait([task])
        return [raw.headers["content-type"], raw.parse().choices[0].message.content, lines[-1], task.cancelled()]

    assert in_loop(served, work) == ["application/json", ANSWER, "data: [DONE]", True]
    wait_for(lambda: busy(served) == 0, seconds=2)


# ------------------------------------------------------------------------------------------------------------ tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def calling(grammar: str, **fields: Any) -> Json:
    return chat("Weather?", tools=[WEATHER], max_tokens=100, structured_outputs={"grammar": grammar}, **fields)


def test_calls_go_round(client: Any) -> None:
    asked = calling(CALLS)
    (choice,) = create(client, asked).choices
    calls = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Paris"}, {"city": "東京"}]
    assert len({call.id for call in calls}) == 2
    results = [{"role": "tool", "tool_call_id": call.id, "content": "18 degrees"} for call in calls]
    history = [*asked["messages"], choice.message.model_dump(exclude_none=True), *results]
    answer = create(client, {**calling(SAY), "messages": history})
    assert answer.choices[0].message.content == SAID
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage.prompt_tokens > 150


def test_the_client_s_own_accumulator_reads_calls(client: Any) -> None:
    asked = calling(CALLS)
    extra = {"structured_outputs": asked.pop("structured_outputs")}
    with client.chat.completions.stream(**asked, extra_body=extra) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.done") == 2
    calls = final.choices[0].message.tool_calls
    assert [call.function.name for call in calls] == ["get_weather"] * 2
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Paris"}, {"city": "東京"}]
    assert final.choices[0].finish_reason == "tool_calls"


# -------------------------------------------------------------------------------------------------------- LangChain


@pytest.fixture
def langchain(served: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """LangChain's `ChatOpenAI` before the gateway."""
    made = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")
    return made.ChatOpenAI(
        base_url=f"{served.url}/v1", api_key=KEY, model=NAME, temperature=0, max_tokens=100, max_retries=0,
        stream_usage=True,
    )  # fmt: skip


def test_langchain_asks(langchain: Any) -> None:
    answer = langchain.invoke(FRANCE)
    assert answer.content == ANSWER
    assert answer.usage_metadata["output_tokens"] == 8
    assert answer.response_metadata["finish_reason"] == "stop"
    chunks = list(langchain.stream(FRANCE))
    assert "".join(chunk.content for chunk in chunks) == ANSWER
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) == 8


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke"])
def test_langchain_s_tools_go_round(langchain: Any, way: str) -> None:
    messages = pytest.importorskip("langchain_core.messages", reason="langchain-core is not installed")
    bound = langchain.bind_tools([WEATHER])
    guided, saying = (bound.bind(extra_body={"structured_outputs": {"grammar": one}}) for one in (CALL, SAY))
    history = [messages.HumanMessage("What is the weather in Paris?")]
    if way == "stream":
        called = None
        for chunk in guided.stream(history):
            called = chunk if called is None else called + chunk
    elif way == "ainvoke":

        async def work() -> Any:
            try:
                return await guided.ainvoke(history)
            finally:
                await langchain.root_async_client.close()

        called = asyncio.run(work())
    else:
        called = guided.invoke(history)
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    assert not called.invalid_tool_calls
    assert not called.content
    history += [called, messages.ToolMessage("18 degrees, clear", tool_call_id=call["id"])]
    answer = saying.invoke(history)
    assert answer.content == SAID
    assert not answer.tool_calls
    assert answer.usage_metadata["input_tokens"] > called.usage_metadata["input_tokens"] + 20
