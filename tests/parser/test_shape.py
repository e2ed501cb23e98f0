"""What a snapshot's members may be, and how they are packed."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from derender.parser.marks import pack, unpack, unpack_text
from derender.parser.shape import Count, Plain, Shape, checked, must


class Example(Shape, frozen=True):
    """A shape as readers have them."""

    phase: Literal["open", "value"]
    key: Plain
    count: Count
    last: bool = False

    def __post_init__(self) -> None:
        must("key", self.phase == "value" or not self.key)


def test_a_state_of_its_shape_is_taken() -> None:
    got = checked(Example, ["value", "a", 3])
    assert (got.phase, got.key, got.count, got.last) == ("value", "a", 3, False)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (["shut", "", 0], "phase"),
        (["\ud800", "", 0], "Example"),
        (["value", 1, 0], "key"),
        (["value", "a\udfff", 0], "key"),
        (["open", "a", 0], "key is none"),
        (["value", "a", -1], "count"),
        (["value", "a", True], "count"),
        (["value", "a", 1.0], "count"),
        (["value", "a", float("nan")], "count"),
        (["value", "a", 10**30], "count"),
        (["value", "a", 0, 1], "last"),
        (["value", "a", 0, None], "last"),
        (["value", "a"], "at least length 3"),
        (["value", "a", 0, False, 0], "at most length 4"),
        ({"phase": "value"}, "array"),
        (None, "array"),
    ],
)
def test_any_other_state_is_refused_by_the_member(state: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked(Example, state)


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        ("a", "a"),
        ("日本", "日本"),
        ("\ud801", [0, "", 1, ""]),
        ("a\ud800b\ud803", [0, "a", 0, "b", 3, ""]),
        (["a", 1, None, ["\ud800", True]], [1, "a", 1, None, [1, [0, "", 0, ""], True]]),
        ([], [1]),
    ],
)
def test_markers_in_texts_are_packed_as_numbers(value: Any, packed: Any) -> None:
    assert pack(value) == packed
    assert unpack(packed, 4) == value


@pytest.mark.parametrize(
    "packed",
    [
        "\ud800", "a\udfff", [], [2], ["a"], [True, "a"], [0], [0, "a"], [0, "a", 1], [0, "a", 4, ""], [0, "a", -1, ""],
        [0, "a", True, ""], [0, "a", 1.0, ""], [0, "a", 0, None], [0, "\ud800", 0, ""], [0, "a", 0, "", 1],
        [1, "\ud800"], [1, [0, "a"]], [1, [1, [1, [1, [1, [1, [1, [1, [1]]]]]]]]],
    ],
)  # fmt: skip
def test_what_was_never_packed_is_refused(packed: Any) -> None:
    with pytest.raises(ValueError, match=r"pack|letters"):
        unpack(packed, 4)


@pytest.mark.parametrize("packed", [None, 1, {}, [1], [1, "a"], [0, "a", 0]])
def test_what_is_no_text_is_refused(packed: Any) -> None:
    with pytest.raises(ValueError, match="not a packed text"):
        unpack_text(packed, 4)


def test_a_state_without_markers_has_none() -> None:
    assert unpack([1, "a", 2], 0) == ["a", 2]
    with pytest.raises(ValueError, match="packed"):
        unpack([1, [0, "", 0, ""]], 0)
