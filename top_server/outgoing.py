"""Which steps nodes take between a trained model and the model that leaves them."""

from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.messages import OutgoingStep
from fedgsp.outgoing import HEAD, OUTGOING, ROUNDING
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.encoding import BFLOAT16
from top_server.schemes import Scheme


def outgoing_steps(config: RunConfig, scheme: Scheme) -> tuple[OutgoingStep, ...]:
    """The steps of a run, in the order in which nodes take them."""
    return (
        *([OutgoingStep(HEAD)] if scheme.without_head else []),
        *(OutgoingStep(name, _options(config, name)) for name in config.outgoing),
        *([OutgoingStep(ROUNDING)] if config.wire_dtype == BFLOAT16 else []),
    )


def check_outgoing(config: RunConfig, scheme: Scheme, profile_options: Any) -> None:
    """Raises ConfigError for an option that no step has, and for a reveal that would bypass a step."""
    for name in config.outgoing:
        OUTGOING[name].read(_options(config, name))
    for option in config.outgoing_option:
        if not any(option.startswith(f"{name}.") for name in config.outgoing):
            written = [f"{name}.KEY=VALUE" for name in config.outgoing] or ["--outgoing STEP too"]
            raise ConfigError(
                f"--outgoing-option {option} is for no step of --outgoing", f"write {' or '.join(written)}"
            )
    if config.outgoing and scheme.without_head and getattr(profile_options, "similarity_of", "shared") == "all":
        raise ConfigError(
            f"clients would reveal updates of their heads, which --outgoing {config.outgoing[0]} does not see: the"
            f" heads of scheme {config.scheme} stay with the clients",
            "leave out --profile-option similarity_of=all",
        )


def _options(config: RunConfig, name: str) -> dict[str, str]:
    """The options of one step: those of `--outgoing-option` that begin with its name."""
    lead = f"{name}."
    return {key.removeprefix(lead): text for key, text in config.outgoing_option.items() if key.startswith(lead)}
