"""How models travel between processes: held, asked for, streamed, coded, and through pipes."""
