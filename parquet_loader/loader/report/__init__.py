"""An epoch as one HTML page, and as a trace."""
