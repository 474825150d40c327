"""File systems, their endpoints, file locks, and trust in directories that other users may write to."""
