"""The order of an epoch as pure functions: windows, their slices, and the division over ranks."""
