"""The client of llama.cpp servers with a real one: what the stand-in takes for granted, and the embedded engine's ids.

The server is the one inside the xllamacpp wheel, in a process of its own on a loopback port.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.engines.real_model import gguf

from derender.engines.connect import connect
from derender.engines.errors import EngineRefused
from derender.engines.http import EngineHttp
from derender.engines.llama_backend import BackendOptions
from derender.engines.llama_server import LlamaServerEngine
from derender.engines.llamacpp import LlamaCppEngine
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateChoice, GenerateRequest

pytestmark = pytest.mark.real

PROMPT = list(range(400, 420))
LENGTH = 512
SLOTS = 2
BIRD = 10813  # the first of the ids that SmolLM2 writes an emoji with: the two first bytes of its four
PATIENCE = 60.0  # seconds

SERVER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = int(sys.argv[2])
params.n_parallel = int(sys.argv[3])
params.warmup = False
params.n_gpu_layers = 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.endpoint_metrics = params.endpoint_slots = True
params.port = 0
server = xllamacpp.Server(params)
print("\\n" + server.listening_address, flush=True)
sys.stdin.read()
"""


class Engines:
    """The client, the embedded engine on the same file, and a loop to call them on."""

    def __init__(self, url: str, embedded: LlamaCppEngine) -> None:
        self.url = url
        self.embedded = embedded
        self.loop = asyncio.new_event_loop()
        self.client = LlamaServerEngine(EngineHttp(url))

    def run(self, act: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(act, PATIENCE))

    def choice(self, prompt: list[int] = PROMPT, **params: Any) -> GenerateChoice:
        (choice,) = self.run(self.client.generate(request(prompt, **params))).choices
        return choice

    def embedded_choice(self, prompt: list[int] = PROMPT, **params: Any) -> GenerateChoice:
        (choice,) = self.run(self.embedded.generate(request(prompt, **params))).choices
        return choice

    def streamed(self, prompt: list[int] = PROMPT, **params: Any) -> tuple[list[int], list[Any], Any]:
        async def act() -> list[Any]:
            return [chunk async for chunk in await self.client.stream(request(prompt, **params))]

        choices = [chunk.choices[0] for chunk in self.run(act())[:-1]]
        entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
        return [token for choice in choices for token in choice.token_ids], entries, choices[-1]

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        async def act() -> bytes:
            return await self.client.http.post(path, json.dumps(body).encode())

        posted: bytes = self.run(act())
        return posted

    def close(self) -> None:
        self.run(self.client.aclose())
        self.run(self.embedded.aclose())
        self.loop.close()


def request(prompt: list[int] = PROMPT, **params: Any) -> GenerateRequest:
    body = {"token_ids": prompt, "request_id": "r", "sampling_params": {"temperature": 0, "max_tokens": 12, **params}}
    return msgspec.convert(body, GenerateRequest)


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    path = gguf()
    command = [sys.executable, "-c", SERVER, str(path), str(LENGTH * SLOTS), str(SLOTS)]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout is not None
    assert server.stdin is not None
    try:
        lines: Callable[[], str] = server.stdout.readline
        url = next((line.strip() for line in iter(lines, "") if line.startswith("http")), None)
        assert url is not None, "the server did not start"
        options = BackendOptions(slots=2, threads=1, max_model_len=LENGTH)
        made = Engines(url, LlamaCppEngine.open(path, names=("m",), options=options))
        try:
            yield made
        finally:
            made.close()
    finally:
        server.stdin.close()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


def test_the_server_is_known_and_tells_of_itself(engines):
    async def act() -> Any:
        engine: Any = await connect(engines.url)
        await engine.probe()
        await engine.health()
        told = engine.kind, await engine.models(), await engine.load()
        await engine.aclose()
        return told

    kind, (model,), load = engines.run(act())
    assert (kind, model.max_model_len) == ("llamacpp", LENGTH)
    assert (load.running, load.waiting) == (0, 0)


def test_greedy_output_is_the_embedded_engines_token_for_token(engines):
    for prompt in (PROMPT, list(range(2000, 2020)), [504, 2798]):
        ids = engines.embedded_choice(prompt, max_tokens=20, ignore_eos=True).token_ids
        assert engines.choice(prompt, max_tokens=20, ignore_eos=True).token_ids == ids
        assert engines.streamed(prompt, max_tokens=20, ignore_eos=True)[0] == ids


def test_repetition_counts_over_prompt_and_output_as_in_the_embedded_engine(engines):
    params = {"repetition_penalty": 1.5, "max_tokens": 30, "logit_bias": {"198": -3.0}}
    ids = engines.embedded_choice(**params).token_ids
    assert engines.choice(**params).token_ids == ids != engines.choice(max_tokens=30).token_ids
    assert engines.streamed(**params)[0] == ids


def test_logprobs_are_close_to_the_embedded_engines(engines):
    ours = engines.choice(logprobs=3)
    theirs = engines.embedded_choice(logprobs=3)
    _, streamed, _ = engines.streamed(logprobs=3)
    assert len(ours.logprobs.content) == len(streamed) == 12
    for mine, again, other in zip(ours.logprobs.content, streamed, theirs.logprobs.content, strict=True):
        assert [one.token_id for one in mine.top_logprobs] == [one.token_id for one in other.top_logprobs]
        assert [one.rank for one in mine.top_logprobs] == [one.rank for one in other.top_logprobs]
        for one, same, reference in zip(mine.top_logprobs, again.top_logprobs, other.top_logprobs, strict=True):
            assert one.logprob == pytest.approx(reference.logprob, abs=0.02)
            assert same.logprob == pytest.approx(reference.logprob, abs=0.02)


def test_the_servers_own_stream_leaves_ids_out_and_ours_does_not(engines):
    """If this one fails, the server was mended, and its stream may be used."""
    params = {"structured_outputs": {"grammar": 'root ::= "🦜🦜"'}, "max_tokens": 20}
    body = {"prompt": PROMPT, "grammar": 'root ::= "🦜🦜"', "temperature": 0, "return_tokens": True, "n_predict": 20}
    whole = json.loads(engines.post("/completion", body))["tokens"]
    events = asyncio.run(_events(engines.url, {**body, "stream": True}))
    lossy = [token for event in events for token in event["tokens"]]
    assert len(lossy) < len(whole)
    assert engines.choice(**params).token_ids == whole
    assert engines.streamed(**params)[0] == whole
    forced = {"logit_bias": {str(BIRD): 100.0}, "max_tokens": 6}
    assert engines.streamed(**forced)[0] == [BIRD] * 6


async def _events(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    http = EngineHttp(url)
    records = await http.events("/completion", json.dumps(body).encode())
    events = [json.loads(record) async for some in records for record in some if record.startswith(b"{")]
    await http.aclose()
    return events


def test_ids_inside_a_character_have_logprobs_too(engines):
    choice = engines.choice(logit_bias={str(BIRD): 100.0}, max_tokens=3, logprobs=2)
    _, streamed, _ = engines.streamed(logit_bias={str(BIRD): 100.0}, max_tokens=3, logprobs=2)
    theirs = engines.embedded_choice(logit_bias={str(BIRD): 100.0}, max_tokens=3, logprobs=2)
    assert [entry.token_id for entry in choice.logprobs.content] == [BIRD] * 3
    for entry, again, other in zip(choice.logprobs.content, streamed, theirs.logprobs.content, strict=True):
        assert entry.logprob == pytest.approx(other.logprob, abs=0.02)
        assert again.logprob == pytest.approx(other.logprob, abs=0.02)
        assert entry.rank == pytest.approx(other.rank, rel=0.02)


def test_the_eos_is_one_of_the_ids(engines):
    backend: Any = engines.embedded._backend
    eos = backend.eos_id
    (other, *_) = sorted(backend.end_ids - {eos})
    for bias, reason in ((eos, None), (other, other)):
        for choice in (
            engines.choice(logit_bias={str(bias): 100.0}),
            engines.streamed(logit_bias={str(bias): 100.0})[2],
        ):
            assert (choice.token_ids, choice.finish_reason, choice.stop_reason) == ([bias], "stop", reason)
    ignored = engines.choice(logit_bias={str(eos): 100.0}, ignore_eos=True, max_tokens=3)
    assert (ignored.token_ids, ignored.finish_reason) == ([eos] * 3, "length")
    held = engines.choice(logit_bias={str(eos): 100.0}, min_tokens=3)
    assert held.token_ids[-1] == eos
    assert len(held.token_ids) == 4
    assert held.token_ids == engines.embedded_choice(logit_bias={str(eos): 100.0}, min_tokens=3).token_ids


def test_stop_ids_are_watched_here(engines):
    ids = engines.choice().token_ids
    stop = ids[5]
    upto = ids.index(stop) + 1
    for choice in (engines.choice(stop_token_ids=[stop]), engines.embedded_choice(stop_token_ids=[stop])):
        assert (choice.token_ids, choice.finish_reason, choice.stop_reason) == (ids[:upto], "stop", stop)
    assert engines.streamed(stop_token_ids=[stop])[0] == ids[:upto]


def test_with_nothing_asked_it_samples_from_the_whole_distribution(engines):
    """The server's defaults (top_k 40 and others) would leave out the rare ids."""

    async def act() -> list[int]:
        asked = [request(temperature=1.0, max_tokens=1, logprobs=20) for _ in range(60)]
        answers = await asyncio.gather(*map(engines.client.generate, asked))
        return [answer.choices[0].logprobs.content[0].rank is None for answer in answers]

    assert sum(engines.run(act())) > 10


def test_a_seed_gives_one_choice(engines):
    params = {"temperature": 1.0, "max_tokens": 20, "seed": 3}
    ids = engines.choice(**params).token_ids
    assert engines.choice(**params).token_ids == ids
    assert engines.streamed(**params)[0] == ids
    assert engines.choice(**{**params, "seed": 4}).token_ids != ids


def test_the_end_of_the_context_is_the_end(engines):
    prompt = [400] * (LENGTH - 10)
    assert len(engines.choice(prompt, max_tokens=None, ignore_eos=True).token_ids) == 10
    ids, _, last = engines.streamed(prompt, max_tokens=None, ignore_eos=True)
    assert (len(ids), last.finish_reason) == (10, "length")
    with pytest.raises(BadRequest):
        engines.choice(prompt, max_tokens=11)


def test_what_comes_from_the_cache_is_told(engines):
    prompt = list(range(3000, 3050))
    engines.choice(prompt, max_tokens=1)
    usage = engines.run(engines.client.generate(request(prompt, max_tokens=1))).usage
    assert usage.prompt_tokens == 50
    assert usage.prompt_tokens_details.cached_tokens == 49


@pytest.mark.parametrize(
    ("asked", "fine"),
    [
        ({"choice": ["yes", 'n"o\\']}, lambda text: text in ("yes", 'n"o\\')),
        ({"json": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}}, lambda text: len(json.loads(text)) < 3),
        ({"json_object": True}, lambda text: text.lstrip().startswith("{")),
        ({"grammar": 'root ::= [a-c]+ "!"'}, lambda text: set(text.rstrip("!")) <= set("abc")),
    ],
)  # fmt: skip
def test_constraints_hold(engines, asked, fine):
    choice = engines.choice(structured_outputs=asked, max_tokens=40)
    end_ids: frozenset[int] = engines.embedded._backend.end_ids  # type: ignore[attr-defined]
    ids = [token for token in choice.token_ids if token not in end_ids]
    assert fine(json.loads(engines.post("/detokenize", {"tokens": ids}))["content"])


@pytest.mark.parametrize("schema", [{"type": "bogus"}, {"type": "string", "pattern": "(?=a)b"}])
def test_a_schema_that_the_server_ignores_is_an_error(engines, schema):
    with pytest.raises((BadRequest, EngineRefused)):
        engines.choice(structured_outputs={"json": schema})


@pytest.mark.parametrize("verb", ["generate", "stream", "abort"])
def test_closing_frees_the_slot(engines, verb):
    asked = request(temperature=1.0, max_tokens=LENGTH - 40, ignore_eos=True, seed=-1)

    async def act() -> float:
        client = engines.client
        if verb == "stream":
            stream = await client.stream(asked)
            for _ in range(6):
                await anext(stream)
            await stream.aclose()
        else:
            task = asyncio.ensure_future(client.generate(asked))
            while not (await client.load()).running:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            if verb == "abort":
                await client.abort(["r"])
                assert (await task).choices[0].finish_reason == "abort"
            else:
                task.cancel()
        begun = time.monotonic()
        while (await client.load()).running:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return time.monotonic() - begun

    assert engines.run(act()) < 2.0
