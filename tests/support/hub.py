"""Local caches of huggingface_hub, and a hub that serves one repository from this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0" * 39 + "1"


def cached(cache: Path, name: str, source: Path) -> Path:
    """Put a copy of a folder into a cache as the repository `name`; return its snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    snapshot = repository / "snapshots" / COMMIT
    blobs = repository / "blobs"
    for each in (snapshot, blobs):
        each.mkdir(parents=True)
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
    files = [{"rfilename": each.name} for each in sorted(source.iterdir())]
    return {"id": name, "modelId": name, "sha": COMMIT, "siblings": files, "tags": []}


def _tree(source: Path) -> list[dict[str, object]]:
    return [
        {
            "type": "file",
            "path": each.name,
            "size": each.stat().st_size,
            "oid": _digest(each.read_bytes()),
        }
        for each in sorted(source.iterdir())
    ]


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
