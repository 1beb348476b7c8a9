"""Copies of backups in a bucket: whole, read back, never sent elsewhere."""

import http.server
import threading

import boto3
import pytest
from moto.server import ThreadedMotoServer

from jobs.backup.destinations.settings import (
    S3Destination,
)
from jobs.errors import BackupDestinationFailed
from tests.jobs.backup.made import SECRET

pytestmark = pytest.mark.app


@pytest.fixture(scope="module")
def s3():
    """moto's server in this process: a simulation of S3, spoken to by the real client over HTTP."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=url, **keys)
    client.create_bucket(Bucket="mirbad")
    yield S3Destination(endpoint=url, bucket="mirbad", prefix="a/b", access_key_id="k"), client
    client.close()
    server.stop()


def keys_in(client):
    return [one["Key"] for one in client.list_objects_v2(Bucket="mirbad").get("Contents", [])]


def test_an_object_is_whole_and_a_repetition_changes_nothing(do, s3, file):
    settings, client = s3
    client.put_object(Bucket="mirbad", Key="a/b/.a.zip.part-dead", Body=b"of an upload that was interrupted")
    do("put", settings)
    do("put", settings)
    assert keys_in(client) == ["a/b/a.zip"]
    assert client.get_object(Bucket="mirbad", Key="a/b/a.zip")["Body"].read() == file.read_bytes()
    with pytest.raises(BackupDestinationFailed, match="not replaced"):
        do("put", settings, sha256="0" * 64)
    do("try", settings)
    assert keys_in(client) == ["a/b/a.zip"]
    do("remove", settings)
    do("remove", settings)
    assert keys_in(client) == []


def test_a_copy_that_reads_differently_does_not_stay(do, s3):
    settings, client = s3
    with pytest.raises(BackupDestinationFailed, match="reads differently"):
        do("put", settings, sha256="0" * 64)
    assert keys_in(client) == []


def test_what_the_server_refuses_says_what_to_do(do, s3):
    settings, _ = s3
    with pytest.raises(BackupDestinationFailed, match=r"\(NoSuchBucket\). Create the bucket"):
        do("try", settings.model_copy(update={"bucket": "another"}))
    with pytest.raises(BackupDestinationFailed, match="Check endpoint and network"):
        do("try", settings.model_copy(update={"endpoint": "http://127.0.0.1:9"}))


def _listen(answer):
    """Listen as a server that answers each request by `answer`; return it with the paths that were asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle_one_request(self):
            super().handle_one_request()

        def _do(self):
            asked.append((self.path, dict(self.headers)))
            status, headers = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _do  # noqa: N815 - the server's names

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, asked


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirection_is_not_followed(do, status):
    other, reached = _listen((200, {}))
    place = f"http://127.0.0.1:{other.server_address[1]}/mirbad/x"
    first, asked = _listen((status, {"Location": place, "x-amz-bucket-region": "eu-west-1"}))
    settings = S3Destination(endpoint=f"http://127.0.0.1:{first.server_address[1]}", bucket="mirbad", access_key_id="k")
    try:
        with pytest.raises(BackupDestinationFailed):
            do("try", settings)
    finally:
        for server in (first, other):
            server.shutdown()
            server.server_close()
    assert asked
    assert reached == []
    assert SECRET not in str(asked)
