"""What a run leaves behind: events, history, models, and their directory."""
