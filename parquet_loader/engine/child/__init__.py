"""`isolation="process"`: the engine in a child process that hands over shared memory."""
