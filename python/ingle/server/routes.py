"""[1] The routes: body in, core's document out. Small routes answer directly. Event loop."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec
from aiohttp import HttpVersion11, hdrs, web

from ingle import __version__
from ingle.errors import RefusedError
from ingle.generation import EncodedRequest, GenerationRequest, TextPrompt, encode, encoded
from ingle.server import best_of, convert, embeddings, messages, openmetrics, raw, responses
from ingle.server.answer import answer
from ingle.server.auth import OPEN_PATHS, Identity
from ingle.server.convert import Caller
from ingle.server.headroom import BYTES_A_BODY_BYTE, BYTES_A_PROMPT_BYTE, BYTES_OF_A_CHAT, Headroom
from ingle.server.messages_stream import answer_message
from ingle.server.models import ServedModel
from ingle.server.off_loop import off_loop
from ingle.server.openapi import openapi_document
from ingle.server.parse import BodyParser
from ingle.server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)
from ingle.server.protocol_anthropic import CountTokensRequest, MessagesRequest, PromptFields
from ingle.server.protocol_responses import ResponsesRequest
from ingle.server.random_hex import random_hex
from ingle.server.render import rendered
from ingle.server.request_id import adopt
from ingle.server.responses_stream import answer_response
from ingle.server.state import ServerState
from ingle.server.status import json_response
from ingle.server.traceparent import TRACEPARENT
from ingle.server.tracing import OPERATIONS, SPAN, trace_of_caller


class AsksForModel(Protocol):
    """Fields that every request for an answer has."""

    model: str | None
    request_id: str | None


T = TypeVar("T")
Asking = TypeVar(
    "Asking",
    CompletionRequest,
    ChatRequest,
    ResponsesRequest,
    MessagesRequest,
    embeddings.EmbeddingRequest,
)

IDENTITY: Final = web.RequestKey("IDENTITY", Identity)
"""The owner of a request's API key."""


class Routes:
    """The handlers of one server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._models = state.models
        self._completion = BodyParser(CompletionRequest, state.unknown)
        self._chat = BodyParser(ChatRequest, state.unknown)
        self._responses = BodyParser(ResponsesRequest, state.unknown)
        self._messages = BodyParser(MessagesRequest, state.unknown)
        self._count_tokens = BodyParser(CountTokensRequest, state.unknown)
        self._embedding = BodyParser(embeddings.EmbeddingRequest, state.unknown)
        self._tokenize_text = BodyParser(TokenizeTextRequest, state.unknown)
        self._tokenize_chat = BodyParser(TokenizeChatRequest, state.unknown)
        self._detokenize = BodyParser(DetokenizeRequest, state.unknown)
        self._openapi = msgspec.json.encode(openapi_document(__version__))

    def add_to(self, app: web.Application) -> None:
        """Registers all routes. GET routes also answer HEAD."""
        router = app.router
        router.add_post("/v1/completions", self.completions)
        router.add_post("/v1/chat/completions", self.chat_completions)
        router.add_post("/v1/responses", self.responses)
        router.add_post("/v1/messages", self.messages)
        router.add_post("/v1/messages/count_tokens", self.count_tokens)
        router.add_post("/v1/embeddings", self.embeddings)
        router.add_post("/v1/completions/render", self.render_completion)
        router.add_post("/v1/chat/completions/render", self.render_chat)
        router.add_get("/v1/models", self.models)
        router.add_get("/v1/models/{model:.+}", self.model)
        router.add_post("/tokenize", self.tokenize)
        router.add_post("/detokenize", self.detokenize)
        router.add_get("/tokenizer_info", self.tokenizer_info)
        for path, handler in zip(OPEN_PATHS, (self.health, self.ready), strict=True):
            resource = router.add_get(path, handler).resource
            if resource is not None:
                self._state.open_resources.append(resource)
        router.add_get("/metrics", self.metrics)
        router.add_get("/version", self.version)
        router.add_get("/openapi.json", self.openapi)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        body, parsed, model = await self._read(request, self._completion)
        caller = self._caller(request, parsed, model, "cmpl")
        asked = await off_loop(
            len(body), self._completion.converted, body, parsed, completion_of, caller
        )
        return await answer(request, self._state, model, asked)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body, parsed, model = await self._read(request, self._chat)
        caller = self._caller(request, parsed, model, "chatcmpl")
        asked = await off_loop(len(body), self._chat.converted, body, parsed, chat_of, caller)
        return await answer(request, self._state, model, asked)

    async def render_completion(self, request: web.Request) -> web.Response:
        """POST /v1/completions/render: each prompt as token ids."""
        body, parsed, model = await self._read(request, self._completion)
        caller = self._caller(request, parsed, model, "cmpl")
        convert_it = self._completion.converted
        document = await off_loop(len(body), convert_it, body, parsed, convert.completion, caller)
        return json_response(await self._rendered(request, model, document))

    async def render_chat(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions/render: the chat's prompt as token ids."""
        body, parsed, model = await self._read(request, self._chat)
        caller = self._caller(request, parsed, model, "chatcmpl")
        document = await off_loop(
            len(body), self._chat.converted, body, parsed, convert.chat, caller
        )
        [prompt] = await self._rendered(request, model, document)
        return json_response(prompt)

    async def _rendered(
        self, request: web.Request, model: ServedModel, document: GenerationRequest
    ) -> list[dict[str, Any]]:
        found = []
        for number, prompt in enumerate(document.prompts):
            text = encode(prompt)
            ids = await self._in_turn(request, text, model.core.tokenize, text)
            found.append(rendered(document, ids, number, model.info))
        return found

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses."""
        body, parsed, model = await self._read(request, self._responses)
        caller = self._caller(request, parsed, model, "resp", "_")
        try:
            asked = await off_loop(
                len(body), self._responses.converted, body, parsed, response_of, caller
            )
            shape = responses.Shape(parsed, caller, model.info["sampling_defaults"])
            return await answer_response(request, self._state, model, asked, shape)
        except RefusedError as error:
            raise responses.renamed(error, parsed) from None

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages: Anthropic's API."""
        body, parsed, model = await self._read(request, self._messages)
        caller = self._caller(request, parsed, model, "msg", "_")
        shape = messages.Shape(caller)

        async def ask(max_tokens: int | None) -> web.StreamResponse:
            convert = self._messages.converted
            asked = await off_loop(len(body), convert, body, parsed, message_of, caller, max_tokens)
            return await answer_message(request, self._state, model, asked, shape)

        try:
            try:
                return await ask(parsed.max_tokens)
            except RefusedError as error:
                if not messages.is_beyond_context(error):
                    raise
            # Agents request more tokens than smaller models have room for, and expect what fits.
            shape.fills_context = True
            return await ask(None)
        except RefusedError as error:
            raise messages.renamed(error) from None

    async def count_tokens(self, request: web.Request) -> web.Response:
        """POST /v1/messages/count_tokens: the length of these messages' prompt."""
        body = await read_body(request, self._state.headroom)
        parsed = await off_loop(len(body), self._count_tokens.parse, body)
        core = self._models.find(parsed.model).core
        adopt(request, parsed.request_id)
        try:
            document = await off_loop(
                len(body), self._count_tokens.converted, body, parsed, message_prompt_of
            )
            ids = await self._tokenized(request, document, core.tokenize_if_brief, core.tokenize)
        except RefusedError as error:
            raise messages.renamed(error) from None
        return json_response({"input_tokens": len(ids)})

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/embeddings."""
        body, parsed, model = await self._read(request, self._embedding)
        caller = self._caller(request, parsed, model, "embd")
        size = model.info["hidden_size"]
        try:
            asked = await off_loop(
                len(body), self._embedding.converted, body, parsed, embedding_of, caller, size
            )
            return await answer(request, self._state, model, asked)
        except RefusedError as error:
            raise embeddings.renamed(error) from None

    def _caller(
        self,
        request: web.Request,
        parsed: object,
        model: ServedModel,
        kind: str,
        separator: str = "-",
    ) -> Caller:
        """Properties of a request beside its body; `kind` starts the response's id."""
        response_id = f"{kind}{separator}{random_hex()}"
        trace, span = None, SPAN.get()
        if span is not None:
            span.asked(OPERATIONS[kind], model.name, response_id, parsed)
            trace = span.trace()
        elif TRACEPARENT in request.headers and self._state.tracer is None:
            trace = trace_of_caller(request)
        return Caller(
            tenant=request[IDENTITY].tenant,
            response_id=response_id,
            trace=trace,
            created=int(time.time()),
            chunked=request.version == HttpVersion11,
            model=model.name,
            vocab_size=model.vocab_size,
            session=session_of(request) if model.has_choice else None,
        )

    async def _read(
        self, request: web.Request, parser: BodyParser[Asking]
    ) -> tuple[bytes, Asking, ServedModel]:
        """The body of a request, raw and parsed, and the model that it names."""
        if self._state.tracer is not None:
            self._state.tracer.begin(request)
        self._state.refuse_if_leaving()
        body = await read_body(request, self._state.headroom)
        self._state.refuse_if_leaving()
        # From here on, a shutdown waits for this request.
        self._state.enter(request)
        parsed = await off_loop(len(body), parser.parse, body)
        model = self._models.find(parsed.model)
        adopt(request, parsed.request_id)
        return body, parsed, model

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models: each name and alias."""
        cards = [
            self._model_card(model, name)
            for model in self._models
            for name in (model.name, *model.aliases)
        ]
        return json_response({"object": "list", "data": cards})

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME."""
        name = request.match_info["model"]
        return json_response(self._model_card(self._models.find(name), name))

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize, in vLLM's format."""
        body = await read_body(request, self._state.headroom)
        document, name, texts = await off_loop(len(body), self._to_tokenize, body)
        core = self._models.find(name).core
        briefly, fully = core.tokenize_json_if_brief, core.tokenize_json
        return whole(await self._tokenized(request, document, briefly, fully, texts))

    def _to_tokenize(self, body: bytes) -> tuple[bytes, str | None, bool]:
        """The core's document, the model's name, and whether token texts are requested."""
        if CHAT_BODY.search(body):
            chat = self._tokenize_chat.parse(body)
            document = encode(self._tokenize_chat.converted(body, chat, convert.chat_prompt))
            return document, chat.model, bool(chat.return_token_strs)
        text = self._tokenize_text.parse(body)
        prompt = raw.must_be(text.prompt, "prompt", "string")
        document = encode(TextPrompt(prompt, text.add_special_tokens is not False))
        return document, text.model, bool(text.return_token_strs)

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize, in vLLM's format."""
        body = await read_body(request, self._state.headroom)
        parsed = await off_loop(len(body), self._detokenize.parse, body)
        core = self._models.find(parsed.model).core
        ids = bytes(raw.must_be(parsed.tokens, "tokens", "array"))
        return whole(await self._in_turn(request, ids, core.detokenize_json, ids))

    async def tokenizer_info(self, request: web.Request) -> web.Response:
        """GET /tokenizer_info, in vLLM's format, for remote tokenizers such as lm-eval's.

        With several models `?model=NAME` says whose.
        """
        info = self._models.find(request.query.get("model")).info
        named = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"))
        document = {
            **named,
            **info["named_tokens"],
            "chat_template": info["chat_template"],
            "model_max_length": info["max_model_len"],
            "vocab_size": info["vocab_size"],
        }
        return json_response(document)

    async def health(self, request: web.Request) -> web.Response:
        """GET /health: 200 while the engine makes progress, else 503. The load needs a key."""
        health = self._health()
        healthy = health["status"] in WELL and not self._state.dead
        if health["status"] == "dead" and not self._state.draining:
            self._state.fatal("the engine thread has ended")
        health["hardening"] = self._state.lockdown.summary()
        shown = health if request[IDENTITY].is_known else {"status": health["status"]}
        return json_response(shown, 200 if healthy else 503)

    async def ready(self, request: web.Request) -> web.Response:
        """GET /ready: 200 while new requests are accepted, else 503. Needs no key."""
        health = self._health()
        return json_response({"status": health["status"]}, 200 if health["status"] == "ok" else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics in Prometheus' text format or OpenMetrics', for all tenants together."""
        if not request[IDENTITY].is_admin:
            raise RefusedError(
                "/metrics needs an admin's key: a line `tenant:key admin` of the key file",
                code="admin_key_required",
                status=403,
            )
        as_openmetrics = openmetrics.is_wanted(request.headers.get("Accept", ""))
        lines = self._models.metrics(exemplars=as_openmetrics)
        counts = self._state.unknown.counts
        if counts:
            lines += b"# TYPE ingle:unknown_request_fields_total counter\n"
            for name, count in sorted(counts.items()):
                lines += f'ingle:unknown_request_fields_total{{field="{name}"}} {count}\n'.encode()
        lines += self._state.lockdown.metrics()
        if self._state.tracer is not None:
            lines += self._state.tracer.metrics()
        if as_openmetrics:
            return web.Response(
                body=openmetrics.of(lines), headers={"Content-Type": openmetrics.CONTENT_TYPE}
            )
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=lines, headers=headers)

    async def version(self, request: web.Request) -> web.Response:
        """GET /version."""
        return json_response({"version": __version__})

    async def openapi(self, request: web.Request) -> web.Response:
        """GET /openapi.json."""
        return web.Response(body=self._openapi, content_type="application/json")

    async def _in_turn(self, request: web.Request, size: bytes, work: Any, *arguments: Any) -> Any:
        """Calls the core, which releases the GIL; on another thread if `size` is long."""
        if len(size) <= INLINE_BYTES:
            return work(*arguments)
        num_bytes = BYTES_A_PROMPT_BYTE * len(size)
        return await self._state.turns.run(request[IDENTITY].tenant, num_bytes, work, *arguments)

    async def _tokenized(
        self,
        request: web.Request,
        document: bytes,
        briefly: Callable[..., T | None],
        fully: Callable[..., T],
        *arguments: Any,
    ) -> T:
        """Calls `briefly` with a short document; what that does not do, `fully` does elsewhere."""
        num_bytes = BYTES_A_PROMPT_BYTE * len(document)
        if len(document) <= INLINE_BYTES:
            done = briefly(document, *arguments)
            if done is not None:
                return done
            num_bytes = BYTES_OF_A_CHAT
        tenant = request[IDENTITY].tenant
        return await self._state.turns.run(tenant, num_bytes, fully, document, *arguments)

    def _health(self) -> dict[str, Any]:
        health = self._models.health()
        health["status"] = self._shown_status(health["status"])
        return health

    def _shown_status(self, status: str) -> str:
        """The core's status, unless the server has one of its own."""
        if status == "ok" and (self._state.draining or self._state.asleep):
            return "draining" if self._state.draining else "asleep"
        return status

    def _model_card(self, model: ServedModel, name: str) -> dict[str, Any]:
        info = model.info
        health = model.health()
        status = self._shown_status(health["status"])
        if status in WELL:
            # One that has made room for others returns with its next request.
            status = "loaded" if health.get("memory", "awake") == "awake" else "asleep"
        return {
            "id": name,
            "object": "model",
            "created": self._state.started_at,
            "owned_by": "ingle",
            "root": model.name,
            "parent": None,
            "max_model_len": info["max_model_len"],
            "tasks": ["embed"] if info.get("embeddings_only") else ["generate", "embed"],
            "status": status,
            "load_format": info.get("load_format", "auto"),
            "default_sampling_params": info.get("sampling_defaults"),
        }


def add_routes(app: web.Application, state: ServerState) -> None:
    """Registers all routes of a server."""
    Routes(state).add_to(app)


async def read_body(request: web.Request, headroom: Headroom) -> bytes:
    """The body of a POST.

    Errors: RefusedError 415 unless it is plain JSON, 408 if it is late, 400 if it is broken;
    OverloadedError 503 if there is too little memory for it.
    """
    kind = request.headers.get(hdrs.CONTENT_TYPE, JSON)
    if kind != JSON and not is_json(kind := request.content_type):
        raise RefusedError(
            f"Content-Type must be application/json, not {kind[:100]!r}",
            code="unsupported_media_type",
            status=415,
        )
    has_arrived = request.content.is_eof()
    if not has_arrived:
        length = request.content_length
        if length is not None and length > request.client_max_size:
            # Refused before the body arrives.
            raise web.HTTPRequestEntityTooLarge(request.client_max_size, length)
    # A small compressed body can unpack to a large one. A proxy may unpack it, we do not.
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise RefusedError(
            "Content-Encoding is not supported", code="unsupported_media_type", status=415
        )
    try:
        if has_arrived:
            return bounded(request, request.content.read_nowait())
        async with asyncio.timeout(BODY_S):
            return await read_parts(request, headroom)
    except TimeoutError:
        message = f"the request body did not come within {BODY_S:.0f} s"
        raise RefusedError(message, code="request_timeout", status=408) from None
    except web.RequestPayloadError as error:
        raise RefusedError(f"the request body is broken: {error}", code="invalid_body") from None


def session_of(request: web.Request) -> str | None:
    """The session that the client names, in ASCII: a header may hold bytes that JSON may not."""
    for header in SESSION_HEADERS:
        name = request.headers.get(header)
        if name:
            return ascii(name)
    return None


def is_json(kind: str) -> bool:
    """Whether a media type without its parameters is JSON."""
    return kind == JSON or kind.endswith("+json")


def bounded(request: web.Request, body: bytes) -> bytes:
    """The body, if it is not too long."""
    if len(body) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, len(body))
    return body


async def read_parts(request: web.Request, headroom: Headroom) -> bytes:
    """The whole body.

    Not aiohttp's `read`: that takes all that the client can send in one turn of the loop, and
    copies it three times. Here the connection is read only as parts are taken, one a turn.
    """
    parts: list[bytes] = []
    size = 0
    # What has come, not what the head announces, which costs a client nothing.
    with headroom.reserve(request[IDENTITY].tenant) as reserve_more:
        while part := await request.content.readany():
            size += len(part)
            if size > request.client_max_size:
                raise web.HTTPRequestEntityTooLarge(request.client_max_size, size)
            reserve_more(BYTES_A_BODY_BYTE * len(part))
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def whole(body: bytes) -> web.Response:
    """A JSON response from the core."""
    return web.Response(body=body, content_type="application/json")


def completion_of(request: CompletionRequest, caller: Caller) -> EncodedRequest:
    """The core's document for /v1/completions."""
    document = convert.completion(request, caller)
    best_of.widen(document, request)
    return encoded(document)


def chat_of(request: ChatRequest, caller: Caller) -> EncodedRequest:
    """The core's document for /v1/chat/completions."""
    return encoded(convert.chat(request, caller))


def response_of(request: ResponsesRequest, caller: Caller) -> EncodedRequest:
    """The core's document for /v1/responses: no chunk framing, since events are rewritten."""
    document = convert.chat(responses.chat_request(request), caller)
    document.output.chunked = False
    return encoded(document)


def message_of(request: MessagesRequest, caller: Caller, max_tokens: int | None) -> EncodedRequest:
    """The core's document for /v1/messages: no chunk framing, since events are rewritten."""
    document = convert.chat(messages.chat_request(request, max_tokens), caller)
    document.output.chunked = False
    return encoded(document)


def message_prompt_of(request: PromptFields) -> bytes:
    """The prompt of /v1/messages, for the core's tokenizer."""
    return encode(convert.chat_prompt(messages.prompt_request(request)))


def embedding_of(
    request: embeddings.EmbeddingRequest, caller: Caller, hidden_size: int
) -> EncodedRequest:
    """The core's document for /v1/embeddings."""
    return encoded(embeddings.embedding(request, caller, hidden_size))


WELL: Final = ("ok", "draining", "asleep")
JSON: Final = "application/json"
SESSION_HEADERS: Final = ("X-Session-Affinity", "X-Session-Id", "X-Session-Token")
"""The last two are those of llm-d's router and of Ray Serve. The first that is there counts."""
BODY_S = 60.0
INLINE_BYTES = 16 << 10
CHAT_BODY = re.compile(rb'"messages"\s*:')
"""Distinguishes the two bodies of /tokenize: a string cannot contain a bare `"messages":`."""
