"""What a person at a terminal sees: progress, tables, a task to play, a check of the set-up."""
