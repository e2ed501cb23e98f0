"""Which template of a model a request gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from derender.protocol.errors import BadRequest
from derender.template.jinja import TemplateBroken
from derender.template.source import TemplateSet

USER = [{"role": "user", "content": "q"}]


def picked(templates: TemplateSet, *, tools: bool = False, name: str | None = None) -> str:
    return templates.pick(tools, name).render(USER)


@pytest.mark.parametrize(
    "value",
    [
        {"default": "plain", "tool_use": "tools", "rag": "rag"},
        [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "tools"},
            {"name": "rag", "template": "rag"},
        ],
    ],
)
def test_named_templates(value: Any) -> None:
    templates = TemplateSet(value)
    assert templates.names == ("default", "tool_use", "rag")
    assert picked(templates) == "plain"
    assert picked(templates, tools=True) == "tools"
    assert picked(templates, tools=True, name="rag") == "rag"
    with pytest.raises(BadRequest, match="no chat template called 'zzz'"):
        templates.pick(False, "zzz")


def test_one_template_serves_tools_too() -> None:
    assert picked(TemplateSet("plain"), tools=True) == "plain"


def test_several_and_no_default() -> None:
    templates = TemplateSet({"tool_use": "tools", "rag": "rag"})
    assert picked(templates, tools=True) == "tools"
    with pytest.raises(BadRequest, match="no default: rag, tool_use"):
        templates.pick(False)


@pytest.mark.parametrize("templates", [TemplateSet(None), TemplateSet({}), TemplateSet([])])
def test_no_template_is_an_answer_that_names_the_fix(templates: TemplateSet) -> None:
    assert not templates
    with pytest.raises(BadRequest, match="--chat-template"):
        templates.pick(False)


@pytest.mark.parametrize("value", [5, ["x"], {"default": 1}, [{"name": "default"}], [{"template": "x"}]])
def test_templates_of_no_known_shape(value: Any) -> None:
    with pytest.raises(ValueError, match="chat_template"):
        TemplateSet(value)


def test_broken_template() -> None:
    with pytest.raises(TemplateBroken):
        TemplateSet({"default": "x", "tool_use": "{% if"})


def config(directory: Path, value: Any, name: str = "tokenizer_config.json") -> None:
    (directory / name).write_text(json.dumps({"chat_template": value}))


def test_directory_without_template(tmp_path: Path) -> None:
    assert not TemplateSet.load(tmp_path)
    assert not TemplateSet.load(None)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert not TemplateSet.load(tmp_path)


def test_order_of_the_files(tmp_path: Path) -> None:
    config(tmp_path, "older", "chat_template.json")
    assert picked(TemplateSet.load(tmp_path)) == "older"
    config(tmp_path, [{"name": "default", "template": "config"}, {"name": "rag", "template": "rag"}])
    assert picked(TemplateSet.load(tmp_path)) == "config"
    assert TemplateSet.load(tmp_path).names == ("default", "rag")
    (tmp_path / "chat_template.jinja").write_text("ü file\n", encoding="utf-8")
    assert picked(TemplateSet.load(tmp_path)) == "ü file"
    assert TemplateSet.load(tmp_path).names == ("default",)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert picked(TemplateSet.load(tmp_path)) == "ü file"
    assert picked(TemplateSet.load(tmp_path), tools=True) == "tools"


def test_template_of_the_operator(tmp_path: Path) -> None:
    config(tmp_path, {"default": "own", "tool_use": "tools"})
    file = tmp_path / "mine.jinja"
    file.write_text("from file")
    assert picked(TemplateSet.load(tmp_path, chat_template=str(file)), tools=True) == "from file"
    assert picked(TemplateSet.load(tmp_path, chat_template="tool_use")) == "tools"
    assert picked(TemplateSet.load(None, chat_template="{{ messages[0].content }}!")) == "q!"
    with pytest.raises(ValueError, match="no file"):
        TemplateSet.load(tmp_path, chat_template="missing.jinja")
    with pytest.raises(ValueError, match="no file"):
        TemplateSet.load(tmp_path, chat_template="x" * 5000)
