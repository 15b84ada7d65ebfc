"""Settles a run when the clients of its first round are known: open settings get values, and the groups are told."""

from fedgsp.settings.run import RunConfig
from top_server.choosing import choose
from top_server.fitted import fitted, in_words
from top_server.outlook import doubts, outlook
from top_server.record.audit import Audit
from top_server.record.directory import RunDirectory, digest_of_config, write_config
from top_server.record.events.run import GroupsDoubted, GroupsExpected, SettingsChosen
from top_server.record.journal import Journal
from top_server.schemes import Scheme


def settle(
    config: RunConfig, clients: int, directory: RunDirectory, journal: Journal, audit: Audit
) -> tuple[RunConfig, Scheme]:
    """The settings with a value for each open one, and the scheme; both are recorded, and told in words.

    Clients that join later change no setting: else the record of the run would not repeat it. Raises RunError if the
    settings cannot be written.
    """
    choice = fitted(config, choose(config), clients)
    if choice.config != config:
        write_config(directory, choice.config, audit)
    else:
        audit.note("settled", settings=digest_of_config(directory))
    settled = choice.config
    scheme = choose(settled)
    if choice.chosen:
        journal.record(SettingsChosen(clients=clients, settings="; ".join(in_words(choice.chosen))))
    journal.record(GroupsExpected(clients=clients, outlook=outlook(settled, scheme, clients)))
    for doubt in doubts(settled, scheme, clients):
        journal.record(GroupsDoubted(reason=doubt))
    return settled, scheme
