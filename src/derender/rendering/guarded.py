"""Prompts in which the control tokens are the template's own: the others have a stand-in in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from derender.protocol.codec import encode
from derender.protocol.common import Json
from derender.protocol.errors import BadRequest
from derender.rendering.hiding import STAND_INS, StandIns, changed, has_stand_ins
from derender.template.coded.base import CodedTemplate
from derender.template.jinja import ChatTemplate
from derender.template.own_text import MARKED, Marked, MarkedTemplate, OwnText

_ROLES = frozenset(("assistant", "developer", "function", "ipython", "observation", "system", "tool", "user"))
"""Roles of which a template may make a control token."""

_ENTANGLED = "the messages spell a control token together with parts of two of the chat template's own"
_UNCLEAR = "the messages have the name of a role where it cannot be told from the one that makes a control token"
_READ = "the messages spell control tokens in what this model's prompt format reads rather than writes"
_NONCHARACTERS = "the messages have noncharacters (such as U+1FFFE), which no text has"
_PRIVATE = "the messages have private characters from U+10F000, which --guard-special-tokens has a use for"


class Given(NamedTuple):
    """What a prompt is made of: the messages, and all else that a template is given."""

    messages: list[Any]
    options: Json


class GuardedPrompts:
    """Renders the prompts of one model. Safe to use from several threads.

    `controls`: the control tokens, each with its id. `special_tokens`: those by the names that templates know. Raises
    ValueError where the control tokens have too many different characters.
    """

    def __init__(self, controls: Collection[str], *, special_tokens: Mapping[str, str]) -> None:
        self.own = OwnText(controls)
        self._stand_ins = StandIns(self.own)
        self._few_stand_ins = StandIns(self.own, sparing=True)
        self._special_tokens = dict(special_tokens)
        self._templates: dict[str, MarkedTemplate] = {}

    def show(self, text: str) -> str:
        """A prompt with its own characters."""
        return self._stand_ins.show(text)

    def prepare(self, template: ChatTemplate) -> None:
        """Gets a template ready to be rendered. Raises TemplateBroken."""
        if not isinstance(template, CodedTemplate):
            self._marked(template)

    def marked(self, defaults: Json) -> Json:
        """Variables that the operator set, their control tokens marked; the same object where they have none."""
        found: Json = changed(defaults, self.own.mark_whole)
        return defaults if found == defaults else found

    def text(self, template: ChatTemplate, given: Given, *, own: Json) -> str:
        """The prompt of one of the model's own templates. `own`: options that are the operator's, marked.

        Raises BadRequest for what the template raises, and where it cannot be told what the template's own is.
        """
        if isinstance(template, CodedTemplate):
            return self._coded(template, given)
        marked = self._marked(template)
        return self.broken(given, lambda one: marked.render(one.messages, one.options, own=own))

    def broken(self, given: Given, render: Callable[[Given], Marked]) -> str:
        """A prompt of which `render` marks what is the template's own: each control token that is not gets a stand-in
        for a character. Raises BadRequest."""
        if self.own.has_marks(_as_json(given)):
            raise BadRequest(_PRIVATE, param="messages")
        text, made = render(given)
        _check_noncharacters(text)
        forged = self._forged(text, made)
        if not forged:
            return text
        named = self._named(given, forged, made)
        if named:
            made = self._with_roles(given, render, made, named)
        while forged := self._forged(text, made):  # one may hide others
            places = {self._place(one, made) for one in forged}
            text = "".join(self._stand_ins.hide(one) if at in places else one for at, one in enumerate(text))
            made = "".join(text[at] if at in places else one for at, one in enumerate(made))
        return text

    def _marked(self, template: ChatTemplate) -> MarkedTemplate:
        found = self._templates.get(template.source)
        if found is None:
            found = MarkedTemplate(template, self.own, special_tokens=self._special_tokens)
            self._templates[template.source] = found
        return found

    def _coded(self, template: CodedTemplate, given: Given) -> str:
        """A prompt made by code: texts that may have part in a control token have stand-ins before they are given to
        it; where that changes what it reads of them, all have."""
        for stand_ins in (self._few_stand_ins, self._stand_ins, self._few_stand_ins):
            # The clock may go on between two renderings.
            plain = template.render(given.messages, **given.options)
            _check_noncharacters(plain)
            hidden = Given(
                stand_ins.messages(
                    given.messages, raw_arguments=template.RAW_ARGUMENTS, json_results=template.reads_results
                ),
                stand_ins.values(given.options),
            )
            if hidden == given:
                return plain
            try:
                made = template.render(hidden.messages, **hidden.options)
            except BadRequest:
                continue
            if self.show(made) == plain:
                return made
        raise BadRequest(_READ, param="messages")

    def _forged(self, text: str, made: str) -> list[tuple[int, int]]:
        """Where a prompt spells control tokens that are not, or not wholly, marked."""
        owns = self.own.owns
        return [one.span() for one in self.own.spelled.finditer(text) if not owns(made[one.start() : one.end()])]

    def _place(self, forged: tuple[int, int], made: str) -> int:
        """The character that gets a stand-in: the first or the last, and none of a token of the template's own."""
        start, last = forged[0], forged[1] - 1
        for place in (start, last):
            if not MARKED.match(made, place):
                return place
        for place in (start, last):
            near = max(0, place - self.own.longest + 1)
            if all(not one.start() <= place < one.end() for one in self.own.written(made, near, forged[1])):
                return place
        raise BadRequest(_ENTANGLED, param="messages")

    def _named(self, given: Given, forged: list[tuple[int, int]], made: str) -> dict[tuple[int, int], str]:
        """The control tokens that the template may have made of a message's role."""
        roles = _ROLES.intersection(str(one.get("role")) for one in given.messages if isinstance(one, dict))
        found = {}
        for start, end in forged:
            rest = [one for one in MARKED.split(made[start:end]) if one]
            if len(rest) == 1 and len(rest[0]) < end - start and rest[0].lower() in roles:
                found[start, end] = rest[0].lower()
        return found

    def _with_roles(
        self, given: Given, render: Callable[[Given], Marked], made: str, named: dict[tuple[int, int], str]
    ) -> str:
        """The marked prompt with those marked that do stem from a role: they are the same where no other text of the
        request has the role's name."""
        name = re.compile("|".join(set(named.values())), re.IGNORECASE)

        def without(text: str) -> str:
            return name.sub(lambda found: _OTHER * len(found[0]), text)

        messages = [
            {key: value if key == "role" else changed(value, without) for key, value in one.items()}
            if isinstance(one, dict)
            else changed(one, without)
            for one in given.messages
        ]
        other = Given(messages, changed(given.options, without))
        again = made
        if other != given:
            try:
                again = render(other).marked
            except BadRequest:
                raise BadRequest(_UNCLEAR, param="messages") from None
            if len(again) != len(made) or any(x not in (y, _OTHER) for x, y in zip(again, made, strict=True)):
                raise BadRequest(_UNCLEAR, param="messages")
        for start, end in named:
            if _OTHER not in again[start:end]:
                made = made[:start] + self.own.mark_all(made[start:end]) + made[end:]
        return made


_OTHER = STAND_INS[0]


def _check_noncharacters(text: str) -> None:
    if has_stand_ins(text):
        raise BadRequest(_NONCHARACTERS, param="messages")


def _as_json(given: Given) -> bytes:
    try:
        return encode(given)
    except (UnicodeEncodeError, OverflowError):  # lone surrogates and large numbers
        return json.dumps(given).encode()
    except RecursionError:
        raise BadRequest("the messages or tools are nested too deeply", param="messages") from None
