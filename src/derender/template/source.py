"""Which chat templates a model has, and which of them a request is rendered with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from derender.model_files import LARGEST_TEMPLATE, is_there, read_json, read_text
from derender.protocol.errors import BadRequest
from derender.template.coded.choose import CODED_NAMES, Choice, Vocabulary, choose, is_coded_name, named
from derender.template.jinja import ChatTemplate

__all__ = ["TemplateSet", "Vocabulary"]

DEFAULT = "default"
TOOL_USE = "tool_use"


class TemplateSet:
    """The named chat templates of one model; most have one, called "default", some have none.

    All are compiled here. Raises TemplateBroken where one does not compile.
    """

    __slots__ = ("_fallback", "_templates", "told")

    told: str
    """Where the prompt is made by code: which family's, and why. Empty for Jinja templates."""

    def __init__(
        self,
        templates: str | Mapping[str, str] | Sequence[Mapping[str, str]] | None,
        *,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """`templates` as a tokenizer's config has them: one text, texts by name, a list of {name, template}, or None.

        Raises ValueError (TemplateBroken for a text that does not compile) where they are something else.
        """
        self._templates: dict[str, ChatTemplate] = {
            name: ChatTemplate(source, name=name, now=now) for name, source in _named(templates).items()
        }
        self._fallback = self._templates.get(DEFAULT)
        self.told = ""

    @classmethod
    def of(cls, choice: Choice) -> TemplateSet:
        """The one template of a family that has code in its place."""
        found = cls(None)
        found._templates = {DEFAULT: choice.template}
        found._fallback = choice.template
        found.told = f"{choice.template.name}, made by code ({choice.reason})"
        return found

    @classmethod
    def of_model(
        cls,
        directory: Path | None,
        *,
        templates: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        vocabulary: Vocabulary,
        config: Mapping[str, Any],
    ) -> TemplateSet:
        """What a model's chats are rendered with: the operator's `chat_template` (as for `load`, or the name of a
        family with code), else that of a family with code where the model's files show one, else the model's own
        templates: those of the directory, or without one `templates`, by name.

        Raises ValueError, and OSError where a file cannot be read.
        """
        if chat_template is not None:
            if is_coded_name(chat_template):
                return cls.of(named(chat_template, vocabulary=vocabulary, directory=directory))
            return cls.load(directory, chat_template=chat_template)
        own = cls(templates) if directory is None else cls.load(directory)
        jinja = "\n".join(template.source for template in own._templates.values()) if own else None
        choice = choose(vocabulary=vocabulary, directory=directory, config=config, jinja=jinja)
        return own if choice is None else cls.of(choice)

    @classmethod
    def load(
        cls,
        directory: Path | None,
        *,
        chat_template: str | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> TemplateSet:
        """The templates of a model's directory, or the one that an operator gives instead.

        In the directory, as transformers reads it: `chat_template.jinja` and `additional_chat_templates/*.jinja`, else
        `chat_template` of `tokenizer_config.json`, else the older `chat_template.json` of multimodal models.
        `chat_template` is the path of a file, the name of one of the model's templates, or the text of a template.
        Raises ValueError where it is none of these, and OSError where a file cannot be read.
        """
        own = _of_directory(directory) if directory is not None else {}
        if chat_template is None:
            return cls(own, now=now)
        if (text := _file_text(chat_template)) is not None:
            return cls(text, now=now)
        if chat_template in own:
            return cls(own[chat_template], now=now)
        if not any(sign in chat_template for sign in "{}\n"):
            raise ValueError(
                f"--chat-template: {chat_template!r} is no file, no template's text, no template's name and none of "
                f"{', '.join(CODED_NAMES)}"
            )
        return cls(chat_template, now=now)

    def __bool__(self) -> bool:
        return bool(self._templates)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._templates)

    @property
    def all(self) -> tuple[ChatTemplate, ...]:
        return tuple(self._templates.values())

    def pick(self, tools: bool, name: str | None = None) -> ChatTemplate:
        """The template called `name`; without a name "tool_use" if the request has tools and there is one, else
        "default" (the rule of transformers' get_chat_template).

        Raises BadRequest where the model has no such template, or none at all: a model
        without a template still serves completions.
        """
        if name is not None:
            if (template := self._templates.get(name)) is not None:
                return template
            raise BadRequest(f"this model has no chat template called {name!r}", param="chat_template")
        if tools and (template := self._templates.get(TOOL_USE)) is not None:
            return template
        if self._fallback is not None:
            return self._fallback
        if self._templates:
            names = ", ".join(sorted(self._templates))
            raise BadRequest(
                f"this model has several chat templates and no default: {names}. Start with --chat-template",
                param="messages",
            )
        raise BadRequest(
            "this model has no chat template. Start the server with --chat-template to give it one", param="messages"
        )


def _named(templates: Any) -> dict[str, str]:
    if templates is None:
        return {}
    if isinstance(templates, str):
        return {DEFAULT: templates}
    if isinstance(templates, Mapping):
        named = dict(templates)
    elif isinstance(templates, Sequence) and all(isinstance(entry, Mapping) for entry in templates):
        named = {entry.get("name"): entry.get("template") for entry in templates}
    else:
        raise ValueError("chat_template must be a text, texts by name, or a list of objects with name and template")
    for name, source in named.items():
        if not isinstance(name, str) or not isinstance(source, str):
            raise ValueError("chat_template: names and templates must be texts")
    return named


def _of_directory(directory: Path) -> dict[str, str]:
    named = {
        path.name.removesuffix(".jinja"): read_text(path, largest=LARGEST_TEMPLATE)
        for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))
    }
    if is_there(main := directory / "chat_template.jinja"):
        named[DEFAULT] = read_text(main, largest=LARGEST_TEMPLATE)
    for file in ("tokenizer_config.json", "chat_template.json"):
        if not named and is_there(config := directory / file):
            value = read_json(config)
            named = _named(value.get("chat_template") if isinstance(value, dict) else None)
    return named


def _file_text(path: str) -> str | None:
    """The text of the file, None where the string is not the path of one."""
    if "\n" in path or "\0" in path or len(path) > 4096:
        return None
    try:
        if not (file := Path(path)).is_file():
            return None
    except OSError:  # a name too long for the file system
        return None
    return read_text(file, largest=LARGEST_TEMPLATE)
