"""``--notify``: alerts to services for messages, through Apprise, and to Frigate as events."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any
from urllib.parse import quote, unquote_plus, urlsplit, urlunsplit

from costream.core.errors import OutputError, UsageError
from costream.runtime.alerts.actions import AlertEvent, PostJson, check_places
from costream.runtime.alerts.worker import Action

FRIGATE = {"frigate": "http", "frigates": "https"}
MESSAGE = "{time}\n{rule}"
FRIGATE_S = 30  # length of an event in Frigate


class Notify:
    """Sends each alert, with its picture, to a service by its Apprise URL: ``ntfy://TOPIC``.

    ``message`` in the query of the URL is the text, with {feed}, {label} and so on. Log messages
    name only the kind of the service, as such a URL is often a secret.
    """

    wants_clip = False

    def __init__(self, url: str) -> None:
        """Raise UsageError if Apprise is not installed, or does not know service or placeholder."""
        try:
            import apprise
            from apprise.attachment.memory import AttachMemory
        except ImportError as error:
            hint = "pip install 'costream[notify]'"
            raise UsageError("needs the extra notify", hint=hint) from error
        logging.getLogger("apprise").setLevel(logging.CRITICAL)  # its messages contain URLs
        scheme = url.partition(":")[0]
        self.name = f"notify {scheme}" if scheme.isalnum() else "notify"
        self._service = apprise.Apprise()
        url, self._text = _split_message(url)
        check_places(self._text)
        if "://" not in url or not self._service.add(url):
            hint = "as in ntfy://TOPIC; see github.com/caronc/apprise for the services"
            raise UsageError("not the URL of a service that Apprise knows", hint=hint)
        self._attachments, self._attached = apprise.AppriseAttachment, AttachMemory
        self._cancelled = threading.Event()

    def do(self, event: AlertEvent) -> None:
        """Send the alert. OutputError when it was not accepted."""
        if self._cancelled.is_set():
            return
        alert, attach = event.alert, None
        if event.snapshot is not None:
            picture = self._attached(event.snapshot.jpeg(), "alert.jpg", "image/jpeg")
            attach = self._attachments(picture)
        title = f"{event.feed}: {alert.label} {alert.score:.2f}"
        if not self._service.notify(event.fill(self._text), title=title, attach=attach):
            raise OutputError("not delivered", where=self.name)

    def cancel(self) -> None:
        """Send no more."""
        self._cancelled.set()


class FrigateEvent(PostJson):
    """Creates an event in Frigate for each alert: ``frigate://HOST:5000``, or frigates:// for TLS.

    The camera there has the name of the feed. Source: Frigate's HTTP API, POST
    /api/events/CAMERA/LABEL/create.
    """

    def __init__(self, url: str) -> None:
        """Raise UsageError if it is not an address."""
        parts = urlsplit(url)
        super().__init__(urlunsplit(parts._replace(scheme=FRIGATE[parts.scheme])))
        self.name = self.name.replace("POST to", "Frigate at", 1)

    def do(self, event: AlertEvent) -> None:
        """Create the event. OutputError when it was not accepted."""
        alert = event.alert
        values: dict[str, Any] = {
            "source_type": "costream",
            "sub_label": alert.rule[:100],
            "score": round(alert.score, 3),
            "duration": FRIGATE_S,
            "include_recording": True,
        }
        where = f"/api/events/{quote(event.feed, safe='')}/{quote(alert.label, safe='')}/create"
        self.send(json.dumps(values).encode(), where)


def _split_message(url: str) -> tuple[str, str]:
    """Return a URL without ``message`` in its query, and that message."""
    place, _, query = url.partition("?")
    parts = [part.partition("=") for part in query.split("&") if part]
    texts = [unquote_plus(value) for name, _, value in parts if name == "message"]
    rest = "&".join("".join(part) for part in parts if part[0] != "message")
    return (f"{place}?{rest}" if rest else place), (texts or [MESSAGE])[-1]


def notifier(url: str) -> Action:
    """Return the action for the URL of a service. Raises UsageError if it is none."""
    return FrigateEvent(url) if url.partition("://")[0] in FRIGATE else Notify(url)
