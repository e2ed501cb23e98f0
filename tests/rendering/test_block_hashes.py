"""Block hashes are those that vLLM 0.32 gives; the values here are from its functions."""

from __future__ import annotations

import pytest
from tests.rendering.helpers import chat, refused, renderer, text

from derender.protocol.common import BlockHashOptions
from derender.protocol.errors import BadRequest
from derender.rendering.block_hashes import MAX_HASHES, block_hashes

IDS = list(range(1000, 1000 + 37 * 70000, 70000))  # of one, two and four bytes in CBOR
DEFAULT = "vllm-none-hash"


@pytest.mark.parametrize(
    ("algorithm", "seed", "salt", "hashes"),
    [
        (
            "sha256",
            DEFAULT,
            None,
            (
                "521fcace6174856fd8c5881c256b01ff7aa75f619beab790b708320b69b1f20f",
                "5863f7843ab2b67554f8f6779eafadf07238b24d62d3239dbe11ecf7f7517ceb",
            ),
        ),
        (
            "sha256",
            "7",
            "s",
            (
                "1dcaaf5659a20b1b8c60fd2c5901a275bf5f538f5a29381b02b3e658d29368f6",
                "5d72585f746da8fa3779c477ee30cea274032290a400a44975fa9e0c940321c8",
            ),
        ),
        (
            "sha256_cbor",
            DEFAULT,
            None,
            (
                "37ec2f6ec0dfb34b5ef9a2926b84cffb73a78385e1dc1b899ba29423922f72eb",
                "292220e4452862d2384316c9bfa4ebec60557b8b4fdc01eb99082fb4a9d1d158",
            ),
        ),
        (
            "sha256_cbor",
            "7",
            "s",
            (
                "9ebea05c9d94576177ddb6d9ceb7a57e59412bd011d2fbe9eb9b0bd47976f27a",
                "140e68d880d06f4fa4dd51558cb108fdeead86c457dafb43ac364a724d453ddc",
            ),
        ),
    ],
)
def test_hashes_are_vllms(algorithm: str, seed: str, salt: str | None, hashes: tuple[str, ...]) -> None:
    options = BlockHashOptions(algorithm=algorithm, seed=seed)  # type: ignore[arg-type]
    assert tuple(block_hashes(IDS, options=options, cache_salt=salt).hashes) == hashes


def test_only_whole_blocks_have_a_hash_and_a_prefix_keeps_its_own() -> None:
    options = BlockHashOptions(block_size=4)
    whole = block_hashes(IDS, options=options).hashes
    assert len(whole) == 9
    for size in range(len(IDS) + 1):
        assert block_hashes(IDS[:size], options=options).hashes == whole[: size // 4]


def test_they_are_given_on_request() -> None:
    model = renderer()
    rendered = chat(model, return_block_hashes={"block_size": 4}, cache_salt="x")
    expected = block_hashes(rendered["token_ids"], options=BlockHashOptions(block_size=4), cache_salt="x")
    assert rendered["block_hashes"] == {"block_size": 4, "algorithm": "sha256", "hashes": expected.hashes}
    assert len(expected.hashes) == len(rendered["token_ids"]) // 4 > 0
    assert chat(model, return_block_hashes=True)["block_hashes"]["block_size"] == 16
    assert "block_hashes" not in chat(model)
    assert "block_hashes" not in chat(model, return_block_hashes=False)
    (first,) = text(model, prompt="a b c d e f", return_block_hashes={"block_size": 1})
    assert len(first["block_hashes"]["hashes"]) == len(first["token_ids"])


def test_more_hashes_than_an_answer_can_hold_are_refused() -> None:
    ids = [1] * (MAX_HASHES + 1)
    with pytest.raises(BadRequest, match="use a larger block_size") as caught:
        block_hashes(ids, options=BlockHashOptions(block_size=1))
    assert caught.value.param == "return_block_hashes.block_size"
    assert len(block_hashes(ids, options=BlockHashOptions(block_size=16)).hashes) == MAX_HASHES // 16


def test_the_bound_is_that_of_all_prompts_of_a_request() -> None:
    body = {"prompt": [[1] * 1000] * 300, "return_block_hashes": {"block_size": 1}}
    error = refused(text, renderer(), **body)
    assert error["param"] == "return_block_hashes.block_size"
    assert len(text(renderer(), **{**body, "prompt": [[1] * 1000] * 200})) == 200
