"""Runs the jobs that make windows ahead of the consumer, on threads or in a child process."""
