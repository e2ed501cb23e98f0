"""The engines' gauges: of engines that were taken out, and of worker processes that died."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gateway.fakes import FakeEngine, Fleet, at_once, settled, spec, url
from tests.gateway.faulty_engine import FaultyEngine, hang, until
from tests.gateway.test_faults_process import Gateway, outside
from tests.gateway.under_test import CHAT, run
from tests.server.live import Wire, get_bytes, post_bytes, post_json
from tests.server.tiny_model import write_tiny_model

from derender.server.gateway_metrics import GatewayMetrics

BODY = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}'


def gauges(text: str) -> dict[str, float]:
    """What is told of engines: `up` and `running` with the engine's name."""
    found = {}
    for line in text.splitlines():
        if line.startswith(("derender_gateway_engine_up{", "derender_gateway_engine_running{")):
            name, _, value = line.removeprefix("derender_gateway_engine_").rpartition(" ")
            found[name.replace('{engine="', " ").replace('"}', "")] = float(value)
    return found


def test_an_engine_that_was_taken_out_has_no_series_once_its_last_request_has_ended() -> None:
    metrics = GatewayMetrics()

    def told() -> dict[str, float]:
        return gauges(metrics.render().decode())

    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"), b=FakeEngine("m"))
        pool = fleet.pool(meter=metrics)
        await pool.start()
        a, b = url("a"), url("b")
        assert told() == {f"up {a}": 1, f"up {b}": 1, f"running {a}": 0, f"running {b}": 0}
        held = await pool.take("m", exclude=[pool.backends[0]])
        pool.set_specs([spec("a")])
        await settled()
        assert told() == {f"up {a}": 1, f"up {b}": 0, f"running {a}": 0, f"running {b}": 1}
        held.release()
        await settled()
        assert told() == {f"up {a}": 1, f"running {a}": 0}
        fleet.engines[a] = FakeEngine("m")
        pool.set_specs([spec("a", api_key="new")])
        await settled()
        assert told() == {f"up {a}": 1, f"running {a}": 0}
        await pool.aclose()

    at_once(main)


def test_one_address_in_two_roles_has_two_series() -> None:
    metrics = GatewayMetrics()

    async def main() -> None:
        pool = Fleet(a=FakeEngine("m")).pool(spec("a", role="prefill"), spec("a", role="decode"), meter=metrics)
        await pool.start()
        lease = await pool.take("m", role="decode")
        assert gauges(metrics.render().decode()) == {
            "up http://a:8000 (prefill)": 1, "up http://a:8000 (decode)": 1,
            "running http://a:8000 (prefill)": 0, "running http://a:8000 (decode)": 1,
        }  # fmt: skip
        lease.release()
        await pool.aclose()

    at_once(main)


_SEVERAL = """
import multiprocessing, os, sys

def other():
    from derender.server.gateway_metrics import GatewayMetrics
    metrics = GatewayMetrics()
    metrics.engine_state("gone", up=False, running=7)
    metrics.engine_state("kept", up=True, running=2)
    os._exit(0)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=other)
    child.start()
    child.join()
    from derender.server.gateway_metrics import GatewayMetrics
    metrics = GatewayMetrics()
    metrics.engines({"gone", "kept"})
    metrics.engine_state("gone", up=True, running=1)
    metrics.engine_state("kept", up=True, running=1)
    sys.stdout.write(metrics.render().decode())
    print("THEN")
    metrics.engines({"kept"})
    sys.stdout.write(metrics.render().decode())
"""


def test_with_several_processes_what_is_listed_is_told(tmp_path: Path) -> None:
    script = tmp_path / "several.py"
    script.write_text(_SEVERAL)
    (tmp_path / "values").mkdir()
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "values")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=True, env=environment
    )
    before, after = done.stdout.split("THEN\n")
    assert gauges(before) == {"up gone": 0, "running gone": 8, "up kept": 1, "running kept": 3}
    assert gauges(after) == {"up kept": 1, "running kept": 3}


def children(pid: int) -> list[int]:
    every = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [one for one in every if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def scraped(port: int) -> dict[str, float]:
    with Wire(port) as wire:
        wire.send(get_bytes("/metrics"))
        return gauges(wire.answer()[2].decode())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_what_a_dead_worker_had_at_engines_is_not_told_for_ever(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path / "tiny"))
    file = tmp_path / "engines.toml"

    async def main() -> None:
        async with FaultyEngine(lambda ask: hang) as one, FaultyEngine() as other:
            tables = [f'[[engine]]\nurl = "{each.url}"\nkind = "vllm"\n' for each in (one, other)]
            file.write_text(tables[0])
            served = Gateway(model, "--workers", "2", "--engines-file", str(file))
            try:
                await outside(served.wait)
                workers = await outside(lambda: children(served.process.pid))
                assert len(workers) == 2
                wires = [Wire(served.port) for _ in range(8)]
                for wire in wires:
                    wire.send(post_bytes(CHAT, BODY))
                await until(lambda: len(one.asked) == 8)
                assert await outside(lambda: scraped(served.port)) == {f"up {one.url}": 1, f"running {one.url}": 8}
                for pid in workers:
                    os.kill(pid, signal.SIGKILL)
                    await until(lambda pid=pid: not Path(f"/proc/{pid}").exists())  # type: ignore[misc]
                    await until(lambda: len(children(served.process.pid)) == 2)
                for wire in wires:
                    wire.sock.close()

                async def shows(wanted: dict[str, float]) -> None:
                    told: object = None
                    for _ in range(200):
                        try:
                            told = await outside(lambda: scraped(served.port))
                        except (OSError, AssertionError, ValueError):  # no worker listens yet
                            told = None
                        if told == wanted:
                            return
                        await asyncio.sleep(0.05)
                    raise AssertionError(told)

                await shows({f"up {one.url}": 1, f"running {one.url}": 0})
                (tmp_path / "new").write_text(tables[1])
                (tmp_path / "new").replace(file)
                await shows({f"up {other.url}": 1, f"running {other.url}": 0})
                assert (await outside(lambda: post_json(served.port, CHAT, {"messages": [], "max_tokens": 1})))[
                    0
                ] == 400
                served.process.send_signal(signal.SIGTERM)
                code, _, err = await outside(served.end)
                assert code == 0
                assert "Traceback" not in err
            finally:
                served.process.kill()

    run(main)
