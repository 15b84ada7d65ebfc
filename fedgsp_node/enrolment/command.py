"""The command `fedgsp-node enrol`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedgsp import logs
from fedgsp.connections.addresses import check_address
from fedgsp.connections.proxy import Proxy, proxy_of
from fedgsp.errors import ConfigError, reason_of
from fedgsp.files import read_text
from fedgsp.processes import lifecycle
from fedgsp.settings.proxies import PASSWORD_VARIABLE
from fedgsp.stdout import echo

#: Most bytes of a file with a token.
_MOST = 20_000


def enrol(
    token: Annotated[
        str, typer.Argument(help="the token of `top-server invite`; @FILE reads it from a file, - from standard input")
    ],
    top_server: Annotated[
        str, typer.Option("--top-server", metavar="HOST:PORT", help="the top server, which has to run")
    ],
    identity: Annotated[
        Path, typer.Option("--identity", metavar="DIRECTORY", help="where the certificate and its key are kept")
    ] = Path("identity"),
    proxy: Annotated[
        str | None,
        typer.Option(
            "--proxy",
            metavar="http://[USER@]HOST:PORT",
            help="an HTTP proxy that opens the connection (CONNECT); HTTP_PROXY and the like are not read",
        ),
    ] = None,
    proxy_password: Annotated[
        Path | None,
        typer.Option(
            "--proxy-password",
            metavar="FILE",
            help=f"file with the password of USER; the environment variable {PASSWORD_VARIABLE} may have it too",
        ),
    ] = None,
) -> None:
    """Get a certificate for this node: make a key here, and exchange the token of an invitation for a certificate."""
    check_address("--top-server", top_server)
    logs.configure()
    raise typer.Exit(lifecycle.run(_enrol(_read(token), top_server, identity, proxy_of(proxy, proxy_password))))


async def _enrol(token: str, top_server: str, identity: Path, proxy: Proxy | None = None) -> None:
    from fedgsp.security.certificates import read  # here: --help needs no cryptography
    from fedgsp.security.invitation import invitation_in
    from fedgsp_node.enrolment import client, folder

    invitation = invitation_in(token)
    certificate, did = folder.prepare(identity, invitation), "was enrolled already"
    if certificate is None:
        key, did = folder.key_for_enrolment(identity), "is enrolled"
        certificate = await client.enrol(invitation, key, top_server, proxy)
        folder.write(identity, read(invitation.ca), certificate, key)
    echo(
        f"node {invitation.name} {did}, with a certificate until {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC;"
        f" fedgsp-node start --identity {identity} uses and renews it"
    )


def _read(token: str) -> str:
    """The token itself, or what stands in a file or on standard input in its place; raises ConfigError."""
    if token == "-":
        return sys.stdin.read(_MOST)
    if not token.startswith("@"):
        return token
    try:
        return read_text(Path(token[1:]), _MOST)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{token[1:200]} cannot be read: {reason_of(error)}", "give the file of a token after the @"
        ) from None
