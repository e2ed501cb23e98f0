"""`derender serve` as a process: start, drain, workers, sockets, TLS."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.server.live import PATIENCE, Served, Wire, get_bytes, post_bytes, post_json, wait_for
from tests.server.tiny_model import write_tiny_model

from derender.registry import ModelRegistry
from derender.server.listen import Address, ListenError
from derender.server.run import ServerSettings
from derender.server.workers import serve_with_workers

HOST = ("--host", "127.0.0.1", "--port", "0")
RENDER = "/v1/chat/completions/render"
CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def test_it_tells_what_it_serves_answers_and_drains(model: str) -> None:
    with Served(model, *HOST, "--served-model-name", "a", "b", "--max_model_len", "1k") as served:
        assert served.lines[0] == f"Model: a, b ({model})"
        assert served.lines[1] == "  vocabulary 260 tokens, context 1000 tokens"
        assert post_json(served.port, RENDER, {"model": "b", **CHAT})[0] == 200
        assert post_json(served.port, RENDER, {"model": "c", **CHAT})[0] == 404
        with Wire(served.port) as idle, Wire(served.port) as wire:
            idle.send(get_bytes("/health"))
            assert idle.answer()[0] == 200
            whole = post_bytes(RENDER, b'{"messages": [{"role": "user", "content": "x"}]}')
            wire.send(whole[:-10])
            served.process.send_signal(signal.SIGTERM)
            assert idle.ended(3)  # nothing in work there
            with pytest.raises(ConnectionRefusedError):
                wait_for(lambda: bool(Wire(served.port).sock.close()), seconds=3)
            wire.send(whole[-10:])
            status, headers, body = wire.answer()
            assert (status, headers["connection"]) == (200, "close")
            assert b"token_ids" in body
        code, out, err = served.end()
        assert (code, out, err) == (0, "", "")


def test_it_waits_no_longer_than_told(model: str) -> None:
    with Served(model, *HOST, "--shutdown-timeout", "1") as served, Wire(served.port) as wire:
        wire.send(post_bytes("/tokenize", b"{}").replace(b"Length: 2", b"Length: 9"))
        wire.send(b"")
        served.process.send_signal(signal.SIGTERM)
        status, headers, body = wire.answer()
        assert (status, headers["connection"]) == (503, "close")
        assert b"the server is shutting down" in body
        assert served.process.wait(PATIENCE) == 0


def test_interrupting_is_a_normal_end(model: str) -> None:
    with Served(model, *HOST) as served:
        served.process.send_signal(signal.SIGINT)
        code, out, err = served.end()
        assert (code, out, err) == (0, "", "")


def test_logs_go_to_standard_error(model: str) -> None:
    with Served(model, *HOST, "--access-log") as served:
        with Wire(served.port) as wire:
            wire.send(get_bytes("/health"))
            wire.answer()
        served.process.terminate()
        code, out, err = served.end()
        assert (code, out) == (0, "")
        assert '"GET /health HTTP/1.1" 200' in err


def test_keys_come_from_flags_or_the_environment(model: str) -> None:
    with Served(model, *HOST, environment={"VLLM_API_KEY": "secret"}) as served, Wire(served.port) as wire:
        for request, status in (
            (get_bytes("/v1/models"), 401),
            (get_bytes("/v1/models", "Authorization: Bearer secret"), 200),
            (get_bytes("/health"), 200),
        ):
            wire.send(request)
            assert wire.answer()[0] == status


def test_several_models_go_by_their_names(model: str) -> None:
    with Served("--model", f"a={model}", "--model", f"b={model}", *HOST, "--max-model-len", "99") as served:
        assert [line for line in served.lines if line.startswith("Model")] == [f"Model: {n} ({model})" for n in "ab"]
        assert post_json(served.port, RENDER, {"model": "b", **CHAT})[1]["model"] == "b"
        assert post_json(served.port, RENDER, {"model": model, **CHAT})[0] == 404


def test_bodies_over_the_limit_are_refused(model: str) -> None:
    with Served(model, *HOST, "--max-body-mb", "0.001") as served:
        assert post_json(served.port, "/tokenize", {"prompt": "x"})[0] == 200
        status, body = post_json(served.port, "/tokenize", {"prompt": "x" * 2000})
        assert status == 413
        assert body["error"]["message"] == "body is larger than 1048 bytes"


def test_a_unix_socket(model: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with Served(model, "--uds", str(path)) as served:
        assert served.lines[-1] == f"Listening on unix:{path}"
        assert post_json(str(path), RENDER, CHAT)[0] == 200
        second = Served(model, "--uds", str(path))
        code, out, err = second.end()
        assert (code, out) == (1, "")
        assert err == f"derender: cannot listen on {path}: Address already in use\n"
        assert stat.S_ISSOCK(path.stat().st_mode)
    assert not path.exists()


def test_a_port_in_use_is_one_line(model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for workers in ("1", "2"):
            code, out, err = Served(model, "--host", "127.0.0.1", "--port", port, "--workers", workers).end()
            assert (code, out) == (1, "")
            assert err == f"derender: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_model_that_is_not_there_is_one_line(tmp_path: Path, workers: str) -> None:
    code, out, err = Served(str(tmp_path), *HOST, "--workers", workers).end()
    assert (code, out) == (1, "")
    assert err.startswith("derender: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_worker(pid: int) -> bool:
    return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
@pytest.mark.parametrize("over", ["tcp", "uds"])
def test_workers_share_the_work_are_replaced_and_drain(model: str, tmp_path: Path, over: str) -> None:
    where = HOST if over == "tcp" else ("--uds", str(tmp_path / "s"))
    with Served(model, *where, "--workers", "2") as served:
        target = served.port or str(tmp_path / "s")
        assert "Workers: 2" in served.lines
        workers = [child for child in children(served.process.pid) if is_worker(child)]
        assert len(workers) == 2
        for _ in range(20):
            assert post_json(target, RENDER, CHAT)[0] == 200

        def counted() -> bool:  # of both together; a request is counted after its answer is out
            with Wire(target) as wire:
                wire.send(get_bytes("/metrics"))
                text = wire.answer()[2].decode()
            return f'derender_requests_total{{route="{RENDER}",status="200"}} 20.0' in text

        wait_for(counted)

        os.kill(workers[0], signal.SIGKILL)
        wait_for(
            lambda: (
                len([c for c in children(served.process.pid) if is_worker(c)]) == 2
                and workers[0] not in children(served.process.pid)
            )
        )
        assert post_json(target, RENDER, CHAT)[0] == 200

        with Wire(target) as wire:
            whole = post_bytes(RENDER, b'{"messages": [{"role": "user", "content": "x"}]}')
            wire.send(whole[:-10])
            served.process.send_signal(signal.SIGTERM)
            wait_for(lambda: served.process.poll() is None)
            wire.send(whole[-10:])
            assert wire.answer()[0] == 200
        code, out, err = served.end()
        assert (code, out) == (0, "")
        assert f"worker {workers[0]} ended (exit code -9); starting another" in err
        assert "Traceback" not in err


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_workers_end_when_their_parent_is_gone(model: str) -> None:
    with Served(model, *HOST, "--workers", "2") as served:
        workers = [child for child in children(served.process.pid) if is_worker(child)]
        served.process.kill()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() and is_worker(pid) for pid in workers))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_tls(model: str, tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 1 -subj /CN=localhost"
    subprocess.run(
        [*make.split(), "-addext", "subjectAltName=DNS:localhost"],
        check=True,
        capture_output=True,
    )
    context = ssl.create_default_context(cafile=certificate)
    with Served(model, *HOST, "--ssl-keyfile", key, "--ssl-certfile", certificate) as served:
        assert served.lines[-1].startswith("Listening on https://127.0.0.1:")
        with Wire(served.port, wrap=lambda sock: context.wrap_socket(sock, server_hostname="localhost")) as wire:
            wire.send(get_bytes("/health"))
            assert wire.answer()[0] == 200
    for workers in ("1", "2"):
        code, out, err = Served(model, *HOST, "--ssl-certfile", str(tmp_path / "none"), "--workers", workers).end()
        assert (code, out) == (1, "")
        assert err == "derender: cannot use the TLS files: No such file or directory\n"


def test_workers_without_a_temporary_directory_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(**_: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "mkdtemp", nowhere)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    settings = ServerSettings(address=Address(host="127.0.0.1", port=0), workers=2)
    with pytest.raises(ListenError, match=r"TMPDIR or PROMETHEUS_MULTIPROC_DIR .* \(No usable temporary directory"):
        serve_with_workers(lambda: ModelRegistry([]), settings=settings)
