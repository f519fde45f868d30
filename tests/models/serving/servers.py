"""A server as a process, and clients that speak HTTP to it by hand."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from time import monotonic, sleep

from tests.models.distributed.deployments import is_running

COMMAND = [sys.executable, "-m", "blockstride.models.cli", "serve"]
START_SECONDS = 120.0
SECONDS = 60.0
KEY = "a-secret"
MODEL = "small"


class Server:
    """A server that is ready.

    Args:
        model: Checkpoint folder.
        folder: For its log, and as its TMPDIR.
        options: Of the command.
    """

    def __init__(self, model, folder, *options: str):
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *COMMAND,
                    *("--model", str(model), "--served-model-name", MODEL, "--port", "0"),
                    *("--api-key", KEY, "--log-format", "json", "--cache-mib", "16"),
                    *("--verbose", *options),
                ],
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(folder)},
            )
        try:
            until(lambda: self.process.poll() is not None or self._address(), START_SECONDS)
            assert self.process.poll() is None, self.log()
            self.host, self.port = self._address()[0]
        except BaseException:
            self.end()
            raise

    def _address(self):
        pattern = r"serving\.server.* at http://([0-9.]+):(\d+)"
        return [(host, int(port)) for host, port in re.findall(pattern, self.log())]

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def lines(self, request_id: str) -> list[dict]:
        """What it has logged of a request."""
        said = (json.loads(line) for line in self.log().splitlines() if line.startswith("{"))
        return [line for line in said if line.get("request_id") == request_id]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/v1"

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=SECONDS)

    def ask(self, method, path, body=None, headers=()):
        """Status, headers and body of a response."""
        given = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)
        with closing(connection):
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method, path, body, {**given, **dict(headers)})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def refusal(self, path, body, headers=()):
        """Status and error of a request that is refused."""
        status, _, answer = self.ask("POST", path, body, headers)
        assert status >= 400, (body, answer)
        error = json.loads(answer)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return status, error

    @contextmanager
    def streaming(self, **body):
        """A stream that has begun; the connection is closed at the end."""
        with self.connect() as client:
            client.sendall(request_bytes({"prompt": "x", "stream": True, **body}))
            assert b" 200 " in client.recv(1 << 16)
            yield client

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric."""
        text = self.ask("GET", "/metrics")[2].decode()
        total = 0.0
        for line in text.splitlines():
            if re.match(rf"{re.escape(name)}(\{{|\s)", line) and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                total += float(line.rpartition(" ")[2])
        return total

    def is_idle(self) -> bool:
        """Whether no request is anywhere, and no block is held."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        names += ("vllm:kv_cache_usage_perc", "blockstride:sequences_in_flight")
        return all(self.metric(name) == 0 for name in names)

    def is_idle_but_for_the_dead(self) -> bool:
        """The same, where an engine has ended with its requests."""
        up = re.findall(
            r'engine_up\{engine="([^"]+)".* 1\.0', self.ask("GET", "/metrics")[2].decode()
        )
        running = "vllm:num_requests_running"
        in_flight = self.metric("blockstride:sequences_in_flight")
        return in_flight == sum(self.metric(running, engine=engine) for engine in up) == 0

    def engines(self) -> dict[str, int]:
        """Process of each engine."""
        found = re.findall(r"([a-z]+-\d): ready, processes \[(\d+)", self.log())
        return {name: int(pid) for name, pid in found}

    def end(self) -> int:
        """Ends it at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait(SECONDS)
        # engines look after the process that began them
        until(lambda: not any(map(is_running, self.engines().values())))
        return code


def request_bytes(body, path="/v1/completions") -> bytes:
    """A request as it goes over a wire."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def until(condition, seconds: float = SECONDS) -> None:
    """Waits for something that comes of itself."""
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, f"not within {seconds} s: {condition}"
        sleep(0.02)
