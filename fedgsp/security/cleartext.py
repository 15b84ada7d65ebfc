"""Connections without TLS stay on this machine, unless the user lets them leave it with --insecure."""

from fedgsp.connections.addresses import is_near, split_address
from fedgsp.errors import ConfigError

REMEDY = (
    "let `top-server invite` and `fedgsp-node enrol` make certificates, and give the top server --federation and each"
    " node --identity (docs/tls.md); or give --tls-ca, --tls-cert and --tls-key of your own CA, or --insecure if"
    " nobody else can reach that network"
)


def check_cleartext(what: str, address: str, insecure: bool) -> None:
    """Raises ConfigError if `what`, at `address`, is for other machines and its connections have no TLS.

    With `insecure` the user has allowed that.
    """
    if not insecure and leaves_machine(address):
        raise ConfigError(f"{what} {address} is not on this machine's loopback, and connections have no TLS", REMEDY)


def leaves_machine(address: str) -> bool:
    """Whether other machines can take part in connections at host:port; raises ConfigError for another text.

    A host that is neither a loopback address nor `localhost` counts, also if it stands for this machine.
    """
    return not is_near(split_address(address)[0])
