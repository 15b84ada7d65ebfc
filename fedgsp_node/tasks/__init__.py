"""The built-in tasks, and the functions that load a task by its name."""

from fedgsp_node.tasks.loading import build_task, check_task, load_task, options_to_share, source_digest

__all__ = ["build_task", "check_task", "load_task", "options_to_share", "source_digest"]
