"""API request → GenerateRequest: validate → normalize → prompt → encode → sampling parameters."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import msgspec
from msgspec import UNSET

from derender.protocol.chat import ChatCompletionRequest, NamedToolChoice
from derender.protocol.codec import encode
from derender.protocol.common import Json, StructuredOutputs
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import BadRequest, InvalidBody
from derender.protocol.generate import GenerateRequest, ParseContext, ReasoningParserKwargs, SamplingParams
from derender.protocol.tokenize import TokenizeRequest, TokenizeResponse
from derender.rendering.block_hashes import check_hashes
from derender.rendering.continuing import Continuation
from derender.rendering.conversation import Chat, Conversation, count_tool_calls, has_media, tool_dicts
from derender.rendering.extras import chat_prompt, hashed, hashes
from derender.rendering.model import RenderModel
from derender.rendering.prompt import Prompt, PromptEncoder, completion_prompts
from derender.rendering.refusal import refuse
from derender.rendering.sampling import COMPLETION_MAX_TOKENS, Sampler
from derender.rendering.structured import constraint_of
from derender.rendering.validate import (
    check_chat,
    check_completion,
    check_template_trust,
    check_tokenize,
    check_tool_parser,
)

_RANDOM = Random()  # ids need be different, not secret: no call of the kernel for each
os.register_at_fork(after_in_child=_RANDOM.seed)
_NO_EFFECT_VALUES = (None, "auto")  # template kwargs that leave the default, as in vLLM's merge_kwargs
_NOT_OF_IDS = (
    "return_message_spans", "return_loss_mask", "return_token_offsets", "truncate_prompt_tokens",
    "continue_final_message", "add_special_tokens",
)  # fmt: skip
_REUSED = "kv_transfer_params.prompt_token_ids"
MAX_REQUEST_ID = 512
MAX_REPEATED_BYTES = 32 << 20
"""What an answer may hold of the parameters again and again, in bytes of JSON: each prompt has them all, so that 1,024
prompts with stop strings of a megabyte would make an answer of gigabytes."""


class Renderer:
    """Renders the requests of one model. Holds no state of a request; safe to use from several threads.

    All methods raise BadRequest or InvalidBody for what is wrong with the request, and nothing else.
    """

    def __init__(self, model: RenderModel) -> None:
        self.model = model
        self._prompts = PromptEncoder(
            model.tokenizer, max_model_len=model.max_model_len, vocab_size=model.vocab_size, guard=model.guard
        )
        self._conversation = Conversation(model, max_chars=self._prompts.max_chars)
        self._sampler = Sampler(
            defaults=model.sampling_defaults,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            max_logprobs=model.max_logprobs,
            stop_strings=model.stop_strings,
            over_room=model.max_tokens_over_room,
            end_id=model.end_id,
        )
        self._turn_end_ids = frozenset(model.turn_ends.values())
        self._continuation = Continuation(
            model.tokenizer.encode if model.guard is None else model.guard.encode,
            decode=model.tokenizer.decode,
            turn_ends=model.turn_ends,
            reasoning=model.reasoning_tags,
        )
        self._plain_kwargs: Json = {
            **_given(model.default_chat_template_kwargs),
            "add_generation_prompt": True,
            "continue_final_message": False,
        }
        self._plain_context = ParseContext(chat_template_kwargs=self._plain_kwargs)

    # ------------------------------------------------------------------------------------------------------ chat

    def chat(self, request: ChatCompletionRequest, *, request_id: str | None = None) -> GenerateRequest:
        """A chat, rendered. `request_id` (of a header) goes before the body's; without either one is made up."""
        model = self.model
        check_chat(request)
        check_tool_parser(request, has_parser=model.has_tool_parser, auto=model.auto_tool_choice)
        check_template_trust(
            request.chat_template, request.chat_template_kwargs, trusted=model.trust_request_chat_template
        )
        kv, reused = _kv_transfer_params(request)
        params = self._sampler.chat(request, kv=kv, structured=self._constraint(request))
        asked, name = request.max_completion_tokens, "max_completion_tokens"
        if asked is None:
            asked, name = request.max_tokens, "max_tokens"
        self._sampler.check_max_tokens(asked, name)
        choice = request.effective_tool_choice
        if model.has_reasoning_parser or (request.tools and choice != "none" and model.has_tool_parser):
            params["skip_special_tokens"] = False  # markers of calls may be special tokens

        tools = tool_dicts(request.tools) if request.tools else None
        shown = None if choice == "none" and model.exclude_tools_when_tool_choice_none else tools
        if reused is not None:
            prompt, told = self._reused_prompt(request, reused)
        else:
            conversation = self._conversation.chat(
                request.messages,
                tools=shown,
                documents=request.documents,
                chat_template=request.chat_template,
                kwargs=request.chat_template_kwargs,
                reasoning_effort=request.reasoning_effort,
                add_generation_prompt=request.add_generation_prompt is not False,
                continue_final_message=request.continue_final_message,
                asked=_asked(request),
            )
            if request.previous_token_ids is not None:
                prompt, told = self._continued(request, conversation, request.previous_token_ids)
            else:
                prompt, told = chat_prompt(
                    conversation,
                    request,
                    encoder=self._prompts,
                    add_special_tokens=request.add_special_tokens,
                    truncation=self._prompts.truncation(request.truncate_prompt_tokens, request.truncation_side),
                    turn_ends=self._turn_end_ids,
                )
        kwargs = self._effective_kwargs(request)
        return GenerateRequest(
            request_id=f"chatcmpl-{_base_id(request_id, request.request_id)}",
            token_ids=_not_empty(prompt.ids, request, place="messages"),
            token_offsets=prompt.offsets if request.return_token_offsets else None,
            sampling_params=self._finish(params, prompt, asked),
            model=request.model,
            reasoning_ended=self._reasoning_ended(request, prompt.ids, kwargs),
            reasoning_parser_kwargs=ReasoningParserKwargs(kwargs) if model.has_reasoning_parser else None,
            return_token_ids=request.return_token_ids,
            stream=bool(request.stream),
            stream_options=request.stream_options if request.stream else None,
            cache_salt=request.cache_salt,
            priority=request.priority,
            kv_transfer_params=kv,
            ec_transfer_params=request.ec_transfer_params or None,
            parse_context=self._parse_context(request, tools, kwargs),
            **told,
            **hashed(request, prompt.ids),
        )

    def _reasoning_ended(self, request: ChatCompletionRequest, ids: list[int], kwargs: Json) -> bool | None:
        """Whether a guided engine constrains from the first token: the output does not begin in reasoning."""
        if not request.include_reasoning:
            return True
        if self.model.start_region is None:
            return None
        region = self.model.start_region(ids, kwargs)
        return None if region is None else region == "content"

    def _constraint(self, request: ChatCompletionRequest) -> StructuredOutputs | None:
        """What holds the output to a form. Demanded tool calls go before what else was asked, as in vLLM."""
        asked = constraint_of(request)
        return (self.model.tool_constraint(request) if self.model.has_tool_parser else None) or asked

    def _continued(
        self, request: ChatCompletionRequest, conversation: Chat, previous: list[int]
    ) -> tuple[Prompt, dict[str, Any]]:
        """The prompt that goes on from the ids of the last turn."""
        for name in _NOT_OF_IDS:
            if getattr(request, name):
                raise BadRequest(f"{name} and previous_token_ids do not go together", param=name)
        if not previous:
            raise BadRequest("previous_token_ids must not be empty", param="previous_token_ids")
        self._prompts.check_ids(previous, place="previous_token_ids")
        ids = self._continuation.ids(conversation, previous, keep_reasoning=request.keep_previous_reasoning)
        self._prompts.check_length(ids)
        return Prompt(ids), self._text_of(request, ids)

    def _text_of(self, request: ChatCompletionRequest, ids: list[int]) -> dict[str, Any]:
        return {"prompt_text": self.model.tokenizer.decode(ids)} if request.return_prompt_text else {}

    def _reused_prompt(self, request: ChatCompletionRequest, ids: Any) -> tuple[Prompt, dict[str, Any]]:
        """The prompt that the prefill stage sent along, so that the decode stage need not make it again."""
        if request.return_message_spans or request.return_loss_mask:
            raise BadRequest(
                f"spans and masks need a prompt that is made of the messages, not of {_REUSED}", param=_REUSED
            )
        if not isinstance(ids, list) or not ids or set(map(type, ids)) != {int} or min(ids) < 0:
            raise refuse(
                "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.",
                param=_REUSED,
            )
        self._prompts.check_ids(ids, place=_REUSED)
        if len(ids) > self.model.max_model_len:
            raise BadRequest(
                f"Input length ({len(ids)}) exceeds model's maximum context length ({self.model.max_model_len}).",
                param=_REUSED,
            )
        return Prompt(ids), self._text_of(request, ids)

    def _effective_kwargs(self, request: ChatCompletionRequest) -> Json:
        """The template kwargs that the prompt was made with, the server's defaults among them."""
        given, effort = request.chat_template_kwargs, request.reasoning_effort
        generation_prompt = request.add_generation_prompt is not False
        plain = not given and effort is None and request.documents is None
        if plain and generation_prompt and not request.continue_final_message:
            return self._plain_kwargs
        kwargs = {**self._plain_kwargs, **_given(given or {})}
        kwargs["add_generation_prompt"] = generation_prompt
        kwargs["continue_final_message"] = request.continue_final_message
        if effort is not None:
            kwargs["reasoning_effort"] = effort
            if "enable_thinking" not in (given or {}):
                kwargs["enable_thinking"] = effort != "none"
        if request.documents is not None:
            kwargs["documents"] = request.documents
        kwargs.pop("chat_template", None)  # a text of the request's, of no use to a parser
        return kwargs

    def _parse_context(self, request: ChatCompletionRequest, tools: list[Json] | None, kwargs: Json) -> ParseContext:
        calls = count_tool_calls(request.messages)
        choice: Any = request.effective_tool_choice
        if (
            tools is None
            and kwargs is self._plain_kwargs
            and choice == "none"
            and request.parallel_tool_calls is True
            and request.include_reasoning
            and not calls
        ):
            return self._plain_context
        if isinstance(choice, NamedToolChoice):
            choice = {"type": choice.type, "function": {"name": choice.function.name}}
        return ParseContext(
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=request.parallel_tool_calls,
            include_reasoning=request.include_reasoning,
            chat_template_kwargs={name: value for name, value in kwargs.items() if name != "documents"},
            history_tool_call_cnt=calls,
        )

    # ----------------------------------------------------------------------------------------------- completions

    def completions(self, request: CompletionRequest, *, request_id: str | None = None) -> list[GenerateRequest]:
        """One GenerateRequest per prompt, in order. Their ids end in `-0`, `-1`, … where there are several."""
        check_completion(request)
        prompts = completion_prompts(request.prompt)
        params = self._sampler.completion(request, structured=constraint_of(request))
        asked = COMPLETION_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        self._sampler.check_max_tokens(asked, "max_tokens")
        if request.echo and asked == 0:
            asked = 1  # an engine generates at least one token; derender shows the prompt alone
        truncation = self._prompts.truncation(request.truncate_prompt_tokens, request.truncation_side)
        base = f"cmpl-{_base_id(request_id, request.request_id)}"
        if len(prompts) > 1:
            _check_repeated(params, request, base, prompts=len(prompts))
        rendered = []
        blocks = 0
        made: dict[int, SamplingParams] = {}
        for index, given in enumerate(prompts):
            if isinstance(given, str):
                prompt = self._prompts.encode(
                    given,
                    add_special_tokens=request.add_special_tokens,
                    truncation=truncation,
                    offsets=bool(request.return_token_offsets),
                )
            else:
                prompt = self._prompts.of_ids(
                    given, place="prompt" if given is request.prompt else f"prompt[{index}]", truncation=truncation
                )
            ids = _not_empty(prompt.ids, request, place=f"prompt[{index}]")
            length = len(ids)
            if length not in made:
                made[length] = self._finish(params, prompt, asked)
            told = hashed(request, ids)
            blocks += len(told["block_hashes"].hashes) if told else 0
            check_hashes(blocks)
            rendered.append(
                GenerateRequest(
                    request_id=base if len(prompts) == 1 else f"{base}-{index}",
                    token_ids=ids,
                    token_offsets=prompt.offsets,
                    sampling_params=made[length],
                    model=request.model,
                    return_token_ids=request.return_token_ids,
                    stream=bool(request.stream),
                    stream_options=request.stream_options if request.stream else None,
                    cache_salt=request.cache_salt,
                    priority=request.priority,
                    kv_transfer_params=request.kv_transfer_params or None,
                    ec_transfer_params=request.ec_transfer_params or None,
                    **told,
                )
            )
        return rendered

    # -------------------------------------------------------------------------------------------------- tokenize

    def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """The ids of a text or of a chat's prompt, however many."""
        check_tokenize(request)
        tokenizer = self.model.tokenizer
        if request.messages is not None:
            check_template_trust(
                request.chat_template,
                request.chat_template_kwargs,
                trusted=self.model.trust_request_chat_template,
            )
            prompt, told = chat_prompt(
                self._conversation.chat(
                    request.messages,
                    tools=tool_dicts(request.tools) if request.tools else None,
                    chat_template=request.chat_template,
                    kwargs=request.chat_template_kwargs,
                    add_generation_prompt=request.add_generation_prompt,
                    continue_final_message=request.continue_final_message,
                ),
                request,
                encoder=self._prompts,
                add_special_tokens=request.add_special_tokens is True,
                bounded=False,
                turn_ends=self._turn_end_ids,
            )
        elif request.prompt is not None:
            prompt, told = self._text_prompt(request, request.prompt)
        else:
            raise InvalidBody("prompt: field required (or messages)", param="body.prompt")
        ids = prompt.ids
        return TokenizeResponse(
            count=len(ids),
            max_model_len=self.model.max_model_len,
            tokens=ids,
            token_strs=[tokenizer.token_string(token) for token in ids] if request.return_token_strs else None,
            token_offsets=prompt.offsets if request.return_token_offsets and prompt.offsets is not None else UNSET,
            **told,
            **hashes(request.return_block_hashes, ids, cache_salt=None),
        )

    def _text_prompt(self, request: TokenizeRequest, text: str) -> tuple[Prompt, dict[str, Any]]:
        for name in ("return_message_spans", "return_loss_mask"):
            if getattr(request, name):
                raise BadRequest(f"{name} needs messages", param=name)
        prompt = self._prompts.encode(
            text,
            add_special_tokens=request.add_special_tokens is not False,
            offsets=bool(request.return_token_offsets),
            bounded=False,
        )
        return prompt, {"prompt_text": text} if request.return_prompt_text else {}

    def _finish(self, params: Json, prompt: Prompt, asked: int | None) -> SamplingParams:
        room = self._prompts.room(prompt.ids)
        return self._sampler.finish(params, asked=asked, room=room, prompt_len=len(prompt.ids))


def _asked(request: ChatCompletionRequest) -> Json | None:
    """What a prompt made by code may say to the model of how it is to answer; None in the common case."""
    if not request.tools and request.response_format is None:
        return None
    found: Json = {}
    if request.tools and isinstance(request.tool_choice, str):
        found["tool_choice"] = request.tool_choice
    if request.response_format is not None:
        found["response_format"] = msgspec.to_builtins(request.response_format)
    return found


def _base_id(header: str | None, body: str | None) -> str:
    """A request's own id: the header's, else the body's, else 16 random hex digits. Raises BadRequest for a long one:
    it comes back in each chunk of a stream, and goes into logs."""
    given = body if header is None else header
    if given is None:
        return f"{_RANDOM.getrandbits(64):016x}"
    if len(given) > MAX_REQUEST_ID:
        raise BadRequest(f"request_id has more than {MAX_REQUEST_ID} characters", param="request_id")
    return given


def _check_repeated(params: Json, request: CompletionRequest, base: str, *, prompts: int) -> None:
    """Raises BadRequest where what all prompts of a request share would make too large an answer."""
    size = len(encode([params, request.kv_transfer_params, request.ec_transfer_params, request.cache_salt, base]))
    if size * prompts > MAX_REPEATED_BYTES:
        raise BadRequest(
            f"prompt: {prompts} prompts with parameters of {size} bytes each make an answer of more than "
            f"{MAX_REPEATED_BYTES} bytes; send fewer prompts in a request",
            param="prompt",
        )


def _given(kwargs: Any) -> Json:
    return {name: value for name, value in kwargs.items() if value not in _NO_EFFECT_VALUES}


def _not_empty(ids: list[int], request: ChatCompletionRequest | CompletionRequest, *, place: str) -> list[int]:
    if not ids:
        cut = request.truncate_prompt_tokens == 0
        raise BadRequest(
            "No token_ids rendered" if place == "messages" else f"No token_ids rendered: {place} has no tokens",
            param="truncate_prompt_tokens" if cut else place.partition("[")[0],
        )
    return ids


def _kv_transfer_params(request: ChatCompletionRequest) -> tuple[Json | None, Any]:
    """A chat's kv_transfer_params without the prompt ids that they may carry, and those ids.

    The ids are left aside where the messages have to be rendered all the same: for `echo`, and for media, which ids
    do not hold.
    """
    kv = request.kv_transfer_params
    if not kv:
        return None, None
    if "prompt_token_ids" not in kv:
        return kv, None
    rest = {key: value for key, value in kv.items() if key != "prompt_token_ids"}
    ids = None if request.echo or has_media(request.messages) else kv["prompt_token_ids"]
    return rest or None, ids
