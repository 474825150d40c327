"""File systems and their hosts, file locks, and what is trusted of directories that other users may write to."""
