"""The commands of `top-server` that change a federation: invite, assign, operator, revoke."""

import contextlib
import secrets
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from fedgsp.connections.addresses import check_host
from fedgsp.durations import seconds_in
from fedgsp.errors import ConfigError, UserError, not_written
from fedgsp.files import write_secret
from fedgsp.names import TASK_RULE, is_task
from fedgsp.options import parse_clients
from fedgsp.stdout import tell_once
from fedgsp.words import counted

#: The longest life of an invitation, and of a node's certificate, in seconds.
MOST_INVITATION_S, MOST_CERTIFICATE_S = 30 * 86_400, 366 * 86_400
#: The shortest life of a node's certificate, in seconds. Nodes look once a minute whether two thirds of it are over.
LEAST_CERTIFICATE_S = 600
_WHY_NOT_SHORTER = (
    "a node renews its certificate in the last third of its life, and needs some minutes for several tries"
)
_Name = Annotated[str, typer.Argument(help="the name of the node")]
_Clients = Annotated[
    str, typer.Option("--clients", metavar="IDS", help="the ids of the clients that the node may host: 4-7,9")
]
_Task = Annotated[str, typer.Option("--task", help="the task of these clients, as the top server is given it")]
_Folder = Annotated[Path, typer.Option("--federation", metavar="DIRECTORY", help="the folder of the federation")]


def invite(
    name: _Name,
    *,
    clients: _Clients,
    task: _Task = "digits",
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="a host by which other nodes dial it (--peer-listen); repeatable"),
    ] = None,
    valid_for: Annotated[
        str, typer.Option("--valid-for", metavar="DURATION", help="how long the token is good: 90s, 30m, 24h, 7d")
    ] = "24h",
    certificate_for: Annotated[
        str,
        typer.Option(
            "--certificate-for",
            metavar="DURATION",
            help="how long each certificate of the node is good, from 10m on",
        ),
    ] = "7d",
    federation: _Folder = Path("federation"),
) -> None:
    """Invite a node: print a token that is good once, and register the clients that belong to the node.

    The first invitation makes the folder of the federation.
    """
    told = _checked(task, clients)
    for one in host or []:
        check_host("--host", one)
    valid_s = seconds_in("--valid-for", valid_for, MOST_INVITATION_S)
    certificate_s = seconds_in(
        "--certificate-for", certificate_for, MOST_CERTIFICATE_S, LEAST_CERTIFICATE_S, _WHY_NOT_SHORTER
    )
    from top_server.federation.folder import made  # here: --help needs no cryptography
    from top_server.federation.registry import EMPTY, Entry, State, new_enrolment

    now = time.time()
    entry = Entry(
        clients={task: clients},
        hosts=tuple(one.strip("[]") for one in host or []),
        certificate_s=certificate_s,
        enrolment=new_enrolment(),
        state=State.INVITED,
        invited_until=now + valid_s,
    )
    EMPTY.invited(name, entry, now)  # a wrong name makes no folder
    folder = made(federation)
    authority, older = folder.authority(), folder.registry().nodes.get(name)
    folder.change(lambda registry: registry.invited(name, entry, now))
    tell_once("the token", authority.for_invitation(name, entry).token, "run the same command again")
    sys.stderr.write(
        f"{name} is invited with {told} of task {task}, for {valid_for}; write the token into a file on its"
        " machine, and run there: fedgsp-node enrol @FILE --top-server HOST:PORT\n"
    )
    if older is not None and older.state is State.INVITED:
        sys.stderr.write(f"the token of the earlier invitation of {name} is not good any more\n")


def assign(
    name: _Name, *, clients: _Clients, task: _Task = "digits", federation: _Folder = Path("federation")
) -> None:
    """Give a node that is invited or enrolled other clients of a task. Its clients of other tasks stay as they are."""
    told = _checked(task, clients)
    from top_server.federation.folder import opened

    opened(federation).change(lambda registry: registry.assigned(name, task, clients, time.time()))
    sys.stderr.write(f"{name} has {told} of task {task} when it joins next\n")


def operator(
    name: Annotated[str, typer.Argument(help="the name of the operator")],
    *,
    valid_for: Annotated[
        str, typer.Option("--valid-for", metavar="DURATION", help="how long the certificate is good: 12h, 30d")
    ] = "30d",
    out: Annotated[Path, typer.Option("--out", metavar="DIRECTORY", help="the folder for the two files")] = Path(),
    federation: _Folder = Path("federation"),
) -> None:
    """Give a person or a program a certificate to watch runs: NAME.p12 for a browser, NAME.pem for other programs.

    Prints the password of NAME.p12. NAME.pem has the certificate and its key, without a password.
    """
    valid_s = seconds_in("--valid-for", valid_for, MOST_CERTIFICATE_S)
    from fedgsp.security.certificates import new_key, p12_of, pem_of, pem_of_key  # here: --help needs no cryptography
    from top_server.federation.folder import opened
    from top_server.federation.registry import EMPTY, Operator, new_enrolment

    now = time.time()
    added = Operator(new_enrolment(), now + valid_s)
    EMPTY.watched_by(name, added, now)  # a wrong name is no name of a file
    folder = opened(federation)
    files = out / f"{name}.p12", out / f"{name}.pem"
    for file in files:
        ConfigError.require(not file.exists(), f"{file} is there already", "move it, or give another --out")
    authority, key, password = folder.authority(), new_key(), secrets.token_urlsafe(15)
    certificate = authority.for_operator(name, added, key.public_key())
    folder.change(lambda registry: registry.watched_by(name, added, now))
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_secret(files[0], p12_of(name, key, certificate, authority.certificate, password))
        write_secret(files[1], pem_of(certificate) + pem_of_key(key))
        tell_once("the password", password, "run the same command again")
    except (OSError, UserError) as error:
        with contextlib.suppress(OSError):  # they are not there, or cannot be
            for file in files:
                file.unlink(missing_ok=True)
        folder.change(lambda registry: registry.without_operator(name, now))
        raise not_written(out, error) if isinstance(error, OSError) else error from None
    sys.stderr.write(
        f"{name} may watch runs for {valid_for}: import {files[0]} into the browser with the password above, and"
        f" {folder.path / 'ca.pem'} as an authority; other programs use {files[1]}\n"
    )


def revoke(
    name: Annotated[str, typer.Argument(help="the name of the node, or of the operator")],
    *,
    operator: Annotated[bool, typer.Option("--operator", help="revoke an operator, and not a node")] = False,
    federation: _Folder = Path("federation"),
) -> None:
    """Revoke a node or an operator: its certificates are not good any more, also in a run that is up.

    A node can be invited anew, and an operator can get a new certificate.
    """
    from top_server.federation.folder import opened
    from top_server.federation.registry import Registry

    without = Registry.without_operator if operator else Registry.without
    opened(federation).change(lambda registry: without(registry, name, time.time()))
    sys.stderr.write(f"{name} is revoked; a top server that runs notices within seconds\n")


def _checked(task: str, clients: str) -> str:
    """How the clients are told to the user: with their number, which tells `12` from twelve clients."""
    hosted = parse_clients(clients)
    ConfigError.require(is_task(task), f"--task {task[:100]!r} cannot be the name of a task", f"write {TASK_RULE}")
    return f"{counted(len(hosted), 'client')} ({clients})"
