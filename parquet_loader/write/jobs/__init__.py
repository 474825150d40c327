"""Write jobs of several tasks, whose files are published together."""
