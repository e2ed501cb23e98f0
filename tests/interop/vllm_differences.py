"""Where derender answers otherwise than vLLM 0.32 on purpose, beyond what the differential tester knows: a rule each.

Given to the tester with `--rules`. A rule sees one difference (`d.a` is vLLM's value, `d.b` ours) and says whether it
is exactly the intended one; docs/wire.md tells the same in prose.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

import diff_rules
from diff_rules import MISSING, Context, Diff, lookup

Json = Any


def intended(label: str, reason: str):  # type: ignore[no-untyped-def]
    diff_rules.IMPROVEMENTS[label] = reason
    return diff_rules.rule(label)


@intended("parse_context", "render writes what vLLM 0.33 added: the context that derender needs")
def _(c: Context, d: Diff) -> bool:
    return d.path[-1] == "parse_context" and d.a is MISSING and isinstance(d.b, dict)


@intended("transfer", "kv_transfer_params stand at the top level too, as 0.33 writes them")
def _(c: Context, d: Diff) -> bool:
    return (
        d.path[-1] == "kv_transfer_params"
        and d.a is None
        and d.b is not None
        and d.b == c.body.get("kv_transfer_params")
    )


@intended("return_ids", "return_token_ids is passed on to the generate server, as in 0.33")
def _(c: Context, d: Diff) -> bool:
    return d.path[-1] == "return_token_ids" and d.a is None and d.b is True and c.body.get("return_token_ids") is True


@intended("buffer", "one more internal of vLLM's stays off the wire")
def _(c: Context, d: Diff) -> bool:
    return d.path[-1] == "output_text_buffer_length" and d.b is MISSING


@intended("param", "an error names its field where vLLM's says null")
def _(c: Context, d: Diff) -> bool:
    return d.path == ("body", "error", "param") and d.a is None and isinstance(d.b, str)


REFUSED = {
    "chat_template_kwargs.tokenize": "a reserved template argument",
    "messages.1.tool_calls.0.function.arguments": "arguments that are no JSON object",
    "body.prompt_tokens": "a negative prompt count",
    "choices": "an answer without a choice",
}
NEGATIVE_ID = re.compile(r"body\.generate_chunk\.choices\.0\.token_ids\.\d+")


def refused(c: Context) -> bool:
    """Nonsense that vLLM lets through is a 400 that names the field."""
    if (c.a.get("status"), c.b.get("status")) != (200, 400):
        return False
    param = c.b["body"]["error"]["param"] or ""
    return param in REFUSED or bool(NEGATIVE_ID.fullmatch(param))


def accepted(c: Context) -> bool:
    """weight_versions are passed on whatever their form is."""
    return (
        (c.a.get("status"), c.b.get("status")) == (400, 200)
        and "weight_versions" in str(c.a["body"])
        and any(choice.get("weight_versions") for choice in c.choices)
    )


def judge(c: Context, allowed: set[str]) -> diff_rules.Verdict:
    """The tester's judgement, which has no rules for answers of different status."""
    verdict = _judge(c, allowed)
    if verdict.kind == "different":
        for rule in (refused, accepted):
            if rule(c):
                return diff_rules.Verdict("better", {rule.__name__}, verdict.diffs)
    return verdict


_tester: Any = sys.modules["__main__"]
_judge = _tester.judge
_tester.judge = judge
for _rule in (refused, accepted):
    diff_rules.IMPROVEMENTS[_rule.__name__] = str(_rule.__doc__)


@intended("decoded", "prompt_logprobs have decoded_token filled in")
def _(c: Context, d: Diff) -> bool:
    if d.path[-1] == "decoded_token":
        return d.a is None and isinstance(d.b, str)
    if d.path[-1] != "prompt_logprobs" or d.a is not None or not isinstance(d.b, list):
        return False
    given = [g["prompt_logprobs"] for g in c.generated if g.get("prompt_logprobs")]
    return any(
        len(one) == len(d.b)
        and all(
            x is y or {k: v["logprob"] for k, v in x.items()} == {k: v["logprob"] for k, v in y.items()}
            for x, y in zip(one, d.b, strict=True)
        )
        for one in given
    )


@intended("whole_tail", "an incomplete last character is U+FFFD, and the text of its token before it is kept")
def _(c: Context, d: Diff) -> bool:
    """vLLM drops the whole last token when it ends inside a character; ours has what comes before the character."""
    return (
        d.path[-1] in ("text", "content")
        and isinstance(d.b, str)
        and d.b.endswith("\ufffd")
        and d.b.startswith(d.a or "")
        and any(c.decode(choice.get("token_ids") or []) == d.b for choice in c.choices)
    )


@intended("broken", "the token after a broken character tells of it, so that the tokens join to the text")
def _(c: Context, d: Diff) -> bool:
    if "logprobs" not in d.path or not isinstance(d.a, str) or not isinstance(d.b, str):
        return False
    if d.path[-1] != "token" and "tokens" not in d.path:
        return False
    return "\ufffd" in d.b and d.b.endswith(d.a) and len(d.b) > len(d.a)


@intended("chain", "tokens that end one character and begin the next: all is told when a character ends, U+FFFD never")
def _(c: Context, d: Diff) -> bool:
    if "logprobs" not in d.path:
        return False
    entry = d.path[: max((i for i, key in enumerate(d.path) if key in ("bytes", "token")), default=0)]
    before, now = lookup(c.a, entry), lookup(c.b, entry)
    if isinstance(now, dict) and isinstance(before, dict) and "bytes" in now and isinstance(before.get("token"), str):
        theirs, ours = before["token"], now["token"]
    elif "tokens" in d.path:
        theirs, ours = d.a, d.b
    else:
        return False
    return theirs.startswith("\ufffd") and ours.endswith(theirs.lstrip("\ufffd")) and "\ufffd" not in ours


@intended("exact", "the bytes of all entries, joined, are those of the output")
def _(c: Context, d: Diff) -> bool:
    if "logprobs" not in d.path or not {"bytes", "token"} & set(d.path) or "top_logprobs" in d.path:
        return False
    content = lookup(c.b, (*d.path[: d.path.index("logprobs") + 1], "content"))
    if not isinstance(content, list) or any(entry["bytes"] is None for entry in content):
        return False
    text = b"".join(bytes(entry["bytes"]) for entry in content).decode("utf-8", "replace")
    return any(c.decode(choice.get("token_ids") or []) == text for choice in c.choices)


@intended("pretokenizer", "ids are those of tokenizer.json, where transformers' class replaces its pre-tokenizer")
def _(c: Context, d: Diff) -> bool:
    """DERENDER_DIFF_TOKENIZER names the tokenizer.json: ours must be what the tokenizers library gives for it."""
    path = os.environ.get("DERENDER_DIFF_TOKENIZER")
    place = d.path[: max((i for i, key in enumerate(d.path) if isinstance(key, int)), default=-1) + 1]
    ours = lookup(c.b, (*(place or ("body",)), "token_ids"))
    theirs = lookup(c.a, (*(place or ("body",)), "token_ids"))
    if not path or not isinstance(ours, list) or not isinstance(theirs, list) or ours == theirs:
        return False
    if d.path[-1] not in ("token_ids", "token_offsets", "max_tokens"):
        return False
    if d.path[-1] == "max_tokens" and d.b - d.a != len(theirs) - len(ours):
        return False
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(path)
    text = reference.decode(ours, skip_special_tokens=False)
    return bool(text == reference.decode(theirs, skip_special_tokens=False) and reference.encode(text).ids == ours)


NAMED = re.compile(r"bytes:(?:\\x[0-9a-f]{2})+|token_id:\d+")


@intended("keys", "keys of a map of top logprobs do not collide: a text that is empty or taken is written as bytes")
def _(c: Context, d: Diff) -> bool:
    if "logprobs" not in d.path or "top_logprobs" not in d.path:
        return False
    place = d.path[: d.path.index("top_logprobs") + 2]
    before, now = lookup(c.a, place), lookup(c.b, place)
    if not isinstance(before, dict) or not isinstance(now, dict):
        return False
    # Ours may have more candidates, never fewer; where keys differ, ours spells a part of a character or tells of one.
    if len(now) < len(before):
        return False
    key = d.path[-1]
    if d.b is MISSING:  # vLLM's name of a part of a character: empty, or the whole character at its last byte
        return key == "" or not str(key).isascii() or any(k.endswith(str(key)) and "\ufffd" in k for k in now)
    if d.a is MISSING:
        return bool(NAMED.fullmatch(str(key))) or "\ufffd" in str(key) or not str(key).isascii()
    return key == "" or d.b == max(d.a, d.b)  # the sampled token keeps its own value


@intended("offsets", "text_offset counts characters of the text: a hidden special token has none")
def _(c: Context, d: Diff) -> bool:
    if "text_offset" not in d.path:
        return False
    logprobs = lookup(c.b, d.path[: d.path.index("text_offset")])
    return isinstance(logprobs, dict) and logprobs["text_offset"] == sorted(logprobs["text_offset"])


# ------------------------------------------------------------------------------------------- with an output format


def _calls(value: Any) -> list[Json]:
    return [call["function"] for call in value] if isinstance(value, list) else []


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return MISSING


def _message(c: Context, d: Diff, side: Json) -> Json:
    """The message (or the joined choice of a stream) that a difference is in."""
    end = next((i for i, key in enumerate(d.path) if isinstance(key, int)), None)
    if end is None:
        end = next((i for i, key in enumerate(d.path) if str(key).isdigit()), 0)
    choice = lookup(side, d.path[: end + 1]) or {}
    return choice.get("message") or choice.get("delta") or choice


@intended("raw", "arguments are the model's own characters, not written anew")
def _(c: Context, d: Diff) -> bool:
    outputs = [c.decode(choice.get("token_ids") or []) for choice in c.choices]
    if d.path[-1] == "arguments":
        return any(d.b in output for output in outputs) or _json(d.a) == _json(d.b) is not MISSING
    if d.path[-1] != "tool_calls":
        return False
    before, now = _calls(d.a), _calls(d.b)
    if c.wish.get("parallel_tool_calls") is False:
        before = before[:1]
    return len(before) == len(now) and all(
        x["name"] == y["name"] and any(y["arguments"] in output for output in outputs)
        for x, y in zip(before, now, strict=True)
    )


@intended("null", "content is null only beside calls; an answer that said nothing has empty content")
def _(c: Context, d: Diff) -> bool:
    return d.path[-1] == "content" and (d.a, d.b) == (None, "") and not _message(c, d, c.b).get("tool_calls")


@intended("asked", "an entry has as many alternatives as were asked for, as in 0.33")
def _(c: Context, d: Diff) -> bool:
    if d.path[-1] != "top_logprobs" or not isinstance(d.a, list) or not isinstance(d.b, list):
        return False
    asked = c.wish.get("top_logprobs") or 0
    return len(d.a) > asked == len(d.b) and [one["token"] for one in d.b] == [one["token"] for one in d.a[:asked]]


@intended("bare", "a call without arguments is a call with {}")
def _(c: Context, d: Diff) -> bool:
    return d.path[-1] == "tool_calls" and not _calls(d.a) and {f["arguments"] for f in _calls(d.b)} == {"{}"}


@intended("verbatim", "what reads like a call but is none is content as it was written, in streams too")
def _(c: Context, d: Diff) -> bool:
    if d.path[-1] == "markup in content":
        texts = [_message(c, Diff(("choices", key), None, None), c.b).get("content") for key in c.b["choices"]]
        marked = [text for text in texts if text and "<tool_call>" in text]
    elif d.path[-1] == "content" and d.a in (None, "") and isinstance(d.b, str):
        marked = [d.b]
    else:
        return False
    outputs = [c.decode(choice.get("token_ids") or []) for choice in c.choices] or [str(c.body)]
    return bool(marked) and all(any(text in output for output in outputs) or _broken(text) for text in marked)


def _broken(text: str) -> bool:
    return (
        text.startswith("<tool_call>") and _json(text.removeprefix("<tool_call>").split("</tool_call>")[0]) is MISSING
    )


@intended("between", "text beside calls is content, and white space that is all there is")
def _(c: Context, d: Diff) -> bool:
    if d.path[-1] != "content" or d.a not in (None, "") or not isinstance(d.b, str) or "<tool_call>" in d.b:
        return False
    outputs = [c.decode(choice.get("token_ids") or []) for choice in c.choices]
    return any(d.b in output for output in outputs) or (c.case.stream and "then content" in c.case.name)


@intended("demanded", "the JSON that a guided engine writes for a demanded call is read as that call")
def _(c: Context, d: Diff) -> bool:
    if c.wish.get("tool_choice") != "required" and not c.named:
        return False
    calls = _calls(_message(c, d, c.b).get("tool_calls"))
    if not calls or d.path[-1] not in ("reasoning", "tool_calls"):
        return False
    said = _json(_message(c, d, c.a).get("reasoning"))
    if c.named:
        return bool(said == _json(calls[0]["arguments"]))
    return bool(said == [{"name": f["name"], "parameters": _json(f["arguments"])} for f in calls])


@intended("shown", "where reasoning is hidden, ids and logprobs of all other tokens are told")
def _(c: Context, d: Diff) -> bool:
    if c.wish.get("include_reasoning") is not False or d.path[-1] not in ("token_ids", "content"):
        return False
    if d.path[-1] == "content" and "logprobs" not in d.path:
        return False
    if d.path[-1] == "token_ids":
        ids = [choice.get("token_ids") or [] for choice in c.choices]
        return not d.a and isinstance(d.b, list) and (c.case.stream or any(one[-len(d.b) :] == d.b for one in ids))
    if not isinstance(d.a, list) or not isinstance(d.b, list):
        return False
    kept = d.a[len(d.a) - len(d.b) :]
    return [one["logprob"] for one in kept] == [one["logprob"] for one in d.b]


@intended("cut", "calls before one that was cut off are calls; vLLM gives the markup of them all as content")
def _(c: Context, d: Diff) -> bool:
    before, now = _message(c, d, c.a).get("content") or "", _message(c, d, c.b)
    if "<tool_call>" not in before or not now.get("tool_calls"):
        return False
    if d.path[-1] == "tool_calls":
        return not _calls(d.a) and all(call["arguments"] in before for call in _calls(d.b))
    return d.path[-1] == "content" and (d.b or "") in before
