"""A real S3 server on loopback, and a proxy in front of it that corrupts chosen responses."""

import http.client
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

BUCKET = "dump-bucket"
ACCOUNT = {"key": "key", "secret": "secret"}
IMPATIENT: dict[str, Any] = {"config_kwargs": {"retries": {"max_attempts": 0}}}
"""A request that fails is not sent again and again: the tests would wait for that."""
VANISH, CUT, FAIL, HANG = "vanish", "cut", "fail", "hang"


class Bucket:
    """One bucket of moto's server, as clients reach it through the proxy."""

    def __init__(self, proxy: "Proxy", file_system: Any) -> None:
        self.proxy = proxy
        self.file_system = file_system

    @property
    def environment(self) -> dict[str, str]:
        """What fsspec's configuration takes from the environment."""
        return {"FSSPEC_S3": json.dumps(ACCOUNT | IMPATIENT | {"endpoint_url": self.proxy.address})}

    def upload(self, root: Path, name: str) -> str:
        """Everything below `root` as objects; what to call their folder."""
        for path in sorted(root.rglob("*")):
            if path.is_file():
                place = f"{BUCKET}/{name}/{path.relative_to(root).as_posix()}"
                self.file_system.pipe_file(place, path.read_bytes())
        return f"s3://{BUCKET}/{name}"

    def names(self, name: str) -> list[str]:
        """The objects below a folder."""
        self.file_system.invalidate_cache()
        length = len(f"{BUCKET}/{name}/")
        return sorted(path[length:] for path in self.file_system.find(f"{BUCKET}/{name}"))

    def empty(self) -> None:
        """Remove all objects."""
        self.file_system.invalidate_cache()
        if paths := self.file_system.find(BUCKET):
            self.file_system.rm(paths)

    def download(self, name: str, target: Path) -> Path:
        """All objects below a folder as files."""
        for relative in self.names(name):
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.file_system.cat_file(f"{BUCKET}/{name}/{relative}"))
        return target


class Proxy:
    """Hands requests on; `faults` has, by what a path ends with, what becomes of requests to read."""

    def __init__(self, host: str, port: int) -> None:
        self.faults: dict[str, str] = {}
        self.refused_writes: Callable[[str], bool] = lambda path: False
        self.requests: list[tuple[str, str]] = []
        self.target = (host, port)
        self.delete: Callable[[str], None] = lambda path: None
        self.let_go = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # For what clients expect before they send a body.

            def log_message(self, *arguments: Any) -> None:
                pass

            def handle_any(self) -> None:
                proxy.answer(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - as the library calls them

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        path = unquote(request.path.partition("?")[0])
        self.requests.append((request.command, path))
        fault = None
        if request.command == "GET":
            fault = next((f for name, f in self.faults.items() if path.endswith(name)), None)
        if request.command in ("PUT", "POST") and self.refused_writes(path):
            fault = FAIL
        if fault == HANG:
            self.let_go.wait(30)
            request.close_connection = True
            return
        if fault == VANISH:
            self.delete(path)
        sent = {name: value for name, value in request.headers.items() if name != "Expect"}
        status, headers, answer = self._ask(request.command, request.path, sent, body)
        if fault == FAIL:
            status, answer = 500, b"<Error><Code>InternalError</Code><Message>no</Message></Error>"
            headers["Content-Length"] = str(len(answer))
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Connection", "close")
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(answer[: len(answer) // 2] if fault == CUT else answer)
        request.close_connection = True

    def _ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.target, timeout=30)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        kept = {
            name: value
            for name, value in response.getheaders()
            if name not in ("Connection", "Transfer-Encoding", "Date", "Server")
        }
        if "Transfer-Encoding" in dict(response.getheaders()):
            kept["Content-Length"] = str(len(answer))
        return response.status, kept, answer

    def close(self) -> None:
        self.let_go.set()
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def running() -> Iterator[Bucket]:
    """The server with an empty bucket; fsspec is told where it is."""
    import s3fs
    from fsspec.config import conf
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy(*server.get_host_and_port())
    before = conf.get("s3")
    conf["s3"] = ACCOUNT | IMPATIENT | {"endpoint_url": proxy.address}
    file_system = s3fs.S3FileSystem(
        **ACCOUNT,
        endpoint_url=f"http://{proxy.target[0]}:{proxy.target[1]}",
        skip_instance_cache=True,
    )
    retries, s3fs.S3FileSystem.retries = s3fs.S3FileSystem.retries, 1
    try:
        file_system.mkdir(BUCKET)
        proxy.delete = lambda path: file_system.rm_file(path.lstrip("/"))
        yield Bucket(proxy, file_system)
    finally:
        s3fs.S3FileSystem.retries = retries
        conf.pop("s3", None)
        if before is not None:
            conf["s3"] = before
        proxy.close()
        server.stop()
