"""A local server that speaks the chat protocols of OpenAI, Anthropic and Ollama, as far as their clients need it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ENDPOINTS", "Provider", "provider"]

# The path that each client asks, below the base URL it is given.
ENDPOINTS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages", "ollama": "/api/chat"}

Answer = str | int | float


class Provider:
    """`url`: its root; `answers`: what it does next: a str is what the model says, an int the status of an error, a
    float so many seconds of silence; after them it says `default`. `asked`: the requests' bodies."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[Answer] = []
        self.default = '{"facts": []}'
        self.asked: list[dict[str, Any]] = []
        self.over = threading.Event()

    def base_url(self, name: str) -> str:
        """What a client of that provider is given as its base URL."""
        return f"{self.url}/v1" if name == "openai" else self.url


@contextlib.contextmanager
def provider() -> Iterator[Provider]:
    """Yield a running server; nothing of it is left afterwards."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            one.asked.append(body)
            answer = one.answers.pop(0) if one.answers else one.default
            if isinstance(answer, float):
                one.over.wait(answer)
                self.close_connection = True
                return
            if isinstance(answer, int):
                error = {"type": "error", "error": {"type": "server_error", "message": f"no: {answer}"}}
                self._send(json.dumps(error).encode(), status=answer)
                return
            speak = {"/v1/chat/completions": _openai, "/v1/messages": _anthropic, "/api/chat": _ollama}[self.path]
            kind, text = speak(answer, body)
            self._send(text.encode(), kind=kind)

        def _send(self, data: bytes, *, status: int = 200, kind: str = "application/json") -> None:
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    one = Provider(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield one
    finally:
        one.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [word if number == len(words) - 1 else f"{word} " for number, word in enumerate(words)]


def _events(events: list[dict[str, Any]], *, named: bool) -> str:
    lines = [(f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join(lines)


def _openai(text: str, body: dict[str, Any]) -> tuple[str, str]:
    shared = {"id": "c1", "created": int(time.time()), "model": body["model"]}
    if not body.get("stream"):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return "application/json", json.dumps(
            {**shared, "object": "chat.completion", "choices": [choice], "usage": usage}
        )
    deltas = [{"role": "assistant", "content": ""}, *[{"content": piece} for piece in _pieces(text)], {}]
    chunks = [
        {**shared, "object": "chat.completion.chunk",
         "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}]}
        for delta in deltas
    ]  # fmt: skip
    return "text/event-stream", _events(chunks, named=False) + "data: [DONE]\n\n"


def _anthropic(text: str, body: dict[str, Any]) -> tuple[str, str]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    block: dict[str, Any] = {"type": "text", "text": text}
    if body.get("tools"):  # how its client asks for structured output; what is no JSON cannot be a tool's input
        with contextlib.suppress(ValueError):
            block = {"type": "tool_use", "id": "toolu_1", "name": body["tools"][0]["name"], "input": json.loads(text)}
    shared = {"id": "m1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None}
    if not body.get("stream"):
        reason = "tool_use" if block["type"] == "tool_use" else "end_turn"
        return "application/json", json.dumps({**shared, "content": [block], "stop_reason": reason, "usage": usage})
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        for piece in _pieces(text)
    ]
    return "text/event-stream", _events(
        [
            {"type": "message_start", "message": {**shared, "content": [], "stop_reason": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *deltas,
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ],
        named=True,
    )


def _ollama(text: str, body: dict[str, Any]) -> tuple[str, str]:
    shared = {"model": body["model"], "created_at": "2026-01-01T00:00:00Z"}
    lines: list[dict[str, Any]] = [
        {**shared, "message": {"role": "assistant", "content": piece}, "done": False} for piece in _pieces(text)
    ]
    lines.append({**shared, "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"})
    return "application/x-ndjson", "".join(json.dumps(line) + "\n" for line in lines)
