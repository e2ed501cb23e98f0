"""What vLLM makes of requests with tools: run by vLLM's own Python, cases as JSON on stdin, answers as JSON on stdout.

A case: `parser` (a `--tool-call-parser` name), `level` (`--tool-strict-level`), `suffix` (of the structural tokens, for
families that have one), `body` (the chat request), `ours` (a structural tag, or null), `texts` (outputs to try on it).
The answer: `outputs` (the constraint's kinds that are set), `error` (the name of what was raised instead), `compiles`
(whether xgrammar takes `ours`; null for a tag of the older kind), `accepted` (of the texts, whether it is one of those
that `ours` allows). No tokenizer and no server: only the methods that make the constraint are called.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.abstract_parser import DelegatingParser
from vllm.parser.harmony import _adjust_output_format
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.abstract_tool_parser import ToolParser
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel
from xgrammar import Grammar
from xgrammar.testing import _is_grammar_accept_string

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def constraint(case: dict[str, Any]) -> dict[str, Any]:
    request = ChatCompletionRequest(**case["body"])
    kind = ToolParserManager.get_tool_parser(case["parser"])
    tool_parser = kind.__new__(kind)
    tool_parser._extractor = SimpleNamespace(token_suffix=case["suffix"])
    parser = SimpleNamespace(_tool_parser=tool_parser, tool_strict_level=ToolStrictLevel.from_name(case["level"]))
    if case["parser"] == "openai":
        request = _adjust_output_format(request)
    request = DelegatingParser._apply_structural_tag(parser, request)
    request = ToolParser.adjust_request(tool_parser, request)
    made = request.extract_structured_outputs()
    return {} if made is None else {name: value for name in _KINDS if (value := getattr(made, name)) is not None}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    outputs: dict[str, Any] | None = None
    error: str | None = None
    try:
        outputs = constraint(case)
    except Exception as raised:
        error = type(raised).__name__
    compiles: bool | None = None
    accepted: list[bool] = []
    if case["ours"] is not None and "structures" not in json.loads(case["ours"]):
        try:
            grammar = Grammar.from_structural_tag(case["ours"])
            compiles = True
            accepted = [_is_grammar_accept_string(grammar, text) for text in case["texts"]]
        except Exception:
            compiles = False
    return {"outputs": outputs, "error": error, "compiles": compiles, "accepted": accepted}


if __name__ == "__main__":
    answers = [answer(case) for case in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
