"""A repository is read from the local cache, and downloaded into it only where permitted."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.checkpoints import changed

from driftscope.errors import EXIT_ERROR, EXIT_OK

pytestmark = pytest.mark.process
COMMIT = "0" * 39 + "1"
NAME = "someone/drafter"


@contextmanager
def hub(name: str, source: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder as the repository `name`; yield the address and the files asked for."""
    asked: list[str] = []
    contents = {path.name: path.read_bytes() for path in sorted(source.iterdir())}
    digests = {
        file: hashlib.sha1(content, usedforsecurity=False).hexdigest()
        for file, content in contents.items()
    }
    tree = [
        {"type": "file", "path": file, "size": len(content), "oid": digests[file]}
        for file, content in contents.items()
    ]
    files = [{"rfilename": file} for file in contents]
    info = {"id": name, "modelId": name, "sha": COMMIT, "siblings": files, "tags": []}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            path, file = self.path.partition("?")[0], self.path.rpartition("/")[2]
            code, content, headers = 404, b"{}", dict[str, str]()
            if path.startswith(f"/api/models/{name}"):
                found = tree if path.startswith(f"/api/models/{name}/tree/") else info
                code, content = 200, json.dumps(found).encode()
                headers = {"Content-Type": "application/json"}
            elif path.startswith(f"/{name}/resolve/"):
                code, content = 200, contents[file]
                headers = {"ETag": f'"{digests[file]}"', "X-Repo-Commit": COMMIT}
                asked.extend([file] * (self.command == "GET"))
            self.send_response(code)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_GET(self) -> None:
            self.do_HEAD()

        def log_message(self, *_arguments: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def _inspect(
    cache: Path, *options: str, endpoint: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Inspect the repository in a process of its own: huggingface_hub reads its settings once."""
    settings = {"HF_HUB_CACHE": str(cache), "HF_HOME": str(cache / "home")}
    settings |= {"HF_ENDPOINT": endpoint} if endpoint else {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "driftscope", "inspect", NAME, "--json", *options]
    return subprocess.run(
        command,
        env={**os.environ, **settings, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [((), "--download"), (("--download",), "cannot be downloaded")],
    ids=["without permission", "offline"],
)
def test_what_is_not_in_the_cache_is_one_error(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    done = _inspect(tmp_path / "cache", *options)
    assert done.returncode == EXIT_ERROR
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_with_permission_weights_are_downloaded_and_pickles_are_not(tmp_path: Path) -> None:
    source = changed(tmp_path / "a")
    (source / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with hub(NAME, source) as (endpoint, asked):
        done = _inspect(tmp_path / "cache", "--download", endpoint=endpoint)
        assert done.returncode == EXIT_OK, done.stderr
        assert sorted(asked) == ["config.json", "model.safetensors"]
    assert json.loads(done.stdout)["sizes"]["parameters"] > 1_000_000
    for options in ((), ("--download",)):  # what is cached needs no permission, nor a hub
        done = _inspect(tmp_path / "cache", *options)
        assert done.returncode == EXIT_OK, done.stderr
        assert json.loads(done.stdout)["drafter"] == NAME


def test_a_repository_that_the_hub_does_not_have_is_one_error(tmp_path: Path) -> None:
    with hub("someone/else", changed(tmp_path / "a")) as (endpoint, _):
        done = _inspect(tmp_path / "cache", "--download", endpoint=endpoint)
    assert done.returncode == EXIT_ERROR and done.stderr.count("\n") == 1
