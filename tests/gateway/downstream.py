"""Clients of `/v1` for tests: one that waits for the whole answer, and one whose every byte a test decides."""

import http.client
import json
import socket

from tests.gateway.fleet import SECRET

CHAT = "/v1/chat/completions"


def ask(fleet, body=None, path=CHAT, key=SECRET, method="POST", **headers):
    """(response, its body) of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=20)
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    sent = {"Content-Type": "application/json", **{n.replace("_", "-"): v for n, v in headers.items()}}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    try:
        connection.request(method, path, data, sent)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def refused(fleet, *arguments, **keywords):
    """(status, code) of a refusal, whose form is checked."""
    response, data = ask(fleet, *arguments, **keywords)
    error = json.loads(data)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.getheader("content-type") == "application/json"
    assert response.getheader("x-request-id")
    if response.status in (429, 503):
        assert int(response.getheader("retry-after")) >= 1
    if response.status == 401:
        assert response.getheader("www-authenticate").startswith("Bearer")
    return response.status, error["code"]


class Raw:
    """A plain socket to the gateway."""

    def __init__(self, fleet, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", fleet.port))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def head(self, *headers, path=CHAT, key=SECRET):
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", *headers, "", ""]
        self.socket.sendall("\r\n".join(lines).encode())

    def post(self, body, path=CHAT):
        data = json.dumps(body).encode()
        self.head(f"Content-Length: {len(data)}", path=path)
        self.socket.sendall(data)

    def read_until(self, mark):
        data = b""
        while mark not in data:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError(data)
            data += piece
        return data

    def read_all(self):
        pieces = []
        while piece := self.socket.recv(65536):
            pieces.append(piece)
        return b"".join(pieces)
