"""The file of engines: what it says, what is wrong in it, and how changes are found."""

# ruff: noqa: ASYNC240 (small files, and nothing else to do)

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from derender.gateway.engines_file import EnginesFileError, load_engines, read_engines, watch
from derender.gateway.settings import EngineSpec

ONE = '[[engine]]\nurl = "http://a:8000"\n'
TWO = ONE + '[[engine]]\nurl = "http://b:8000"\n'
NO_KEY = "the key is empty, or has more than printable ASCII without spaces"
A, B = EngineSpec(url="http://a:8000"), EngineSpec(url="http://b:8000")


def test_all_fields(tmp_path: Path) -> None:
    path = tmp_path / "engines.toml"
    path.write_text(
        """
        [[engine]]
        url = "http://10.0.0.7:8000"
        kind = "vllm"
        role = "decode"
        models = ["qwen3", "smollm2"]
        api_key_env = "ENGINE_KEY"

        [[engine]]
        url = "unix:/run/engine.sock"
        api_key = "k-1"

        [[engine]]
        url = "https://user:pw@host/base"
        """
    )
    assert load_engines(path, environ={"ENGINE_KEY": "secret\n"}) == (
        EngineSpec(
            url="http://10.0.0.7:8000", kind="vllm", role="decode", models=("qwen3", "smollm2"), api_key="secret"
        ),
        EngineSpec(url="unix:/run/engine.sock", api_key="k-1"),
        EngineSpec(url="https://user:pw@host/base"),
    )


def test_the_process_has_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DERENDER_TEST_KEY", "k")
    [spec] = read_engines(ONE + 'api_key_env = "DERENDER_TEST_KEY"', source="e.toml")
    assert spec.api_key == "k"


def test_one_address_in_two_roles() -> None:
    roles = [
        spec.role
        for spec in read_engines(
            '[[engine]]\nurl="http://a"\nrole="prefill"\n[[engine]]\nurl="http://a"\nrole="decode"', source="e"
        )
    ]
    assert roles == ["prefill", "decode"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no [[engine]] table"),
        ("engine = []", "has no [[engine]] table"),
        ('[engine]\nurl = "http://a"', "has no [[engine]] table"),
        ('engines = "x"', "engines: is not known; each engine is an [[engine]] table"),
        ("engine = [1]", "engine 1: Expected `object`, got `int`"),
        ("url = [", "is not TOML: Invalid value (at end of document)"),
        (b"\xff", "is not UTF-8 text"),
        ("[[engine]]", "engine 1: url: is missing"),
        ("[[engine]]\nurl = 3", "engine 1: url: expected `str`, got `int`"),
        (
            ONE + ONE.replace("a:", "b:") + "uri = 1",
            "engine 2: uri: is not known; fields are url, kind, role, models, api_key, api_key_env",
        ),
        (ONE + 'kind = "tgi"', "engine 1: kind: invalid enum value 'tgi'; one of auto, vllm, sglang, llamacpp"),
        (ONE + 'role = "all"', "engine 1: role: invalid enum value 'all'; one of any, prefill, decode"),
        (ONE + 'models = "m"', "engine 1: models: expected `array`, got `str`"),
        (ONE + "models = [1]", "engine 1: models[0]: expected `str`, got `int`"),
        (ONE + 'models = ["m", " "]', "engine 1: models: has an empty name"),
        (ONE + 'models = ["m", "m"]', "engine 1: models: has 'm' twice"),
        (ONE + 'api_key = ""', f"engine 1: api_key: {NO_KEY}"),
        (ONE + 'api_key = "s3cret\\n"', f"engine 1: api_key: {NO_KEY}"),
        (ONE + 'api_key_env = "NO_SUCH"', "engine 1: api_key_env: the variable 'NO_SUCH' is not set"),
        (ONE + 'api_key = "s3cret"\napi_key_env = "X"', "engine 1: api_key_env: is given beside api_key"),
        (ONE + ONE, "engine 2: url: is that of engine 1, in the same role"),
        (
            '[[engine]]\nurl = "http://u:s3cret@a"\napi_key = "k"',
            "engine 1: url: has a user in it, and there is a key; the engine can be told only one",
        ),
        ('[[engine]]\nurl = "http://a?key=s3cret"', "engine 1: url: has a query or a fragment"),
        ('[[engine]]\nurl = "unix:run/x"', "engine 1: url: is no unix:/PATH with an absolute path"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text: str | bytes, message: str) -> None:
    with pytest.raises(EnginesFileError) as error:
        read_engines(text, source="e.toml", environ={})
    assert str(error.value) == f"e.toml: {message}"
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    ["a:8000", "ftp://a", "http://", "http://:80", "http://a:99999", "http://a:0", "http://[::1", "http://a b", ""],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(EnginesFileError, match="engine 1: url: is not of the form http://HOST:PORT, https://"):
        read_engines(f'[[engine]]\nurl = "{url}"', source="e.toml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnginesFileError, match=r"none\.toml: cannot be read: No such file or directory"):
        load_engines(tmp_path / "none.toml")


# ---------------------------------------------------------------------------------------------------------- watch


class Watch:
    """A watch of a file, looking very often."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes: list[tuple[EngineSpec, ...]] = []

    async def __aenter__(self) -> Watch:
        work = watch(self.path, self.changes.append, current=(A,), poll_seconds=0.005)
        self._task = asyncio.get_running_loop().create_task(work)
        await self.quiet()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert not self._task.done(), self._task
        self._task.cancel()
        await asyncio.wait([self._task])

    async def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not true():
            assert time.monotonic() < end
            await asyncio.sleep(0.005)

    async def quiet(self) -> None:
        """Long enough for some looks."""
        await asyncio.sleep(0.08)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "engines.toml"
    file.write_text(ONE)
    return file


def put(path: Path, text: str) -> None:
    """Writes a file at once, as careful writers do."""
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    fresh.replace(path)


def test_watch_finds_changes_however_they_are_made(path: Path) -> None:
    async def main() -> None:
        async with Watch(path) as seen:
            assert seen.changes == []  # as it was read before
            path.write_text(TWO)
            await seen.until(lambda: seen.changes == [(A, B)])
            path.write_text(TWO + "# a word\n")
            os.utime(path)
            await seen.quiet()
            assert len(seen.changes) == 1  # the same engines
            put(path, ONE)
            await seen.until(lambda: seen.changes[1:] == [(A,)])

    asyncio.run(main())


def test_watch_follows_a_link_that_is_turned(path: Path) -> None:
    async def main() -> None:
        link = path.with_name("link.toml")
        link.symlink_to(path)
        other = path.with_name("other.toml")
        other.write_text(TWO)
        stat = path.stat()
        os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        async with Watch(link) as seen:
            turned = path.with_name("turned.toml")
            turned.symlink_to(other)
            turned.replace(link)
            await seen.until(lambda: seen.changes == [(A, B)])

    asyncio.run(main())


def test_watch_keeps_the_engines_of_a_file_that_breaks_or_goes(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Watch(path) as seen:
            put(path, ONE + "kind = 3")
            await seen.until(lambda: "kind: expected" in caplog.text)
            put(path, "")
            await seen.until(lambda: "has no [[engine]]" in caplog.text)
            path.unlink()
            await seen.until(lambda: "No such file" in caplog.text)
            path.mkdir()
            await seen.until(lambda: "Is a directory" in caplog.text)
            await seen.quiet()
            assert seen.changes == []
            path.rmdir()
            put(path, TWO)
            await seen.until(lambda: seen.changes == [(A, B)])

    with caplog.at_level(logging.ERROR, logger="derender.gateway"):
        asyncio.run(main())
    told = [message.removeprefix(f"{path}: ") for message in caplog.messages]
    assert all(message.endswith("; the engines stay as they are") for message in told)
    told = [message.removesuffix("; the engines stay as they are") for message in told]
    gone = "cannot be read: No such file or directory"
    if told[-1] == gone:  # seen between the directory and the last file
        told.pop()
    assert told == [
        "engine 1: kind: expected `str`, got `int`; one of auto, vllm, sglang, llamacpp",
        "has no [[engine]] table",
        gone,
        "cannot be read: Is a directory",
    ]


def test_watch_tells_the_first_reading_where_none_was_before(path: Path) -> None:
    async def main() -> None:
        changes: list[tuple[EngineSpec, ...]] = []
        task = asyncio.get_running_loop().create_task(watch(path, changes.append, poll_seconds=0.005))
        while not changes:  # noqa: ASYNC110 (a file tells nobody)
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        assert changes == [(A,)]

    asyncio.run(main())
