"""What the members of a snapshot may be. A snapshot comes back from a caller, who can have written anything: each class
that has a state says next to it, as a `Shape`, what a later push relies on.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**53)]
Plain = Annotated[str, Meta(pattern=r"\A[^\ud800-\udfff]*\Z")]
"""Text without marker characters, where the state has others with them."""

_PLACE = re.compile(r"\$\[([0-9]+)\]")


class Shape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A state's members in their order. What they have to be together is checked in `__post_init__`, by `must`."""


S = TypeVar("S", bound=Shape)


def must(member: str, holds: bool) -> None:
    """Raises ValueError, which names the member, for what cannot be."""
    if not holds:
        raise ValueError(f"{member} is none that a snapshot has here")


def checked(shape: type[S], state: Any) -> S:
    """A state with the members of its shape. Raises ValueError, which names the one that is wrong."""
    try:
        return msgspec.convert(state, shape)
    except (msgspec.ValidationError, UnicodeError) as error:
        text = _PLACE.sub(lambda found: shape.__struct_fields__[int(found[1])], str(error), count=1)
        raise ValueError(f"not a {shape.__name__}: {text}") from None
