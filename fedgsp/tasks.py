"""Tasks by name: a model, the data of each client, and a loss. Only nodes import their code.

An entry point of group `fedgsp.tasks` names the class or function itself, as `--task module:factory` does.
"""

from fedgsp.parts import Part, Parts

#: The environment variables by which a run from Python tells its nodes the folder of its task. Only they import from
#: there, when they load the task: in PYTHONPATH, files of that folder would replace modules in all processes, and be
#: run before anybody has checked whose folder it is. From the folder of a module that the caller has imported, nodes
#: import before others, as the caller does; from a run directory, where the module of a script's task is, after them.
MODULES_VARIABLE, FOLDER_VARIABLE = "FEDGSP_TASK_MODULES", "FEDGSP_TASK_FOLDER"

_HERE = "fedgsp_node.tasks"
_GREY = f"{_HERE}.grey_images:GreyImages"

TASKS: Parts[Part] = Parts(
    "task",
    {
        "cifar10": Part(help="colour photographs of 10 kinds of things", code=f"{_HERE}.cifar10:Cifar10"),
        "digit_domains": Part(help="digits in several styles", code=f"{_HERE}.digit_domains:DigitDomains"),
        "digits": Part(help="small images of digits, without a download", code=f"{_HERE}.digits:Digits"),
        "fashion_mnist": Part(help="grey images of 10 kinds of clothes", code=_GREY),
        "femnist": Part(help="characters by the people who wrote them", code=f"{_HERE}.femnist:Femnist"),
        "mnist": Part(help="grey images of digits", code=_GREY),
    },
    Part,
    undeclared=lambda code: Part(help="a task of an installed package", code=code),
)
