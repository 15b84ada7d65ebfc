"""Local SGD, as in FedAvg (H. B. McMahan and others, AISTATS 2017)."""

from fedgsp_node.training.base import Algorithm
from fedgsp_node.training.steps import descend

SGD = Algorithm(descend, in_place=True)
