"""One module a system. Each runs in an environment of its own, and imports what is installed there."""
