"""Metrics over HTTP: format, clients, clients that hang, shutdown."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.errors import UsageError
from costream.runtime.watch import http_server, metrics_server
from costream.runtime.watch.metrics_server import Metrics, health
from costream.runtime.watch.prometheus import CONTENT_TYPE, exposition
from kit.watched import feed, many, watch

# --- the text format, version 0.0.4 ----------------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
PAIR = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|NaN"
HELP = re.compile(rf"# HELP ({NAME}) ([^\n]+)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge)")
SAMPLE = re.compile(rf"({NAME})(?:\{{({PAIR}(?:,{PAIR})*)\}})? ({NUMBER})")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Read the format strictly: name and labels -> value."""
    assert text.endswith("\n")
    samples, families, current = {}, set(), ""
    lines = iter(text[:-1].split("\n"))
    for line in lines:
        if match := HELP.fullmatch(line):
            current = match[1]
            assert current not in families  # all lines of a metric stand together
            families.add(current)
            kind = TYPE.fullmatch(next(lines))
            assert kind
            assert kind[1] == current
            assert current.endswith("_total") is (kind[2] == "counter")
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] == current
        pairs = tuple(
            (key, re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), value))
            for key, value in LABEL.findall(match[2] or "")
        )
        assert (current, pairs) not in samples  # no sample twice
        samples[current, pairs] = float(match[3])
    return samples


def test_every_figure_of_a_feed():
    door = feed(reconnects=2, gaps=3, errors=4, alerts=5, dropped=6, held=8)
    samples = parsed(exposition(watch(door, failed_actions=7), 1234.5))
    of_door = (("feed", "door"),)
    values = {name: value for (name, labels), value in samples.items() if labels == of_door}
    assert values == pytest.approx(
        {
            "costream_feed_frame_rate_hertz": 25.0,
            "costream_feed_step_rate_hertz": 4.0,
            "costream_feed_lag_seconds": 0.12,
            "costream_feed_data_age_seconds": 0.02,
            "costream_feed_step_seconds": 0.52e-3,
            "costream_feed_steps_total": 14_893,
            "costream_feed_dropped_steps_total": 6,
            "costream_feed_reconnects_total": 2,
            "costream_feed_gaps_total": 3,
            "costream_feed_errors_total": 4,
            "costream_feed_alerts_total": 5,
            "costream_feed_alerts_held_back_total": 8,
            "costream_feed_macs_total": 9_640_000 * 14_893,
            "costream_feed_dense_macs_total": 410_900_000 * 14_893,
        }
    )
    assert {name: value for (name, labels), value in samples.items() if not labels} == {
        "costream_status_timestamp_seconds": 1234.5,
        "costream_uptime_seconds": 3723.0,
        "costream_network_busy_ratio": 0.23,
        "costream_resident_memory_bytes": 412e6,
        "costream_cpu_seconds_total": 0.0,
        "costream_failed_actions_total": 7,
    }
    states = {
        dict(labels)["state"]: value
        for (name, labels), value in samples.items()
        if name == "costream_feed_state"
    }
    assert states["live"] == 1
    assert sum(states.values()) == 1
    assert len(states) == 7
    assert samples["costream_feed_active", (("feed", "door"), ("label", "walk"))] == 1
    assert samples["costream_info", (("version", "0.1.0"), ("model", "cooadtr"))] == 1


def test_what_is_not_known_is_left_out():
    samples = parsed(exposition(watch(feed(age_s=None, active=None)), 0.0))
    names = {name for name, _ in samples}
    assert "costream_feed_data_age_seconds" not in names
    assert "costream_feed_active" not in names


@given(st.text(), st.text(), st.floats())
def test_any_text_and_any_number_can_be_read_back(name, label, lag_s):
    samples = parsed(exposition(watch(feed(name, active=label, lag_s=lag_s)), 0.0))
    ((labels, value),) = [
        (labels, value)
        for (metric, labels), value in samples.items()
        if metric == "costream_feed_lag_seconds"
    ]
    assert value == pytest.approx(lag_s, nan_ok=True)
    if "://" not in name and "?" not in name and "&" not in name:
        assert dict(labels)["feed"] == name


def test_no_credentials_come_out():
    url = "rtsp://admin:hunter2@cam/live?token=hunter2"
    bad = replace(feed(url, "lost", message=f"cannot open {url}", active=url), source=url)
    text = exposition(watch(bad), 0.0) + health(watch(bad), 0.0)[1]
    assert "hunter2" not in text
    assert 'source="rtsp://***@cam/live?token=***"' in text


# --- the server ------------------------------------------------------------------------------


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    server = Metrics("0")
    yield server
    server.close()


def get(metrics: Metrics, path: str = "/metrics", method: str = "GET"):
    """Return code, headers and text."""
    url = metrics.url.removesuffix("/metrics") + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as got:
            return got.status, got.headers, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def test_a_client_on_this_machine_gets_the_newest_status(metrics):
    assert metrics.url.startswith("http://127.0.0.1:")
    assert metrics._server._server.socket.getsockname()[0] == "127.0.0.1"
    assert get(metrics)[::2] == (503, "the watch has not started yet\n")
    metrics.show(watch(feed(steps=1)))
    metrics.show(watch(feed(steps=2)))
    code, headers, text = get(metrics, "/metrics?name=value")
    assert code == 200
    assert headers["Content-Type"] == CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
    assert int(headers["Content-Length"]) == len(text.encode())
    samples = parsed(text)
    assert samples["costream_feed_steps_total", (("feed", "door"),)] == 2
    assert abs(samples["costream_status_timestamp_seconds", ()] - time.time()) < 60


def test_head_elsewhere_and_other_methods(metrics):
    metrics.show(watch(feed()))
    code, headers, text = get(metrics, method="HEAD")
    assert (code, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000
    for path in ("/", "/metrics/", "/favicon.ico"):
        assert get(metrics, path)[0] == 404
    assert get(metrics, method="POST")[0] == 501


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0", "[::1]"])
def test_other_hosts(host):
    try:
        server = Metrics(f"{host}:0")
    except UsageError as error:
        if host != "[::1]":
            raise
        pytest.skip(f"no IPv6 here: {error}")
    server.show(watch(feed()))
    assert server.url.startswith(f"http://{host}:")
    assert get(server)[0] == 200
    server.close()


def test_addresses_that_cannot_be_used(metrics):
    for address in ("", "port", "70000", "1.2.3.4", "a:b", "::1:9", "[x]:9", ":9"):
        with pytest.raises(UsageError, match="not an address"):
            Metrics(address)
    for host in ("192.0.2.1", "no such host", "a..b"):
        with pytest.raises(UsageError, match="cannot listen there"):
            Metrics(f"{host}:0")
    port = urlsplit(metrics.url).port
    with pytest.raises(UsageError, match=rf"--metrics {port}: cannot listen there \(Address alrea"):
        Metrics(str(port))


def test_twenty_at_once(metrics):
    metrics.show(many(16))
    codes = []
    threads = [
        threading.Thread(target=lambda: codes.extend(get(metrics)[0] for _ in range(5)))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200] * 100


def test_clients_that_hang_hold_up_neither_others_nor_the_end(metrics):
    metrics.show(many(4))
    where = ("127.0.0.1", urlsplit(metrics.url).port)
    hung = [socket.create_connection(where) for _ in range(20)]
    for client in hung[::2]:
        client.sendall(b"GET /metrics HTT")
    assert get(metrics)[0] == 200
    began_s = time.monotonic()
    metrics.close()
    assert time.monotonic() - began_s < 1.0
    metrics.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "metrics"]
    for client in hung:
        client.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(where)


def test_a_client_that_sends_now_and_then_is_let_go(metrics, monkeypatch):
    assert http_server.CLIENT_S == 5  # which is long for a test
    monkeypatch.setattr(http_server, "CLIENT_S", 0.5)
    where = ("127.0.0.1", urlsplit(metrics.url).port)
    with socket.create_connection(where) as client:
        client.settimeout(0.1)
        end_s = time.monotonic() + 30
        with suppress(OSError):  # reset
            while time.monotonic() < end_s:
                client.sendall(b"G")
                with suppress(TimeoutError):
                    assert client.recv(1) == b""
                    break
    assert time.monotonic() < end_s


def test_more_clients_than_are_served_do_not_shut_others_out(metrics):
    metrics.show(watch(feed()))
    where = ("127.0.0.1", urlsplit(metrics.url).port)
    hung = []
    for _ in range(3 * http_server._MOST_CLIENTS):
        hung.append(socket.create_connection(where, timeout=30))
        hung[-1].sendall(b"GET /metr")
    assert [get(metrics)[0] for _ in range(5)] == [200] * 5
    assert threading.active_count() < 2 * http_server._MOST_CLIENTS
    for client in hung:
        client.close()


def test_many_who_come_at_once_wait_in_line(metrics):
    """Else the system tells them nothing, and they try again after 1 s, 3 s, 7 s."""
    metrics.show(watch(feed()))
    where = ("127.0.0.1", urlsplit(metrics.url).port)
    with metrics._server._server._lock:  # nobody is accepted
        waiting = [socket.create_connection(where, timeout=0.9) for _ in range(100)]
    assert get(metrics)[0] == 200
    for client in waiting:
        client.close()


def test_clients_that_leave_early_print_nothing(metrics, capfd, caplog):
    metrics.show(many(40))
    where = ("127.0.0.1", urlsplit(metrics.url).port)
    with caplog.at_level(logging.INFO, "costream"):
        for _ in range(20):
            with socket.create_connection(where) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert get(metrics)[0] == 200
        assert get(metrics, "/" + "x" * 70_000)[0] == 414
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


# --- health ----------------------------------------------------------------------------------


def test_healthy(metrics):
    metrics.show(watch(feed("door"), feed("lab", "lost", message="404"), feed("hall", "ended")))
    assert get(metrics, "/healthz")[::2] == (200, "door: ok\nlab: lost (404)\nhall: ended\n")
    assert get(metrics, "/healthz", "HEAD")[::2] == (200, "")
    metrics.show(watch(feed("not UTF-8: \udcff")))
    assert get(metrics, "/healthz")[::2] == (200, "not UTF-8: \\udcff: ok\n")
    assert get(metrics)[0] == 200


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (feed("yard", "waiting", message="server closed"), "yard: waiting (server closed)"),
        (feed("yard", "stalled"), "yard: stalled"),
        (feed("yard", "connecting"), "yard: connecting"),
        (feed("yard", steps_hz=0.0), "yard: live, but no steps"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_one_feed_makes_no_steps(metrics, bad, said):
    metrics.show(watch(feed("door"), bad))
    assert get(metrics, "/healthz")[::2] == (503, f"door: ok\n{said}\n")
    metrics.show(watch(feed("lab", "lost")))
    assert get(metrics, "/healthz")[::2] == (503, "lab: lost\nno feed is active\n")


def test_a_watch_that_stands_still_is_not_healthy(metrics, monkeypatch):
    monkeypatch.setattr(metrics_server, "STUCK_S", 0.0)
    metrics.show(watch(feed()))
    code, _, text = get(metrics, "/healthz")
    assert code == 503
    assert text == "the watch has been stuck for 0 s\n"
