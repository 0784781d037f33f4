"""Test an alert end to end: live vLLM, Prometheus, Alertmanager and a webhook, all on loopback.

Traffic is first in the drafter's distribution, then has other names for its roles, for
longer than the past that the rules look at and with a pause in the middle, then is normal again:
"acceptance fell" has to reach the webhook as firing, must not be resolved while the fault lasts,
and has to be resolved after it. Run by `make alerts`; it prints a log and fails otherwise.
`make alert-rules` plays incidents of days.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.engine_process.serving import Server, serve
from support.prometheus import INTERVAL, KEEP, edited_rules, tool
from support.waiting import free_port

from driftscope_lab.trio import load_prompts
from driftscope_lab.trio.prompts import templated

TIMES = {
    "5m": "20s",
    "30m": "20s",
    "7d": "40s",
    "1h": "25s",
    "10m": "25s",
    "1d": "10m",
    KEEP: "5s",
    INTERVAL: "1s",
}
"""Production rules with days shortened to seconds."""
LEARN_S = 75
"""Good traffic, in seconds, until there is a past to compare with: a window, the gap and most of
the past."""
LIMIT_S = 120
BAD_S = 50
"""Bad traffic before and after the pause, in seconds: together more than the past and the gap,
after which the incident would be the past."""
PAUSE_S = 40
"""Time without traffic in the incident, in seconds: longer than the window."""
CLIENTS = 4
ALERT = "DriftscopeAcceptanceFell"
NEW = "DriftscopeNoReference"
"""Alert that a model without a past is new, as this one is at first."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        _run(Path(folder), stack)


def _run(folder: Path, stack: contextlib.ExitStack) -> None:
    ports = [free_port() for _ in range(4)]
    scrape, prometheus, alertmanager, hook = ports
    server = stack.enter_context(
        serve(folder, "--prometheus", f"127.0.0.1:{scrape}", drafter="eagle3")
    )
    heard = stack.enter_context(_webhook(hook))
    _write_config(folder, *ports)
    stack.enter_context(
        _running(
            tool("prometheus-alertmanager"),
            f"--config.file={folder}/alertmanager.yml",
            f"--storage.path={folder}/am",
            f"--web.listen-address=127.0.0.1:{alertmanager}",
            "--cluster.listen-address=",
            log=folder / "am.log",
        )
    )
    stack.enter_context(
        _running(
            tool("prometheus"),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{prometheus}",
            log=folder / "prometheus.log",
        )
    )
    traffic = stack.enter_context(_traffic(server))
    _say("traffic in distribution")
    time.sleep(LEARN_S)
    _show(prometheus)
    assert _states(heard, "firing") <= {NEW}, f"fired on good traffic: {heard}"
    traffic.renamed = True
    _say("traffic with other names for the roles")
    _until(lambda: ALERT in _states(heard, "firing"), prometheus, "no alert fired")
    _say(f"webhook: {ALERT} firing")
    _show(prometheus)
    for words, busy, seconds in (
        ("the fault lasts", True, BAD_S),
        ("no traffic", False, PAUSE_S),
        ("the fault lasts", True, BAD_S),
    ):
        _say(words)
        traffic.pause(busy=busy)
        time.sleep(seconds)
        assert ALERT not in _states(heard, "resolved"), "it was resolved before the repair"
    _show(prometheus)
    traffic.renamed = False
    _say("traffic in distribution")
    _until(lambda: ALERT in _states(heard, "resolved"), prometheus, "it did not resolve")
    _say(f"webhook: {ALERT} resolved")
    _show(prometheus)
    _say(f"others that fired: {', '.join(sorted(_states(heard, 'firing') - {ALERT})) or 'none'}")
    assert traffic.failed == 0, f"{traffic.failed} requests failed"


def _write_config(folder: Path, scrape: int, prometheus: int, alertmanager: int, hook: int) -> None:
    edits = {">= 1)": ">= 0.5)", "bool 0.8\n": "bool 0.9\n", "bool 0.85": "bool 0.93"}
    rules = edited_rules(folder / "rules.yml", TIMES, edits=edits)
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
                "alerting": {
                    "alertmanagers": [
                        {"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}
                    ]
                },
                "scrape_configs": [
                    {"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{scrape}"]}]}
                ],
            }
        )
    )
    (folder / "alertmanager.yml").write_text(
        json.dumps(
            {
                "route": {
                    "receiver": "hook",
                    "group_by": ["alertname"],
                    "group_wait": "1s",
                    "group_interval": "1s",
                    "repeat_interval": "1h",
                },
                "receivers": [
                    {
                        "name": "hook",
                        "webhook_configs": [
                            {"url": f"http://127.0.0.1:{hook}/", "send_resolved": True}
                        ],
                    }
                ],
            }
        )
    )


OTHER_ROLES = {"system": "rules", "user": "human", "assistant": "reply"}
"""Names of roles that a model never saw, for the same turns."""


class _Traffic:
    """Clients that send one request after the other until they are stopped."""

    def __init__(self, server: Server) -> None:
        self._server, self.renamed, self.failed = server, False, 0
        self.stopped = threading.Event()
        self._busy = threading.Event()
        self._busy.set()

    def pause(self, *, busy: bool) -> None:
        """Send requests, or none."""
        (self._busy.set if busy else self._busy.clear)()

    def stop(self) -> None:
        """End every client after its current request."""
        self.stopped.set()
        self._busy.set()

    def client(self, number: int) -> None:
        prompts = load_prompts()
        at = number
        while not self.stopped.is_set():
            self._busy.wait()
            prompt = prompts[at % len(prompts)]
            asked = prompt.conversation(prompt.short)
            text = templated(asked)
            for role, other in OTHER_ROLES.items() if self.renamed else ():
                text = text.replace(f"<|{role}|>", f"<|{other}|>")
            try:
                self._server.complete(
                    f"{number}-{at}", prompt=text, add_special_tokens=False, max_tokens=48
                )
            except OSError:
                self.failed += not self.stopped.is_set()
            at += CLIENTS


@contextlib.contextmanager
def _traffic(server: Server) -> Iterator[_Traffic]:
    traffic = _Traffic(server)
    clients = [threading.Thread(target=traffic.client, args=(n,)) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield traffic
    finally:
        traffic.stop()
        for client in clients:
            client.join()


@contextlib.contextmanager
def _webhook(port: int) -> Iterator[list[dict[str, Any]]]:
    heard: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.extend(json.loads(body)["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Do nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _running(*command: str, log: Path) -> Iterator[None]:
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _states(heard: list[dict[str, Any]], status: str) -> set[str]:
    return {alert["labels"]["alertname"] for alert in heard if alert["status"] == status}


def _query(prometheus: int, expr: str) -> dict[str, float]:
    url = f"http://127.0.0.1:{prometheus}/api/v1/query?query={urllib.parse.quote(expr)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    return {figures["metric"].get("__name__", ""): float(figures["value"][1]) for figures in found}


def _show(prometheus: int) -> None:
    names = (
        "model:driftscope_acceptance_length:(mean|reference|ratio)|engine:driftscope_rounds:rate"
    )
    for name, value in sorted(_query(prometheus, f'{{__name__=~"{names}"}}').items()):
        sys.stdout.write(f"           {name} {value:.3f}\n")


def _until(is_so: Callable[[], bool], prometheus: int, otherwise: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > deadline:
            _show(prometheus)
            raise SystemExit(f"alerts: {otherwise} within {LIMIT_S} s")
        time.sleep(0.5)


def _say(words: str) -> None:
    sys.stdout.write(f"{time.monotonic() - _BEGUN:7.1f} s  {words}\n")
    sys.stdout.flush()


_BEGUN = time.monotonic()

if __name__ == "__main__":
    main()
