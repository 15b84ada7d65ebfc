"""The built-in tasks, and the functions that load a task by its name."""

from fedgsp_node.tasks.loading import check_task, load_task, options_to_share, source_digest

__all__ = ["check_task", "load_task", "options_to_share", "source_digest"]
