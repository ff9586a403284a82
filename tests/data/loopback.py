"""A web server on 127.0.0.1 that can misbehave."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Site:
    """What the server does: `cuts` are the numbers of bytes after which it drops its first answers."""

    content: dict[str, bytes]  # by path
    cuts: list[int] = field(default_factory=list)
    ignores_range: bool = False
    statuses: list[int] = field(default_factory=list)  # errors it gives first
    url: str = ""
    ranges: list[str | None] = field(default_factory=list)  # asked for, by request

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.ranges.append(asked)
        body = self.content.get(request.path)
        if self.statuses or body is None:
            return request.send_error(self.statuses.pop(0) if self.statuses else 404)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and not self.ignores_range else 0
        if start >= len(body):
            return request.send_error(416)
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        request.send_header("Content-Length", str(len(body) - start))
        request.end_headers()
        end = start + self.cuts.pop(0) if self.cuts else len(body)
        request.wfile.write(body[start:end])
        return None


@contextmanager
def serve(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            site.url = f"http://127.0.0.1:{server.server_port}"
            yield site
        finally:
            server.shutdown()
            thread.join(timeout=10)
