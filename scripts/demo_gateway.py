"""The gateway, shown: one command and one GGUF file make an OpenAI server whose engine knows no text."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo import NAME, events, free_port, heading, post, shown, stop, wait

Json = Any


@contextlib.contextmanager
def gateway(model: str) -> Iterator[str]:
    """A gateway with its embedded engine on loopback; its address."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "derender", "gateway", model),
        *("--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)),
    ]
    print("$", shlex.join(["derender", *command[3:]]))
    with contextlib.ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        log = stack.enter_context(file.open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        stack.callback(stop, process)
        wait("gateway", process, port, file)
        yield f"http://127.0.0.1:{port}"


def show(url: str, prompt: str) -> None:
    """What an OpenAI client does, one after the other. Ends the demo where an answer is not what it must be."""
    messages = [{"role": "user", "content": prompt}]
    chat: Json = {"model": NAME, "messages": messages, "max_tokens": 40, "temperature": 0.0}
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as answer:
        names = [card["id"] for card in json.load(answer)["data"]]
    heading(f"1. GET /v1/models: {', '.join(names)}")

    heading("2. POST /v1/chat/completions, whole, with logprobs")
    whole = post(f"{url}/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2})
    for entry in whole["choices"][0]["logprobs"]["content"][:3]:
        print(f"{entry['token']!r:>14} {entry['logprob']:8.4f}  bytes {bytes(entry['bytes'])!r}")
    whole["choices"][0]["logprobs"] = "(an entry for each token)"
    print(shown(whole))
    said = whole["choices"][0]["message"]["content"]
    if not said.strip():
        raise SystemExit("the model said nothing")

    heading("3. The same as a stream")
    streamed, usage = "", None
    asked = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    for event in events(f"{url}/v1/chat/completions", asked):
        for choice in event["choices"]:
            streamed += choice["delta"].get("content") or ""
            print(choice["delta"].get("content") or "", end="", flush=True)
        usage = event.get("usage") or usage
    print("\nusage:", json.dumps(usage))
    if streamed != said:
        raise SystemExit("the stream said something else")

    word = said.split()[2] if len(said.split()) > 2 else said
    heading(f"4. A stop string, {word!r}, which the engine cannot see: the answer is cut, the engine told to stop")
    cut = post(f"{url}/v1/chat/completions", {**chat, "stop": [word]})["choices"][0]
    print(json.dumps({name: cut[name] for name in ("message", "finish_reason", "stop_reason")})[:300])
    if word in cut["message"]["content"] or cut["stop_reason"] != word:
        raise SystemExit("the stop string was not found")

    heading("5. Two choices for a prompt, POST /v1/completions")
    many = {"model": NAME, "prompt": "The sea is", "n": 2, "max_tokens": 12, "temperature": 0.9, "seed": 7}
    for one in post(f"{url}/v1/completions", many)["choices"]:
        print(f"  {one['index']}: {one['text']!r}")
    heading("Done: every byte went through the loop, and the engine saw token ids only.")


def show_curl(url: str) -> None:
    heading("The gateway stays up (Ctrl-C ends it). Try:")
    ask: Json = {"model": NAME, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20}
    head = "-H 'content-type: application/json'"
    print(f"""
curl -s {url}/v1/chat/completions {head} -d '{json.dumps(ask)}'
curl -sN {url}/v1/chat/completions {head} -d '{json.dumps({**ask, "stream": True})}'
curl -s {url}/v1/completions {head} -d '{json.dumps({"model": NAME, "prompt": "The sea is", "max_tokens": 20})}'
curl -s {url}/v1/chat/completions/render {head} -d '{json.dumps(ask)}'
curl -s {url}/metrics | grep derender_gateway
""")


def run(model: str, prompt: str, *, serve: bool) -> None:
    """The demo; `serve` leaves the gateway running instead."""
    with gateway(model) as url:
        if not serve:
            show(url, prompt)
            return
        show_curl(url)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
