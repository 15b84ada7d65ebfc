"""How clients of a run take their steps: optimiser, schedules, clipping and accumulation, from the settings."""

from collections.abc import Iterable, Iterator
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.messages import Hello, HostedClient, OptimizerSettings, TrainingSettings
from fedgsp.optimizers import AUTO, FRESH, RELAYED, SgdOptions, relayed_entries
from fedgsp.schedules import CONSTANT, plan
from fedgsp.settings.checks import flag
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.encoding import BFLOAT16
from fedgsp.trainings import TRAININGS
from fedgsp.visible import visible
from fedgsp.words import share
from top_server.profiles import PROFILES
from top_server.profiles.options import PriorOptions
from top_server.schemes import Scheme

FULL, HALF = "float32", "float16"


def optimizer_settings(config: RunConfig, scheme: Scheme) -> OptimizerSettings:
    """What a training order says about its steps."""
    return OptimizerSettings(
        scheme.optimizer,
        scheme.given("optimizer"),
        config.local_schedule if config.local_schedule_option or config.local_schedule != CONSTANT else "",
        config.local_schedule_option,
        config.clip_norm or 0.0,
        config.accumulate,
        "" if config.precision == FULL else config.precision,
        "" if config.optimizer_state == FRESH else config.optimizer_state,
    )


def training_settings(
    config: RunConfig, scheme: Scheme, round_number: int, training: str | None = None, local_epochs: int | None = None
) -> TrainingSettings:
    """What a training order of a round says, perhaps with another `training`, without options, or other epochs."""
    return TrainingSettings(
        training or scheme.training,
        local_epochs or config.local_epochs,
        config.batch_size,
        config.learning_rate_in(round_number),
        config.seed,
        {} if training else scheme.given("training"),
        config.wire_dtype == BFLOAT16,
        optimizer_settings(config, scheme),
    )


def check_schedules(config: RunConfig) -> None:
    """Raises ConfigError for a wrong option of a schedule, or a horizon that does not fit."""
    plan(config.local_schedule, config.local_schedule_option)
    rounds = plan(config.schedule, config.schedule_option)
    if rounds.schedule.ends and rounds.horizon is None:
        raise ConfigError(
            f"--schedule {config.schedule} needs a horizon, the number of rounds at which it ends",
            f"give --schedule-option horizon={config.rounds}",
        )
    if rounds.horizon is not None and config.rounds > rounds.horizon:
        raise ConfigError(
            f"--rounds is {config.rounds}, and the horizon of --schedule {config.schedule} is {rounds.horizon} rounds",
            f"give --schedule-option horizon={config.rounds}, or fewer rounds",
        )


def told_horizon(config: RunConfig, scheme: Scheme, hosted: Iterable[HostedClient]) -> Iterator[str]:
    """What people should know before a run in which some trainings have more steps than the local schedule has.

    Raises ConfigError if all have. Clients that join later do not count: this is about a run in which nobody trains.
    """
    horizon = plan(config.local_schedule, config.local_schedule_option).horizon
    if horizon is None:
        return
    sizes = [one.train_samples for one in hosted]
    profile = PROFILES[scheme.profile].read(scheme.given("profile"))
    prior = profile.epochs(config) if isinstance(profile, PriorOptions) else 0
    epochs = max(config.local_epochs, prior)

    def steps(batches: int) -> int:
        return -(-batches * epochs // config.accumulate)

    # A short last batch may be left out: the task and the model decide.
    beyond = [size for size in sizes if steps(max(1, size // config.batch_size)) > horizon]
    if not beyond:
        return
    enough = steps(-(-max(sizes) // config.batch_size))
    what = f"more steps than the horizon {horizon} of --local-schedule {config.local_schedule}"
    remedy = f"--local-schedule-option horizon={enough}"
    fate, alone, fewer = "be skipped", "", ""
    if prior > config.local_epochs:
        fate, alone = "have no prior model", f" alone, for {prior} epochs,"
        fewer = ", or fewer epochs (--profile-option prior_epochs)"
    if len(beyond) == len(sizes):
        raise ConfigError(f"the training of every client{alone} has {what}", f"give {remedy}, or no horizon{fewer}")
    some = share(len(beyond), len(sizes), "client")
    yield f"{some} will {fate}: their trainings{alone} have {what}; give {remedy}, which is enough{fewer}"


def check_optimizer(config: RunConfig, scheme: Scheme, options: Any) -> None:
    """Raises ConfigError for steps for which a formula of the scheme does not hold (section 7)."""
    if TRAININGS[scheme.training].plain:
        changed = [
            flag(name)
            for name, plain in (
                ("local_schedule", CONSTANT),
                ("clip_norm", None),
                ("accumulate", 1),
                ("precision", FULL),
                ("optimizer_state", FRESH),
            )
            if getattr(config, name) != plain
        ]
        if changed or (scheme.optimizer != AUTO and options != SgdOptions()):
            raise ConfigError(
                f"training {scheme.training} is defined by plain SGD steps",
                f"leave out {' and '.join(changed) or '--optimizer-option'}, or choose another --training",
            )
    if scheme.optimizer == "rprop" and (config.schedule != CONSTANT or config.local_schedule != CONSTANT):
        raise ConfigError(
            "optimizer rprop finds its own step sizes, so that a schedule would change nothing after the first step",
            "leave out --schedule and --local-schedule, or choose another --optimizer",
        )
    if config.optimizer_state != FRESH:
        _check_state(config, scheme, options)
    if scheme.aggregation == "fednova" and isinstance(options, SgdOptions) and options.weight_decay:
        raise ConfigError(
            "aggregation fednova divides by the share of the gradients in an update, and weight decay is no gradient",
            "leave out --optimizer-option weight_decay",
        )


def _check_state(config: RunConfig, scheme: Scheme, options: Any) -> None:
    given = f"--optimizer-state {config.optimizer_state}"
    if isinstance(options, SgdOptions) and not options.momentum:
        raise ConfigError(
            f"{given} has no effect with SGD without momentum, which has no state",
            "give --optimizer-option momentum=..., or another --optimizer",
        )
    if scheme.aggregation == "fednova":
        raise ConfigError(
            "aggregation fednova counts the gradients of one round, and"
            f" {config.optimizer_state} momentum has those of earlier rounds",
            "leave out --optimizer-state",
        )
    if config.optimizer_state != RELAYED:
        return
    if scheme.optimizer == AUTO:
        raise ConfigError(
            f"{given} needs to know which state travels", "name the optimiser, such as --optimizer adamw"
        )
    relayed_entries(scheme.optimizer, scheme.given("optimizer"))
    if TRAININGS[scheme.training].keeps_personal:
        raise ConfigError(
            f"training {scheme.training} has a second optimiser, for the personal model, whose state may not travel",
            "give --optimizer-state kept",
        )
    if config.outgoing:
        raise ConfigError(
            f"--outgoing {','.join(config.outgoing)} protects the model, and {given} would send the state beside it"
            " as it is",
            "give --optimizer-state kept or fresh",
        )
    if config.update_norm_limit is not None:
        raise ConfigError(
            f"--update-norm-limit does not measure the state that {given} sends with each model",
            "give --optimizer-state kept or fresh",
        )


def check_model(config: RunConfig, scheme: Scheme, hello: Hello) -> None:
    """Raises ConfigError if the model of the task, or its own optimiser, does not fit what was chosen."""
    halves = [spec.name for spec in hello.tensors if spec.trainable and spec.dtype == HALF]
    if config.precision == HALF and halves:
        raise ConfigError(
            f"--precision {HALF} scales the loss, torch cannot scale gradients in {HALF} back, and parameter"
            f" {visible(halves[0])!r} is in {HALF}",
            "leave out --precision, or let the task make its parameters in float32",
        )
    check_own_optimizer(config, scheme, hello.own_optimizer)


def check_own_optimizer(config: RunConfig, scheme: Scheme, own: bool) -> None:
    """Raises ConfigError if the task's own optimiser, or the lack of one, does not fit what was chosen."""
    if scheme.optimizer != AUTO:
        return
    if not own:
        if config.optimizer_state != FRESH:
            raise ConfigError(
                f"--optimizer-state {config.optimizer_state} has no effect: the task has no optimizer(), and plain SGD"
                " has no state",
                "give --optimizer too, or leave it out",
            )
        return
    plain = TRAININGS[scheme.training].plain
    if plain or scheme.aggregation == "fednova":
        part = f"training {scheme.training}" if plain else "aggregation fednova"
        raise ConfigError(
            f"{part} needs steps of SGD, and the task has an optimiser of its own", "give --optimizer sgd"
        )
