"""Keys, requests and certificates of nodes, in the few forms that FedGSP uses. All work is done by `cryptography`."""

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

Key = ec.EllipticCurvePrivateKey

#: A certificate is good from so long before it was made, because the clocks of two machines differ.
BACKDATED = dt.timedelta(hours=1)
#: The bytes of the number that is a P-256 key.
KEY_BYTES = 32
_CURVE = ec.SECP256R1


def new_key() -> Key:
    """A fresh P-256 key."""
    return ec.generate_private_key(_CURVE())


def number_of(key: Key) -> bytes:
    """The key as its number, in 32 bytes."""
    return key.private_numbers().private_value.to_bytes(KEY_BYTES, "big")


def key_of(number: bytes) -> Key:
    """The inverse of `number_of`; raises ValueError."""
    return ec.derive_private_key(int.from_bytes(number, "big"), _CURVE())


def request_for(key: Key) -> bytes:
    """A certificate signing request (DER) that shows that the caller has this key, and asks for nothing else."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.DER)


def read(der: bytes) -> x509.Certificate:
    """A certificate from DER; raises ValueError."""
    return x509.load_der_x509_certificate(der)


def pem_of(certificate: x509.Certificate) -> bytes:
    """A certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def pem_of_key(key: Key) -> bytes:
    """A key in PEM, unencrypted."""
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)


def p12_of(name: str, key: Key, certificate: x509.Certificate, ca: x509.Certificate, password: str) -> bytes:
    """A certificate with its key and its CA in PKCS #12, which browsers import; encrypted with the password."""
    locked = serialization.BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [ca], locked)


def belongs(certificate: x509.Certificate, key: Key) -> bool:
    """Whether a certificate is for this key."""
    return certificate.public_key() == key.public_key()


def uris_of(certificate: x509.Certificate) -> list[str]:
    """The URIs in the subjectAltName of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def renewal_due(certificate: x509.Certificate) -> dt.datetime:
    """When a certificate should be replaced: at two thirds of its life."""
    end = certificate.not_valid_after_utc
    return end - (end - certificate.not_valid_before_utc - BACKDATED) / 3


def is_fresh(certificate: x509.Certificate, at: dt.datetime) -> bool:
    """Whether a certificate is good at a time, and not due yet.

    It is not good yet if the clock was ahead when it was made, and was set back since.
    """
    return certificate.not_valid_before_utc <= at < renewal_due(certificate)


def now() -> dt.datetime:
    """This moment."""
    return dt.datetime.now(dt.UTC)
