"""Certificates of a run's proxy: an authority made for one run signs one certificate.

The authority's key is dropped as soon as it has signed, so nothing else can ever be signed with it. Only the
run's own trainers trust the authority. Import this module late: it loads a large library.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from reconciler.training_service.jobs.environment_variables import STORAGE_HOSTS

_VALID = timedelta(days=90)  # longer than any run
_SKEW = timedelta(days=1)


def make_certificates() -> bytes:
    """Return, as PEM, the key of the proxy's certificate, that certificate, and its authority's."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = _name("Authority of one run of reconciler")
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    authority = (
        _builder(name, name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(_names(), None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    own = (
        _builder(_name("Cloud Storage in one run of reconciler"), name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([*_names(), x509.DNSName("*.storage.googleapis.com")]), critical=False
        )
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + own.public_bytes(Encoding.PEM) + authority.public_bytes(Encoding.PEM)


def _names() -> list[x509.DNSName]:
    return [x509.DNSName(host) for host in STORAGE_HOSTS]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
