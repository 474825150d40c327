"""Jobs of several tasks: what each writes and reports, how their files appear together."""
