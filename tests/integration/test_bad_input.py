"""Bad input at the start of a broker and on its ports causes one clear line or a closed connection, but no crash."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from klamm.testing.cluster import KlammCluster, running_cluster


def start_broker(path: Path, **properties: str) -> subprocess.CompletedProcess[str]:
    """Run `klamm broker` with settings that must be refused."""
    settings = {
        "broker.id": "1",
        "zookeeper.connect": "127.0.0.1:1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(path / "data"),
        **{key.replace("_", "."): value for key, value in properties.items()},
    }
    file = path / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return subprocess.run(
        [sys.executable, "-m", "klamm", "broker", str(file)], capture_output=True, text=True, timeout=60, check=False
    )


def last_line(finished: subprocess.CompletedProcess[str]) -> str:
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr
    return finished.stderr.splitlines()[-1]


def test_a_bad_value_names_key_value_and_what_is_allowed(tmp_path: Path) -> None:
    line = last_line(start_broker(tmp_path, num_partitions="none"))
    assert line == "klamm: num.partitions='none' is not valid: it must be an integer from 1 to 2147483647"


def test_zookeeper_that_is_not_there(tmp_path: Path) -> None:
    line = last_line(start_broker(tmp_path, zookeeper_connection_timeout_ms="1000"))
    assert line.startswith("klamm: zookeeper.connect=127.0.0.1:1")


def test_a_missing_properties_file(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "klamm", "broker", str(tmp_path / "absent")], capture_output=True, text=True, check=False
    )
    assert last_line(finished) == f"klamm: cannot read {tmp_path / 'absent'}: No such file or directory"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("bad-input"), brokers=1) as started:
        started.create_topic("kept", replication_factor=1)
        yield started


def test_a_port_that_is_taken(cluster: KlammCluster, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
        line = last_line(start_broker(tmp_path, zookeeper_connect=cluster.zookeeper, broker_id="9", listeners=address))
    assert line == f"klamm: listeners: cannot listen on {address}: {os.strerror(98)}"


def test_an_id_that_is_taken(cluster: KlammCluster, tmp_path: Path) -> None:
    line = last_line(start_broker(tmp_path, zookeeper_connect=cluster.zookeeper))
    assert line.startswith("klamm: broker.id=1 is registered by another broker at CLIENT://127.0.0.1:")


def test_a_directory_of_another_cluster(cluster: KlammCluster, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    meta = "version=0\nbroker.id=9\ncluster.id=ofSomebodyElse12345678\n"
    (data / "meta.properties").write_text(meta)
    line = last_line(start_broker(tmp_path, zookeeper_connect=cluster.zookeeper, broker_id="9"))
    assert "belongs to cluster ofSomebodyElse12345678" in line
    assert (data / "meta.properties").read_text() == meta


def test_a_directory_in_use(cluster: KlammCluster, tmp_path: Path) -> None:
    line = last_line(
        start_broker(tmp_path, zookeeper_connect=cluster.zookeeper, broker_id="9", log_dirs=str(cluster.directory(1)))
    )
    assert "is in use by another process" in line


GARBAGE = {
    "oversized": struct.pack(">i", 2**31 - 1),
    "negative": struct.pack(">i", -5),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "unknown version": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "torn body": struct.pack(">ihhihi", 14, 3, 1, 1, -1, 1000),
    "control request from a client": struct.pack(">ihhih", 10, 5, 0, 1, -1),
}


@pytest.mark.parametrize("name", sorted(GARBAGE))
def test_garbage_closes_its_connection_and_nothing_else(cluster: KlammCluster, name: str) -> None:
    host, _, port = cluster.bootstrap.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        stranger.sendall(GARBAGE[name])
        try:
            answer = stranger.recv(1024)
        except ConnectionResetError:
            answer = b""
    # StopReplica on the client listener is answered with CLUSTER_AUTHORIZATION_FAILED (31); the rest is closed.
    assert answer == b"" or answer[8:10] == struct.pack(">h", 31)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    try:
        assert producer.send("kept", name.encode()).get(timeout=30).topic == "kept"
    finally:
        producer.close()


def exchange(cluster: KlammCluster, *requests: bytes) -> list[bytes]:
    """Payloads of the answers to requests on one connection."""
    host, _, port = cluster.bootstrap.partition(":")
    answers = []
    with socket.create_connection((host, int(port)), timeout=10) as client, client.makefile("rb") as stream:
        for request in requests:
            client.sendall(struct.pack(">i", len(request)) + request)
            answers.append(stream.read(struct.unpack(">i", stream.read(4))[0]))
    return answers


NULL_CLIENT = struct.pack(">h", -1)
ONLY_ITSELF = struct.pack(">hi", 35, 1) + struct.pack(">hhh", 18, 0, 3)


@pytest.mark.parametrize("version", [4, 99, 32767, -1])
def test_api_versions_of_a_version_that_nobody_knows(cluster: KlammCluster, version: int) -> None:
    """The answer has version 0, UNSUPPORTED_VERSION and the supported range; the connection stays (KIP-511)."""
    unknown = struct.pack(">hhi", 18, version, 7) + NULL_CLIENT + b"\x00whatever comes is not read"
    known = struct.pack(">hhi", 18, 0, 8) + NULL_CLIENT
    refused, answered = exchange(cluster, unknown, known)
    assert refused == struct.pack(">i", 7) + ONLY_ITSELF
    correlation, error, count = struct.unpack_from(">ihi", answered)
    assert (correlation, error) == (8, 0)
    assert count > 15


HEADERS = {
    "plain, no client id": (struct.pack(">hhih", 3, 1, 5, -1), struct.pack(">i", 0), 0),
    "plain, empty client id": (struct.pack(">hhih", 3, 1, 5, 0), struct.pack(">i", 0), 0),
    "flexible, no client id": (struct.pack(">hhih", 3, 9, 5, -1) + b"\x00", b"\x01\x00\x00\x00\x00", 1),
    "flexible, unknown tags": (
        struct.pack(">hhih", 3, 9, 5, 2) + b"me" + b"\x02\x00\x03abc\x63\x00",
        b"\x01\x00\x00\x00\x00",
        1,
    ),
    "flexible, unknown tags in the body": (
        struct.pack(">hhih", 3, 9, 5, -1) + b"\x00",
        b"\x01\x00\x00\x00\x01\x07\x02hi",
        1,
    ),
    "flexible, surplus bytes": (struct.pack(">hhih", 3, 9, 5, -1) + b"\x00", b"\x01\x00\x00\x00\x00surplus", 1),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_every_kind_are_answered(cluster: KlammCluster, name: str) -> None:
    """Metadata without topics: correlation id, an empty tag section in flexible versions, then the body."""
    header, body, tags = HEADERS[name]
    (answer,) = exchange(cluster, header + body)
    assert answer[:4] == struct.pack(">i", 5)
    assert answer[4 : 4 + tags] == b"\x00" * tags
    brokers = answer[4 + tags + 4] - 1 if tags else struct.unpack_from(">i", answer, 4)[0]
    assert brokers == 1


def test_controlled_shutdown_of_version_0_has_no_client_id(cluster: KlammCluster) -> None:
    """It has header version 0. On the client listener the answer is CLUSTER_AUTHORIZATION_FAILED."""
    (answer,) = exchange(cluster, struct.pack(">hhii", 7, 0, 9, 1))
    assert answer == struct.pack(">ihi", 9, 31, 0)


def test_limits_by_address_of_a_running_broker(tmp_path: Path) -> None:
    """The limit names the host. Connections of the broker itself from there count, too."""
    properties = {"max.connections.per.ip.overrides": "localhost:6"}
    with running_cluster(tmp_path, brokers=1, properties=properties) as limited:
        host, _, port = limited.bootstrap.partition(":")
        held = []
        try:
            while len(held) < 10:
                client = socket.create_connection((host, int(port)), timeout=10)
                held.append(client)
                client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
                try:
                    if not client.recv(4):
                        break
                except ConnectionResetError:
                    break
            assert 3 <= len(held) <= 7, "the controller's own connection counts, too"
        finally:
            for client in held:
                client.close()
        assert limited.log_text(1).count("more than 6 connections from") >= 1
