"""The folder of a node's identity: `ca.pem`, and `node.pem` with its certificate and key, for its owner alone."""

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedgsp.errors import ConfigError, not_written
from fedgsp.files import MOST_OF_PEM, read_secret, write_secret
from fedgsp.identity import enrolment_in, identity_in
from fedgsp.owners import check_tree
from fedgsp.security.certificates import Key, new_key, now, pem_of, pem_of_key, uris_of
from fedgsp.security.invitation import Invitation
from fedgsp.security.tls import ENROL_ANEW, TlsFiles, in_folder

FLAG = "--identity"
#: The file of a key that has no certificate yet.
_ENROLLING = "enrolling.pem"
_REMEDY = "ask for an invitation (top-server invite), then run: fedgsp-node enrol"


def files_in(path: Path) -> TlsFiles:
    """The files of TLS in the folder."""
    return in_folder(path, "node", FLAG)


def certificate_in(path: Path) -> x509.Certificate:
    """The certificate of this node; raises ConfigError if there is none, or if others can change the folder."""
    file = files_in(path).cert
    try:
        content = read_secret(file, MOST_OF_PEM)[0]
        found = x509.load_pem_x509_certificate(content)
    except FileNotFoundError:
        raise ConfigError(f"{FLAG} {path} holds no identity", _REMEDY) from None
    except OSError as error:
        raise ConfigError(f"{FLAG}: {file} cannot be read: {error.strerror}", "give a folder of your own") from None
    except ValueError:
        raise ConfigError(f"{FLAG}: {file} holds no certificate", _REMEDY) from None
    check_tree(FLAG, path)
    return found


def check(path: Path) -> None:
    """Raises ConfigError unless the folder has a certificate that is good now."""
    end = certificate_in(path).not_valid_after_utc
    ConfigError.require(end > now(), f"the certificate in {FLAG} {path} ended on {end:%Y-%m-%d %H:%M} UTC", ENROL_ANEW)


def prepare(path: Path, invitation: Invitation) -> x509.Certificate | None:
    """Makes the folder if it is missing. Returns the certificate in it, if it came from this invitation and is good.

    Raises ConfigError if the folder has the identity of another node.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(path, error) from error
    check_tree(FLAG, path)
    if not files_in(path).cert.exists():
        return None
    certificate = certificate_in(path)
    uris = uris_of(certificate)
    found = identity_in(uris)
    ConfigError.require(
        found is not None and found.name == invitation.name,
        f"{FLAG} {path} is that of {found or 'another program'}",
        "give another folder",
    )
    same = enrolment_in(uris) == enrolment_in(uris_of(invitation.opened))
    return certificate if same and certificate.not_valid_after_utc > now() else None


def key_for_enrolment(path: Path) -> Key:
    """The key with which this node enrols. It stays in the folder until `write`.

    So an enrolment whose answer was lost can be repeated: the top server gives a certificate again for the same key.
    """
    file = path / _ENROLLING
    try:
        found = load_pem_private_key(read_secret(file, MOST_OF_PEM)[0], None)
        if isinstance(found, Key):
            return found
    except (OSError, ValueError, TypeError):  # there is none, or it is damaged
        pass
    key = new_key()
    write_secret(file, pem_of_key(key))
    return key


def write(path: Path, ca: x509.Certificate | None, certificate: x509.Certificate, key: Key) -> None:
    """Puts a new certificate and its key in place of the old ones, at once; and the CA, if one is given."""
    files = files_in(path)
    if ca is not None:
        write_secret(files.ca, pem_of(ca))
    write_secret(files.cert, pem_of(certificate) + pem_of_key(key))
    (path / _ENROLLING).unlink(missing_ok=True)
