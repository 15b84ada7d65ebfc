"""In-group programs: what the members of a group do together, and what each program needs.

The table is shared by the top server, which orders a program, and by group managers, which import its code.
"""

from dataclasses import dataclass

from fedgsp.parts import Part, Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Part):
    """The declaration of a program. A flag that is False says that the program does not do so, or does not need it.

    Its `code` is a coroutine function of a `group_manager.group.Group`, which has the request, the program's options,
    and everything that a program may do; it returns the `GroupResult`, or a `Failure` with the reason. It runs in the
    event loop of its manager, so that long work belongs into a thread, and one call never shares a group with another.
    The same members must give the same bits in whichever order they finish. Random numbers come from
    `fedgsp.seeds.stream(request.training.seed, NAME, request.round, request.group)`. If the manager is lost, another
    manager runs the program again from the beginning, with a higher `request.attempt`; a program must therefore put
    the attempt into the ids of the models that it lets members make.
    """

    #: A scheme, or `--program`, may name it. The others are questions that the top server asks between trainings.
    for_schemes: bool = False
    #: Members train.
    trains: bool = False
    #: Members make fresh weights.
    initialises: bool = False
    #: Each member starts from the result of the member before it.
    chained: bool = False
    #: The result is one model of the whole group.
    makes_model: bool = False
    #: The members' models are combined by the aggregation of the scheme.
    aggregates: bool = False
    #: Members start from a model.
    needs_start: bool = False
    #: Every member may start from a model of its own in place of the group's.
    takes_own_starts: bool = False
    #: Every member must name a model that its node holds.
    needs_own_models: bool = False
    #: The request must hold training settings.
    needs_training: bool = False
    #: Members answer for their samples, so that an answer for no samples has no mean and is left out.
    counts_samples: bool = True
    #: Every pair of members is compared, which bounds their number.
    pairs: bool = False

    @property
    def weighs(self) -> bool:
        """Whether members count by their weights in the model of the group; members of a chain do not."""
        return self.trains and self.makes_model and not self.chained

    @property
    def members_make(self) -> bool:
        """Whether every member has to make a model, and to sign it if it has a certificate."""
        return self.trains or self.initialises


_HERE = "group_manager.programs"

PROGRAMS: Parts[Program] = Parts(
    "program",
    {
        "relay": Program(
            code=f"{_HERE}.relay:run",
            help="in turn: each client continues training the model of the client before it",
            for_schemes=True,
            trains=True,
            chained=True,
            makes_model=True,
            needs_start=True,
            takes_own_starts=True,
            needs_training=True,
        ),
        "parallel": Program(
            code=f"{_HERE}.parallel:run",
            help="at once: all clients train from the same model, and the results are averaged",
            for_schemes=True,
            trains=True,
            makes_model=True,
            aggregates=True,
            needs_start=True,
            takes_own_starts=True,
            needs_training=True,
        ),
        "alone": Program(
            code=f"{_HERE}.alone:run",
            help="each client trains on its own, and nothing is averaged",
            trains=True,
            needs_start=True,
            takes_own_starts=True,
            needs_training=True,
        ),
        "collect": Program(
            code=f"{_HERE}.survey:collect", help="clients send models that their nodes hold", needs_own_models=True
        ),
        "compare": Program(
            code=f"{_HERE}.survey:ask",
            help="clients tell the training loss of a model and its distance from a model that they hold",
            needs_start=True,
        ),
        "describe": Program(
            code=f"{_HERE}.survey:ask", help="clients tell the class histogram of their training data"
        ),
        "discriminate": Program(
            code=f"{_HERE}.discriminate:run", help="clients train networks that tell their data apart", pairs=True
        ),
        "distance": Program(
            code=f"{_HERE}.survey:ask",
            help="clients tell the distance of a model from a model that they hold",
            needs_start=True,
            counts_samples=False,
        ),
        "evaluate": Program(
            code=f"{_HERE}.survey:ask",
            help="clients evaluate a model on their test data",
            needs_start=True,
            takes_own_starts=True,
        ),
        "evaluate-training": Program(
            code=f"{_HERE}.survey:ask",
            help="clients evaluate a model on their training data",
            needs_start=True,
            takes_own_starts=True,
        ),
        "evaluate-validation": Program(
            code=f"{_HERE}.survey:ask",
            help="clients evaluate a model on their validation data",
            needs_start=True,
            takes_own_starts=True,
        ),
        "forget": Program(code=f"{_HERE}.survey:forget", help="nodes forget models that they hold for their clients"),
        "initialise": Program(
            initialises=True,
            code=f"{_HERE}.initialise:run",
            help="nodes of two clients make the same fresh weights",
            makes_model=True,
            needs_training=True,
        ),
    },
    Program,
    shown=lambda program: program.for_schemes,
)
