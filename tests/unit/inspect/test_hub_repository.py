"""A repository is read from the local cache, and downloaded into it only where permitted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
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

COMMIT = "0" * 39 + "1"


def cached(cache: Path, name: str, source: Path) -> Path:
    """Put a copy of a folder into a cache as the repository `name`; return its snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    snapshot = repository / "snapshots" / COMMIT
    blobs = repository / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    for file in source.iterdir():
        blob = blobs / hashlib.sha256(file.name.encode()).hexdigest()
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", blob.name))
    return snapshot


@contextmanager
def hub(name: str, source: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder as the repository `name`; yield the address and the files asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{name}/tree/"):
                self._json(_tree(source))
            elif path.startswith(f"/api/models/{name}"):
                self._json(_info(name, source))
            elif path.startswith(f"/{name}/resolve/"):
                self._file(source / path.rpartition("/")[2], body=body)
            else:
                self._send(404, b"{}", {}, body=body)

        def _json(self, content: object) -> None:
            self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def _file(self, file: Path, *, body: bool) -> None:
            content = file.read_bytes()
            if body:
                asked.append(file.name)
            tags = {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": COMMIT}
            self._send(200, content, tags, body=body)

        def _send(
            self, code: int, content: bytes, headers: dict[str, str], *, body: bool = True
        ) -> None:
            self.send_response(code)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def _info(name: str, source: Path) -> dict[str, object]:
    files = [{"rfilename": path.name} for path in sorted(source.iterdir())]
    return {"id": name, "modelId": name, "sha": COMMIT, "siblings": files, "tags": []}


def _tree(source: Path) -> list[dict[str, object]]:
    return [
        {
            "type": "file",
            "path": path.name,
            "size": path.stat().st_size,
            "oid": _digest(path.read_bytes()),
        }
        for path in sorted(source.iterdir())
    ]


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


pytestmark = pytest.mark.process
NAME = "someone/drafter"


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


def test_a_cached_repository_needs_no_permission(tmp_path: Path) -> None:
    cached(tmp_path / "cache", NAME, changed(tmp_path / "a"))
    for options in ((), ("--download",)):  # offline, permission changes nothing
        done = _inspect(tmp_path / "cache", *options)
        assert done.returncode == EXIT_OK, done.stderr
        assert json.loads(done.stdout)["drafter"] == NAME


def test_without_cache_and_permission_the_error_names_the_option(tmp_path: Path) -> None:
    done = _inspect(tmp_path / "cache")
    assert done.returncode == EXIT_ERROR
    assert "--download" in done.stderr
    assert done.stderr.count("\n") == 1


def test_offline_a_download_is_one_error(tmp_path: Path) -> None:
    done = _inspect(tmp_path / "cache", "--download")
    assert done.returncode == EXIT_ERROR
    assert "cannot be downloaded" in done.stderr
    assert done.stderr.count("\n") == 1


def test_with_permission_weights_are_downloaded_and_pickles_are_not(tmp_path: Path) -> None:
    source = changed(tmp_path / "a")
    (source / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with hub(NAME, source) as (endpoint, asked):
        done = _inspect(tmp_path / "cache", "--download", endpoint=endpoint)
        assert done.returncode == EXIT_OK, done.stderr
        assert sorted(asked) == ["config.json", "model.safetensors"]
    assert json.loads(done.stdout)["sizes"]["parameters"] > 1_000_000
    assert _inspect(tmp_path / "cache").returncode == EXIT_OK


def test_a_repository_that_the_hub_does_not_have_is_one_error(tmp_path: Path) -> None:
    with hub("someone/else", changed(tmp_path / "a")) as (endpoint, _):
        done = _inspect(tmp_path / "cache", "--download", endpoint=endpoint)
    assert done.returncode == EXIT_ERROR
    assert done.stderr.count("\n") == 1
