"""Certificates for tests: an authority and what it signs, made by openssl in a moment."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from schedkit.net.channel import TLS


@dataclass(frozen=True, slots=True)
class Authority:
    """A folder with `ca.pem` and its key."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, name: str = "test authority") -> Authority:
        """A new authority in `folder`, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        _openssl(folder, "req", "-x509", *_KEY, "ca.key", "-out", "ca.pem", *_for(name))
        return cls(folder)

    def issue(self, name: str, *, san: str = "IP:127.0.0.1,DNS:localhost") -> TLS:
        """A certificate for server and client alike; again for the same name: a fresh one."""
        request = ["req", *_KEY, f"{name}.key", "-out", f"{name}.csr", *_for(name)]
        _openssl(self.folder, *request)
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={san}\n")
        authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        files = ["-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", extensions.name]
        _openssl(self.folder, "x509", "-req", *authority, *files)
        folder = self.folder
        return TLS(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")


def _for(name: str) -> tuple[str, ...]:
    return ("-days", "2", "-subj", f"/CN={name}")


def _openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)
