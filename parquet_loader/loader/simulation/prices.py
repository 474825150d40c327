"""List prices of requests and transfers at object stores."""

from __future__ import annotations

from dataclasses import dataclass

# Names that one listing request returns.
LISTED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in US dollars.

    Attributes:
        per_1000_reads: For 1,000 GET requests.
        per_1000_listings: For 1,000 LIST requests.
        per_gib: For each GiB that leaves the store; 0 within its region.
    """

    per_1000_reads: float
    per_1000_listings: float
    per_gib: float = 0.0

    def cost(self, reads: int, listings: int, nbytes: int) -> float:
        """Return the price of requests and of the bytes that they bring."""
        requests = (reads * self.per_1000_reads + listings * self.per_1000_listings) / 1000
        return requests + nbytes / 2**30 * self.per_gib


# Standard storage class, first tier, US regions, as listed in 2025.
PRICES = {
    "s3": Prices(0.0004, 0.005),
    "gcs": Prices(0.0004, 0.005),
    "azure": Prices(0.0005, 0.0065),
    "r2": Prices(0.00036, 0.0045),
}
# The provider of a URL's scheme.
PROVIDERS = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure"}


def provider_of(source: str) -> str:
    """Return the provider of a URL; S3 if the scheme is not known."""
    return PROVIDERS.get(source.partition("://")[0] if "://" in source else "", "s3")
