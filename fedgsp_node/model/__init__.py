"""The model of a task: its state, its constants, its plain attributes, and the form in which its tensors travel."""
