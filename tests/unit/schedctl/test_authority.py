"""Certificates that `schedctl auth` issues: their names and their uses."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from schedctl.authority import Authority, Subject
from schedctl.failure import UnfitEnvironment
from schedd.core.auth.rights import IdentityKind, Role, identity_of, uri_of, uris_of_user
from schedkit.clock import utcnow
from schedkit.net.certificates import first_of

DAY = timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca")


def read(file: Path | None) -> x509.Certificate:
    assert file is not None
    return x509.load_pem_x509_certificate(file.read_bytes())


def purposes(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_keys_are_readable_only_by_their_owner(authority: Authority, tmp_path: Path) -> None:
    tls = authority.issue(Subject("w1", [uri_of(IdentityKind.WORKER, "w1")]), tmp_path / "w1", DAY)
    for key in (authority.folder / "ca.key", tls.key):
        assert key is not None
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_member_certificate_names_its_hosts_and_a_worker_certificate_none(
    authority: Authority, tmp_path: Path
) -> None:
    hosts = ("m1.example.com", "10.0.0.1", "::1")
    subject = Subject("m1", [uri_of(IdentityKind.MEMBER, "m1")], hosts)
    member = read(authority.issue(subject, tmp_path, DAY).cert)
    assert names(member).get_values_for_type(x509.DNSName) == ["m1.example.com"]
    assert [str(ip) for ip in names(member).get_values_for_type(x509.IPAddress)] == [*hosts[1:]]
    assert ExtendedKeyUsageOID.SERVER_AUTH in purposes(member)
    worker = read(
        authority.issue(Subject("w1", [uri_of(IdentityKind.WORKER, "w1")]), tmp_path, DAY).cert
    )
    assert purposes(worker) == {ExtendedKeyUsageOID.CLIENT_AUTH}
    who = identity_of(names(worker).get_values_for_type(x509.UniformResourceIdentifier))
    assert who is not None
    assert who.actor == "worker/w1"


def test_a_certificate_ends_at_the_given_time_and_has_its_issuer(
    authority: Authority, tmp_path: Path
) -> None:
    tls = authority.issue(Subject("w1", [uri_of(IdentityKind.WORKER, "w1")]), tmp_path, DAY)
    assert tls.cert is not None
    assert abs(first_of(tls.cert.read_bytes()).not_after - utcnow() - DAY) < timedelta(minutes=1)
    assert tls.ca.read_bytes() == authority.certificate.read_bytes()
    read(tls.cert).verify_directly_issued_by(read(authority.certificate))


def test_an_authority_signs_no_other_authority(authority: Authority) -> None:
    constraints = read(authority.certificate).extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


def test_a_folder_holds_only_one_authority(authority: Authority) -> None:
    with pytest.raises(UnfitEnvironment, match="a certificate authority already exists in"):
        Authority.create(authority.folder)


def test_a_missing_authority_error_says_how_to_create_one(tmp_path: Path) -> None:
    with pytest.raises(UnfitEnvironment, match="no certificate authority found in"):
        Authority(tmp_path).issue(Subject("w1", []), tmp_path, DAY)


def test_an_authority_is_not_created_beside_a_key_without_certificate(tmp_path: Path) -> None:
    """The key may be the only one of an authority in use."""
    (tmp_path / "ca.key").write_text("a key")
    with pytest.raises(UnfitEnvironment, match="exists without its certificate"):
        Authority.create(tmp_path)
    assert (tmp_path / "ca.key").read_text() == "a key"


def test_files_that_are_not_an_authority_sign_nothing(authority: Authority, tmp_path: Path) -> None:
    worker = authority.issue(
        Subject("w1", [uri_of(IdentityKind.WORKER, "w1")]), tmp_path / "w1", DAY
    )
    assert worker.cert is not None
    assert worker.key is not None
    worker.cert.rename(tmp_path / "w1" / "ca.pem")
    worker.key.rename(tmp_path / "w1" / "ca.key")
    with pytest.raises(
        UnfitEnvironment, match=r"ca\.pem isn't that of a certificate authority"
    ) as error:
        Authority(tmp_path / "w1").issue(Subject("w2", []), tmp_path / "w2", DAY)
    assert "--ca-dir" in error.value.remedy
    assert not (tmp_path / "w2").exists()


def test_a_new_certificate_replaces_the_earlier_one_of_its_subject(
    authority: Authority, tmp_path: Path
) -> None:
    first = authority.issue(Subject("a", uris_of_user("a", Role.ADMIN, ["*"])), tmp_path, DAY)
    assert first.cert is not None
    assert first.key is not None
    before = first.cert.read_bytes(), first.key.read_bytes()
    authority.issue(Subject("a", uris_of_user("a", Role.VIEWER, ["b", "c"])), tmp_path, DAY)
    assert first.cert.read_bytes() != before[0]
    assert first.key.read_bytes() != before[1]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.key", "a.pem", "ca", "ca.pem"]


def test_files_of_another_subject_are_not_replaced(authority: Authority, tmp_path: Path) -> None:
    w1, out = Subject("one", [uri_of(IdentityKind.WORKER, "one")]), tmp_path / "out"
    authority.issue(w1, out, DAY)
    other = Authority.create(tmp_path / "other")
    (out / "root.pem").write_bytes(other.certificate.read_bytes())
    (out / "lone.key").write_text("a key")
    (out / "text.pem").write_text("not a certificate")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    for name, said in (
        ("one", r"one\.pem has the certificate of another subject, worker/one"),
        ("root", r"root\.pem exists, and isn't a certificate of schedd"),
        ("text", r"text\.pem exists, and isn't a certificate of schedd"),
        ("lone", r"the key file .*lone\.key exists without its certificate .*lone\.pem.*"),
    ):
        with pytest.raises(UnfitEnvironment, match=f"{said}; the file isn't changed"):
            authority.issue(Subject(name, uris_of_user(name, Role.ADMIN, ["*"])), out, DAY)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_a_key_that_isnt_its_certificates_signs_nothing(
    authority: Authority, tmp_path: Path
) -> None:
    """No peer would trust its certificates."""
    other, out = Authority.create(tmp_path / "other"), tmp_path / "out"
    (authority.folder / "ca.key").write_bytes((other.folder / "ca.key").read_bytes())
    with pytest.raises(
        UnfitEnvironment, match=r"ca\.key doesn't belong to the certificate .*ca\.pem"
    ) as error:
        authority.issue(Subject("w1", [uri_of(IdentityKind.WORKER, "w1")]), out, DAY)
    assert "--ca-dir" in error.value.remedy
    assert not out.exists()


def test_a_file_of_several_authorities_is_kept_and_one_of_another_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    other, out = Authority.create(tmp_path / "other"), tmp_path / "out"
    worker = Subject("w1", [uri_of(IdentityKind.WORKER, "w1")])
    other.issue(worker, out, DAY)
    with pytest.raises(UnfitEnvironment, match="doesn't contain the certificate of this authority"):
        authority.issue(worker, out, DAY)
    both = other.certificate.read_bytes() + authority.certificate.read_bytes()
    (out / "ca.pem").write_bytes(both)
    authority.issue(worker, out, DAY)
    assert (out / "ca.pem").read_bytes() == both
