"""The loop, shown step by step: render → generate (a server without a tokenizer) → derender, whole and streamed."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = Any
PROMPT = "What is the capital of France? Answer in one sentence."
NAME = "smollm2"


def heading(text: str) -> None:
    print(f"\n\033[1m── {text}\033[0m", flush=True)


def shown(value: Json, limit: int = 1200) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= limit else text[:limit] + " …"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(url: str, body: Json) -> Json:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url} answered {error.code}: {error.read().decode()}") from None


def events(url: str, body: Json) -> Iterator[Json]:
    """The events of a server-sent stream, up to [DONE]."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line[6:])


@contextlib.contextmanager
def servers(model: str) -> Iterator[tuple[str, str]]:
    """A generate server and a derender server on loopback; their addresses. Both are stopped at the end."""
    ports = free_port(), free_port()
    derender = [sys.executable, "-m", "derender"]
    common = ["--served-model-name", NAME, "--host", "127.0.0.1"]
    commands = {
        "generate": [*derender, "generate", model, *common, "--port", str(ports[0])],
        "serve": [*derender, "serve", model, *common, "--port", str(ports[1]), "--stop-strings", "derender"],
    }
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = {}
        for name, command in commands.items():
            print("$", shlex.join(["derender", *command[3:]]))
            log = stack.enter_context((logs / name).open("wb"))
            running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(stop, running[name])
        for (name, process), port in zip(running.items(), ports, strict=True):
            wait(name, process, port, logs / name)
        yield f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"derender {name} ended with {process.returncode}:\n{log.read_text(errors='replace')}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        time.sleep(0.05)
    raise SystemExit(f"derender {name} did not start:\n{log.read_text(errors='replace')}")


def show_whole(generate: str, serve: str, chat: Json) -> None:
    heading("1. The request, as a client sends it to an OpenAI server")
    print(shown(chat))

    rendered = post(f"{serve}/v1/chat/completions/render", {**chat, "return_prompt_text": True})
    heading("2. Rendered (POST /v1/chat/completions/render): the prompt's text and its token ids")
    print(rendered.pop("prompt_text"))
    print(f"{len(rendered['token_ids'])} ids: {rendered['token_ids']}")
    print("sampling_params:", json.dumps(rendered["sampling_params"]))

    heading("3. Generated (POST /inference/v1/generate): this server has no tokenizer, it answers in ids")
    answer: Json = None
    ids: list[int] = []
    content: list[Json] = []
    for event in events(f"{generate}/inference/v1/generate", {**rendered, "stream": True}):
        for choice in event["choices"]:
            ids += choice["token_ids"] or []
            content += (choice.get("logprobs") or {}).get("content") or []
            print(*(choice["token_ids"] or []), end=" ", flush=True)
            answer = {**choice, "token_ids": ids, "logprobs": {"content": content} if content else None}
    print()
    response = {"request_id": rendered["request_id"], "choices": [answer]}
    print("first logprobs on the wire:", json.dumps(content[:2]))

    body = {
        "model": NAME,
        "generate_response": response,
        "chat_request": chat,
        "prompt_tokens": len(rendered["token_ids"]),
        "prompt_token_ids": rendered["token_ids"][-8:],
    }
    final = post(f"{serve}/v1/chat/completions/derender", body)
    heading("4. Derendered (POST /v1/chat/completions/derender): the first tokens' logprobs, with exact bytes")
    for entry in final["choices"][0]["logprobs"]["content"][:5]:
        others = ", ".join(f"{top['token']!r} {top['logprob']:.3f}" for top in entry["top_logprobs"])
        print(f"{entry['token']!r:>14} {entry['logprob']:8.4f}  bytes {bytes(entry['bytes'])!r:<16} top: {others}")
    final["choices"][0]["logprobs"] = f"({len(content)} entries)"
    heading("5. The answer: an OpenAI ChatCompletion")
    print(shown(final))
    if not final["choices"][0]["message"]["content"].strip():
        raise SystemExit("the model said nothing")


def show_stream(generate: str, serve: str, chat: Json) -> None:
    heading("6. The same as a stream: one derender call per chunk, the small state travels with the caller")
    chat = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    rendered = post(f"{serve}/v1/chat/completions/render", chat)
    state: Json = None
    last: Json = None
    text = ""
    for event in events(f"{generate}/inference/v1/generate", rendered):
        body = {
            "model": NAME,
            "stream": True,
            "generate_chunk": event,
            "stream_state": state,
            "chat_request": chat,
            "prompt_tokens": len(rendered["token_ids"]),
            "prompt_token_ids": rendered["token_ids"][-8:],
        }
        got = post(f"{serve}/v1/chat/completions/derender", body)
        state, last = got["stream_state"], got["chunk"]
        for choice in last["choices"]:
            text += choice["delta"]["content"] or ""
            print(choice["delta"]["content"] or "", end="", flush=True)
    print(f"\nstate carried at the end ({len(json.dumps(state))} bytes): {json.dumps(state)}")
    print("last chunk's usage:", json.dumps(last["usage"]))


def show_curl(generate: str, serve: str) -> None:
    heading("The servers stay up (Ctrl-C ends them). Try:")
    ask = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20})
    print(f"""
curl -s {serve}/v1/chat/completions/render -H 'content-type: application/json' -d '{ask}' | tee request.json
curl -s {generate}/inference/v1/generate -H 'content-type: application/json' -d @request.json | tee response.json
jq -n --slurpfile r response.json '{{model: "{NAME}", generate_response: $r[0]}}' |
    curl -s {serve}/v1/chat/completions/derender -H 'content-type: application/json' -d @-

curl -s {serve}/tokenize -H 'content-type: application/json' -d '{{"model": "{NAME}", "prompt": "Hello world"}}'
curl -s {serve}/v1/models
open {serve}/docs
""")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="The render → generate → derender loop on this CPU",
        allow_abbrev=False,
    )
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--serve", action="store_true", help="leave the servers running and print curl lines")
    parser.add_argument("--gateway", action="store_true", help="show the gateway, which runs the loop by itself")
    parser.add_argument("--model", required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    chat = {
        "model": NAME,
        "messages": [{"role": "user", "content": args.prompt}],
        "max_tokens": 40,
        "temperature": 0.0,
        "logprobs": True,
        "top_logprobs": 2,
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    if args.gateway:
        import demo_gateway

        demo_gateway.run(args.model, args.prompt, serve=args.serve)
        return
    with servers(args.model) as (generate, serve):
        if args.serve:
            show_curl(generate, serve)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
            return
        show_whole(generate, serve, chat)
        show_stream(generate, serve, chat)
    heading("Done: every byte went through the loop.")


if __name__ == "__main__":
    main()
