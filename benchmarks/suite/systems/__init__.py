"""The measured systems, one module each. A module runs in its system's environment and imports its packages."""
