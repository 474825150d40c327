"""Files in memory between whose seeks and reads other threads come."""

from __future__ import annotations

import io
import threading


class SlowFile(io.BytesIO):
    """A file that waits after each seek, so that reads which share its position disturb each other."""

    def seek(self, *arguments: int) -> int:
        """Seek, and let other threads come."""
        at = super().seek(*arguments)
        threading.Event().wait(0.001)
        return at
