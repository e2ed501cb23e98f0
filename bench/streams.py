"""Many streams at once through the gateway: streams.py MODEL_DIR [--streams 200] [--tokens 500] [--pause SECONDS]

An engine that costs next to nothing sends each stream one token at a time, at once or with a pause between two. Told
are the longest silence that any stream's client saw between its first event and its last, and the gateway's CPU for a
token. The client that reads the streams is a process of its own; with two cores all three share them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DERENDER = [sys.executable, "-m", "derender"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its children."""
    total = 0.0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for one in (pid, *map(int, children)):
        fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


async def read_stream(port: int, body: bytes) -> tuple[int, float, float]:
    """Events of one stream, the longest silence between two reads, and the seconds to the first one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    began = time.perf_counter()
    writer.write(head.encode() + body)
    events, silence, last, first = 0, 0.0, 0.0, 0.0
    tail = b""
    while True:
        data = await reader.read(1 << 16)
        now = time.perf_counter()
        if not data:
            raise SystemExit(f"the stream ended early, after {events} events: {tail[-300:]!r}")
        if b"data: " in data:
            if last:
                silence = max(silence, now - last)
            else:
                first = now - began
            last = now
        events += data.count(b"data: {")
        tail = tail[-64:] + data
        if b"data: [DONE]" in tail:
            break
    writer.close()
    return events, silence, first


async def run(args: argparse.Namespace, port: int, pid: int) -> dict[str, Any]:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello there"}],
        "max_tokens": args.tokens,
        "stream": True,
    }
    await read_stream(port, json.dumps({**body, "max_tokens": 8}).encode())
    before, began = cpu_seconds(pid), time.perf_counter()
    got = await asyncio.gather(*(read_stream(port, json.dumps(body).encode()) for _ in range(args.streams)))
    seconds, spent = time.perf_counter() - began, cpu_seconds(pid) - before
    return {
        "streams": args.streams,
        "tokens": args.tokens,
        "seconds": round(seconds, 2),
        "longest_silence_ms": round(max(one[1] for one in got) * 1e3, 1),
        "first_event_ms": round(max(one[2] for one in got) * 1e3, 1),
        "least_events": min(one[0] for one in got),
        "cpu_us_per_token": round(spent / (args.streams * args.tokens) * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two tokens of the engine")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    engine_port, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "replies.json"
        file.write_text(json.dumps([[1000 + n % 400 for n in range(args.tokens)]]))
        engine = subprocess.Popen(
            [sys.executable, str(HERE / "canned_engine.py"), str(engine_port), str(file), "--pause", str(args.pause)]
        )
        gateway = subprocess.Popen(
            [
                *(*DERENDER, "gateway", args.model, "--served-model-name", "m", "--host", "127.0.0.1"),
                *("--port", str(port), "--engine", f"http://127.0.0.1:{engine_port}", "--engine-kind", "vllm"),
                *("--workers", str(args.workers)),
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            for _ in range(600):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            print(json.dumps(asyncio.run(run(args, port, gateway.pid))))
        finally:
            gateway.terminate()
            gateway.wait()
            engine.kill()
            engine.wait()


if __name__ == "__main__":
    main()
