"""Rules of a request that need neither its prompt nor its sampling parameters, in vLLM's words."""

from __future__ import annotations

from msgspec import UNSET

from derender.limits import LIMITS
from derender.protocol.chat import ChatCompletionRequest, NamedToolChoice
from derender.protocol.common import Json
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import BadRequest
from derender.protocol.generate import valid_cache_salt
from derender.protocol.tokenize import TokenizeRequest
from derender.rendering.refusal import refuse

_NAMED_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
_BOTH_PROMPTS = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."


def check_chat(request: ChatCompletionRequest) -> None:
    """Raises BadRequest for fields of a chat that do not go together, or that this server does not serve."""
    _check_common(request)
    if request.mm_processor_kwargs or request.media_io_kwargs:
        _refuse_media_kwargs(request)
    if request.logprob_token_ids and not request.logprobs:
        raise refuse("when using `logprob_token_ids`, `logprobs` must be set to true.", param="logprob_token_ids")
    if request.top_logprobs:
        _check_logprobs(request.top_logprobs, "top_logprobs")
        if not request.logprobs:
            raise refuse("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
    if request.tools is not None or request.tool_choice is not UNSET:
        _check_tools(request)
    if request.keep_previous_reasoning and request.previous_token_ids is None:
        raise refuse(
            "when using `keep_previous_reasoning`, `previous_token_ids` must be set.", param="keep_previous_reasoning"
        )
    # What is unset is true, too: a final message that is to be continued has no room for a generation prompt.
    if request.continue_final_message and request.add_generation_prompt is not False:
        raise BadRequest(_BOTH_PROMPTS, param="continue_final_message")
    if not request.messages:
        raise _no_messages()


def check_completion(request: CompletionRequest) -> None:
    """Raises BadRequest for fields of a completions request that do not go together, or are not served."""
    _check_common(request)
    if request.logprobs is not None:
        _check_logprobs(request.logprobs, "logprobs")
    if request.logprob_token_ids:
        if request.echo and request.max_tokens == 0:
            raise refuse(
                "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` "
                "because no output tokens are generated.",
                param="logprob_token_ids",
            )
        if request.logprobs is None:
            raise refuse("when using `logprob_token_ids`, `logprobs` must be set.", param="logprob_token_ids")
    prompt = request.prompt
    if (prompt is None or prompt == "") and request.prompt_embeds in (None, []):
        raise refuse("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    if isinstance(prompt, list) and len(prompt) > LIMITS.max_completion_prompts and type(prompt[0]) is not int:
        raise refuse(
            f"prompt list length {len(prompt)} exceeds the maximum allowed count of {LIMITS.max_completion_prompts}. "
            "To increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.",
            param="prompt",
        )
    if request.suffix is not None:
        raise _suffix(request)
    if request.prompt_embeds not in (None, []):
        raise refuse("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", param="prompt_embeds")
    if prompt == []:
        raise BadRequest("You must pass at least one prompt: prompt is []", param="prompt")


def check_tokenize(request: TokenizeRequest) -> None:
    """Raises BadRequest for a chat to tokenize whose fields do not go together."""
    if request.prompt is not None and request.messages is not None:
        raise BadRequest("prompt and messages cannot both be given", param="prompt")
    if request.messages is not None:
        if request.continue_final_message and request.add_generation_prompt:
            raise BadRequest(_BOTH_PROMPTS, param="continue_final_message")
        if not request.messages:
            raise _no_messages()


def check_template_trust(chat_template: str | None, kwargs: Json | None, *, trusted: bool) -> None:
    """Raises BadRequest where a request brings a template and is not trusted with one (vllm#52025)."""
    if not trusted and (chat_template is not None or (kwargs and kwargs.get("chat_template") is not None)):
        raise BadRequest(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template.",
            param="chat_template" if chat_template is not None else "chat_template_kwargs.chat_template",
        )


def _no_messages() -> BadRequest:
    return BadRequest(
        "Cannot apply chat template to an empty conversation. Provide at least one message.", param="messages"
    )


def check_tool_parser(request: ChatCompletionRequest, *, has_parser: bool, auto: bool) -> None:
    """Raises BadRequest where a request wants tool calls that no parser would find in the output."""
    choice = request.effective_tool_choice
    if choice == "none" or choice is None:
        return
    if choice == "auto":
        if not (has_parser and auto):
            none_found = "; no known format of tool calls was found in this model" if auto else ""
            raise BadRequest(
                f'"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set{none_found}',
                param="tool_choice",
            )
    elif not has_parser:
        name = f'function "{choice.function.name}"' if isinstance(choice, NamedToolChoice) else f'"{choice}"'
        raise BadRequest(f"tool_choice={name} requires --tool-call-parser to be set", param="tool_choice")


def _check_common(request: ChatCompletionRequest | CompletionRequest) -> None:
    if request.cache_salt is not None and not valid_cache_salt(request.cache_salt):
        rule = (
            "be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
            if request.cache_salt
            else "be a non-empty string if provided."
        )
        raise refuse(f"Parameter 'cache_salt' must {rule}", param="cache_salt")
    options = request.stream_options
    # Options that ask for nothing are what an empty object says, which vLLM lets pass.
    if options is not None and not request.stream and (options.include_usage or options.continuous_usage_stats):
        raise refuse("Stream options can only be defined when `stream=True`.", param="stream_options")
    if request.prompt_logprobs is not None:
        if request.stream and (request.prompt_logprobs > 0 or request.prompt_logprobs == -1):
            raise refuse("`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
        _check_logprobs(request.prompt_logprobs, "prompt_logprobs")
    if request.use_beam_search:
        raise BadRequest("Beam search is not supported by the render endpoint", param="use_beam_search")


def _check_logprobs(count: int, name: str) -> None:
    if count < -1:
        raise refuse(f"`{name}` must be a positive value or -1.", param=name, value=count)


def _refuse_media_kwargs(request: ChatCompletionRequest) -> None:
    name, what = (
        ("mm_processor_kwargs", "multimodal preprocessing")
        if request.mm_processor_kwargs
        else ("media_io_kwargs", "multimodal media loading")
    )
    raise refuse(
        f"Per-request {name} are disabled by default because they can change {what} resource usage. "
        "Start the server with --trust-request-mm-kwargs only when clients are trusted.",
        param=name,
    )


def _check_tools(request: ChatCompletionRequest) -> None:
    choice, tools = request.tool_choice, request.tools
    if tools == []:
        raise refuse(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
            param="tools",
        )
    if choice is UNSET or choice is None or choice == "none":
        return
    if tools is None:
        raise refuse("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    if isinstance(choice, NamedToolChoice):
        if not choice.function.name:
            raise refuse(
                f"Invalid `name` in `function`: `` in `tool_choice`! {_NAMED_USAGE}", param="tool_choice.function.name"
            )
        if all(tool.function.name != choice.function.name for tool in tools):
            raise refuse(
                "The tool specified in `tool_choice` does not match any of the specified `tools`", param="tool_choice"
            )
    elif choice not in ("auto", "required"):
        raise refuse(
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.',
            param="tool_choice",
        )


def _suffix(request: CompletionRequest) -> BadRequest:
    """Why a suffix is refused: no model here renders fill-in-the-middle prompts."""
    prompt = request.prompt
    if request.echo:
        reason = "Echo is unsupported with suffix."
    elif request.prompt_embeds is not None:
        reason = "suffix is not supported with prompt_embeds"
    elif request.truncate_prompt_tokens is not None:
        reason = "suffix is not supported with truncate_prompt_tokens"
    elif isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(text, str) for text in prompt)):
        reason = "suffix is only supported for models with FIM completion rendering"
    else:
        reason = "suffix requires text prompt input for FIM completion rendering"
    return BadRequest(reason, param="suffix")
