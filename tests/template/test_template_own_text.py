"""What of a prompt its template wrote, and one pattern for many strings."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from derender.protocol.errors import BadRequest
from derender.template.jinja import ChatTemplate
from derender.template.own_text import MARKED, MarkedTemplate, OwnText
from derender.template.trie import any_of

Json = Any
OWN = OwnText(["<|im_start|>", "<|im_end|>", "<|user|>", "[INST]", "<s>"])


def shape(source: str, *, exact: bool, content: str = "x", **options: Json) -> str:
    """A prompt with `#` for each character that is the template's own and may be part of a control token."""
    template = MarkedTemplate(ChatTemplate(source), OWN, special_tokens={"bos_token": "<s>"})
    assert template.exact is exact
    made = template.render([{"role": "user", "content": content}], options, own={})
    assert made.text == ChatTemplate(source).render(
        [{"role": "user", "content": content}], **options, special_tokens={"bos_token": "<s>"}
    )
    assert OWN.show(made.marked) == made.text
    return MARKED.sub(lambda found: "#" * len(found[0]), made.marked)


C = "messages[0].content"


@pytest.mark.parametrize(
    ("source", "exact", "shown"),
    [
        ("a<|im_end|>b", True, "a##########b"),
        ("{{ bos_token }}{{ '[INST]' ~ " + C + " }}", True, "#########x"),
        ("<|{{ messages[0].role }}|>", True, "##user##"),
        ("<|{{ 'user' if true }}|>", True, "########"),
        ("{{ '<|im_' + 'end|>' }}", True, "##########"),
        ("{% set a = '[INST]' %}{{ a }}{{ a == '[INST]' }}", False, "######True"),
        ("{% set a = '[INST]' ~ " + C + " %}{{ a.split('[INST]')[1] }}{{ a.strip('x') }}", False, "x######"),
        ("{% set a = 'b[INST]c' %}{{ a.partition('[INST]')[1] }}{{ a.rstrip('c') }}", False, "######b######"),
        ("{% set a = 'T[INST]T' %}{{ a.split('[INST]') | join('<s>') }}", False, "T###T"),
        ("{{ '<|%s|>' % 'user' }}{{ '<|{}|>'.format('im_end') }}", False, "##################"),
        ("{% macro m(a) %}{{ a }}<s>{% endmacro %}{{ m('[INST]') | trim }}", False, "#########"),
        ("{{ " + C + " | replace('x', '<s>') }}{{ '<s>' | e }}", False, "###&lt;s&gt;"),
        ("{{ ['<s>', 'z'] | join('[INST]') }}", False, "#########z"),
        ("{{ {'user': '<|user|>'}[messages[0].role] }}", False, "########"),
        ("{% set r = 'user' %}{{ r in ['user'] }}{{ 'user' in [r] }}", False, "TrueTrue"),
    ],
)  # fmt: skip
def test_what_is_marked(source: str, exact: bool, shown: str) -> None:
    assert shape(source, exact=exact) == shown


def test_a_template_that_works_on_its_own_constants_otherwise() -> None:
    with pytest.raises(BadRequest, match="control tokens"):
        shape("{% set r = 'user' %}{{ [r] | select('equalto', 'user') | list | length }}", exact=False)


def test_no_text_of_the_request_is_marked() -> None:
    for content in ("<|im_end|>", "[INST]", "im_end", "<|"):
        assert shape("{{ " + C + " }}", exact=True, content=content) == content
    assert shape("{{ bos }}", exact=True, bos="<s>") == "<s>"


def test_marked_characters_are_found_in_json() -> None:
    assert OWN.has_marks('"\U0010f000"'.encode())
    assert OWN.has_marks(rb'"{\"a\": \"\\uDBFC\\udc00\"}"')
    assert not OWN.has_marks('"\\u00e9 \U0001f600 \ue000"'.encode())


def test_one_pattern_for_many_strings() -> None:
    rng = random.Random(1)
    for _ in range(300):
        texts = {"".join(rng.choices("ab|<-]^", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 12))}
        plain = re.compile("|".join(re.escape(one) for one in sorted(texts, key=len, reverse=True)))
        text = "".join(rng.choices("ab|<-]^", k=60))
        assert [one.span() for one in any_of(texts).finditer(text)] == [one.span() for one in plain.finditer(text)]
    assert not any_of([]).search("a")
