"""Keys and certificates of a deployment: an authority of its own, a server certificate, and one key
for every site.

The server proves itself with a certificate that the authority signed; a site proves itself with a
key whose public half the server knows (Flower's node authentication: ECDSA on P-384, in the files
that ssh-keygen would write).
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as files
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.core.errors import BadInput
from coterie.deploy.config_files import SERVER_DAYS

CA, CA_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "server.crt", "server.key"
SITE_KEY, SITE_PUBLIC = "site.key", "site.pub"
AUTHORITY_DAYS, EXPIRY_WARNING_DAYS = 3650, 30
LOOPBACK = ("localhost", "127.0.0.1")
USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def make_authority(folder: Path, days: int = AUTHORITY_DAYS) -> None:
    """The authority that signs server certificates; its key stays in this folder and is needed only
    to renew.
    """
    make_private_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    name = _common_name("coterie federation authority")
    builder = (
        _build_certificate(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    write_new(folder / CA_KEY, _to_pem(key), private=True)
    write_new(folder / CA, builder.sign(key, hashes.SHA384()).public_bytes(files.Encoding.PEM))


def make_server_certificate(
    authority: Path, folder: Path, hosts: Sequence[str], days: int = SERVER_DAYS
) -> None:
    """A key and a certificate for a server that is reached under these names and addresses, and
    from its own machine.
    """
    make_private_folder(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign_certificate(authority, key.public_key(), hosts, days)
    write_new(folder / KEY, _to_pem(key), private=True)
    write_new(folder / CERTIFICATE, certificate)
    write_new(folder / CA, (authority / CA).read_bytes())


def renew_server_certificate(
    authority: Path, folder: Path, hosts: Sequence[str] = (), days: int = SERVER_DAYS
) -> list[str]:
    """A new certificate for the server's key, for the same hosts where none are given; returns the
    hosts.
    """
    old = load_certificate(folder / CERTIFICATE)
    wanted = list(hosts) or hosts_of(old)
    temporary = folder / f"{CERTIFICATE}.part"
    temporary.write_bytes(_sign_certificate(authority, _public_key_of(old), wanted, days))
    os.replace(temporary, folder / CERTIFICATE)
    return hosts_of(load_certificate(folder / CERTIFICATE))


def make_site_key(folder: Path, name: str) -> None:
    """A site's key for node authentication, and its public half."""
    make_private_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        files.Encoding.PEM, files.PrivateFormat.OpenSSH, files.NoEncryption()
    )
    public = key.public_key().public_bytes(files.Encoding.OpenSSH, files.PublicFormat.OpenSSH)
    write_new(folder / SITE_KEY, private, private=True)
    write_new(folder / SITE_PUBLIC, public + f" {name}\n".encode())


def compute_fingerprint(public: str) -> str:
    """A public key as ssh-keygen -l names it; BadInput where it is no key of a site."""
    try:
        key = files.load_ssh_public_key(public.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise BadInput("this is no public key of a site") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise BadInput("this public key is of another kind than sites have (ECDSA on P-384)")
    digest = hashlib.sha256(b64decode(public.split()[1])).digest()
    return f"SHA256:{b64encode(digest).decode().rstrip('=')}"


def encode_header(public: str) -> str:
    """A site's public key as its requests carry it."""
    pem = files.load_ssh_public_key(public.encode()).public_bytes(
        files.Encoding.PEM, files.PublicFormat.SubjectPublicKeyInfo
    )
    return b64encode(pem).decode()


def days_left(certificate: Path) -> float:
    """Days until a certificate expires; negative where it has."""
    return (
        load_certificate(certificate).not_valid_after_utc - datetime.now(UTC)
    ).total_seconds() / 86400


def check_expiry(certificate: Path, way: str) -> str:
    """A warning where a certificate expires soon, "" where it does not; an expired one is
    refused.
    """
    left = days_left(certificate)
    if left <= 0:
        raise BadInput(f"{certificate} expired {-left:.0f} days ago: {way}")
    return f"{certificate} expires in {left:.0f} days: {way}" if left < EXPIRY_WARNING_DAYS else ""


def check_private(key: Path) -> None:
    """Refuse a private key that is missing or that others on this machine may read."""
    if not key.is_file():
        raise BadInput(f"{key} is missing: copy it from where `coterie federation init` made it")
    if key.stat().st_mode & 0o077:
        raise BadInput(f"{key} can be read by others: chmod 600 {key}")


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a certificate is for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]


def make_private_folder(folder: Path) -> None:
    """A folder that only its owner may enter."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def write_new(path: Path, content: bytes, private: bool = False) -> None:
    """A file that was not there before; a private one is never readable by others, not even for a
    moment.
    """
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    except FileExistsError:
        raise BadInput(
            f"{path} exists already and is not overwritten: give another folder, or move it away"
        ) from None
    with os.fdopen(number, "wb") as file:
        file.write(content)


def _sign_certificate(
    authority: Path, public: ec.EllipticCurvePublicKey, hosts: Sequence[str], days: int
) -> bytes:
    """A server certificate as PEM."""
    if not 1 <= days <= AUTHORITY_DAYS:
        raise BadInput(f"days = {days}: give a number from 1 to {AUTHORITY_DAYS}")
    issuer, key = load_certificate(authority / CA), _authority_key(authority)
    left = int(days_left(authority / CA))
    if days > left:
        raise BadInput(
            f"days = {days}, but {authority / CA} itself expires in {left} days: lower --days, or "
            "make a new deployment"
        )
    everywhere = list(dict.fromkeys([*hosts, *LOOPBACK]))
    builder = (
        _build_certificate(_common_name(everywhere[0][:64]), issuer.subject, public, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in everywhere]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    return builder.sign(key, hashes.SHA384()).public_bytes(files.Encoding.PEM)


def _build_certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    start = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - timedelta(minutes=5))  # clocks of sites may be a little behind
        .not_valid_after(start + timedelta(days=days))
    )


def load_certificate(path: Path) -> x509.Certificate:
    """A certificate file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(
            f"{path} is missing: copy it from where `coterie federation init` made it"
        ) from None
    except ValueError:
        raise BadInput(
            f"{path} is no certificate in PEM format: copy it again from where `coterie "
            "federation init` made it"
        ) from None


def _authority_key(authority: Path) -> ec.EllipticCurvePrivateKey:
    path = authority / CA_KEY
    check_private(path)
    try:
        key = files.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        raise BadInput(f"{path} is no private key in PEM format: restore it from a copy") from None
    if (
        not isinstance(key, ec.EllipticCurvePrivateKey)
        or key.public_key() != load_certificate(authority / CA).public_key()
    ):
        raise BadInput(f"{path} does not belong to {authority / CA}: restore both from a copy")
    return key


def _public_key_of(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadInput(
            "the server's certificate has no elliptic-curve key: make a new deployment with "
            "`coterie federation init`"
        )
    return key


def _key_usage(*wanted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in wanted for use in USES})


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(files.Encoding.PEM, files.PrivateFormat.PKCS8, files.NoEncryption())
