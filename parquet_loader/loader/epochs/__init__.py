"""The epochs of a loader: how they begin, follow each other and end; and states, from which they continue."""
