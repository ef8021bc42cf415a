"""``--describe``: the picture of an alert in a sentence, by a model behind the API of OpenAI."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from typing import Any
from urllib.parse import parse_qs, urlsplit

from costream.core.errors import OutputError, UsageError
from costream.core.formatting import clean
from costream.core.urls import redact
from costream.runtime.alerts.actions import SECRET_VARIABLES, AlertEvent, PostJson

KEY = "COSTREAM_DESCRIBE_KEY"  # environment variable
PROMPT = "Describe in one sentence what this picture of a camera shows."
TIMEOUT_S = 120.0  # a model on a processor takes long
LONGEST = 500  # characters of a description
_PATH = "/chat/completions"
_MOST_BYTES = 1 << 20  # of an answer
_OPTIONS = {"model", "prompt"}


class DescribePicture(PostJson):
    """Sends the picture of each alert, and nothing else of the feed, and notes the answer.

    ``http://HOST:PORT/v1?model=NAME&prompt=TEXT``; the key is the value of COSTREAM_DESCRIBE_KEY.
    Source: OpenAI's API reference, POST /v1/chat/completions, with a part ``image_url`` that is a
    data URI, as Ollama, llama.cpp, LM Studio and vLLM implement it.
    """

    most_bytes = _MOST_BYTES

    def __init__(self, url: str) -> None:
        """Raise UsageError if ``url`` is not an http or https URL, or has other options."""
        place, _, query = url.partition("?")
        options = {name: values[-1] for name, values in parse_qs(query).items()}
        if unknown := sorted(options.keys() - _OPTIONS):
            hint = "write http://HOST:PORT/v1?model=NAME&prompt=TEXT"
            raise UsageError(f"there is no option {unknown[0]!r}", hint=hint)
        path = urlsplit(place).path.rstrip("/")
        super().__init__(place if path.endswith(_PATH) else place.rstrip("/") + _PATH, TIMEOUT_S)
        self.name = self.name.replace("POST to", "description by", 1)
        self._model, self._prompt = options.get("model"), options.get("prompt", PROMPT)
        SECRET_VARIABLES.add(KEY)
        if key := os.environ.get(KEY):
            self._headers["Authorization"] = f"Bearer {key}"

    def do(self, event: AlertEvent) -> None:
        """Describe the picture of an alert, if it has one. OutputError when that fails."""
        if event.snapshot is None:
            return
        picture = b64encode(event.snapshot.jpeg()).decode("ascii")
        text = f"{self._prompt} It was taken because of this rule: {event.alert.rule}"
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": text},
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{picture}"}},
        ]
        request: dict[str, Any] = {"messages": [{"role": "user", "content": parts}]}
        if self._model is not None:
            request["model"] = self._model
        answer = self.send(json.dumps(request).encode())
        event.note(self._sentence(answer))

    def _sentence(self, answer: bytes) -> str:
        """Return the text of an answer, on one line."""
        try:
            text = json.loads(answer)["choices"][0]["message"]["content"]
            words = clean(redact(" ".join(text.split())))
        except (ValueError, LookupError, TypeError, AttributeError):
            words = ""
        if not words:
            raise OutputError("the answer has no text", where=self.name)
        return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
