"""The schema of the demo: a row is one flight as it leaves the gate, and its delay at arrival.

All columns of `dense` and the categories are known when the flight leaves: its plan, its plane, the weather of the hour
and the delay at departure. Columns that are known only later (times of arrival, time in the air) are left out.
"""

from parquet_loader import Category, Group, Scalar, Schema

# A null means that the join found no match; `fill` replaces it, here by the year's median.
DENSE = Group(
    {
        "dep_delay": Scalar("float32"),  # minutes late at departure; negative is early
        "sched_dep_minute": Scalar("float32"),  # since midnight, local time
        "sched_minutes": Scalar("float32"),  # planned arrival minus planned departure, each in its local time
        "distance": Scalar("float32"),  # miles
        "temp": Scalar("float32", fill=57.2),  # degrees Fahrenheit
        "dewp": Scalar("float32", fill=42.8),
        "humid": Scalar("float32", fill=57.7),  # percent
        "wind_dir": Scalar("float32", fill=220.0),  # degrees
        "wind_speed": Scalar("float32", fill=10.4),  # miles per hour
        "precip": Scalar("float32", fill=0.0),  # inches
        "pressure": Scalar("float32", fill=1017.5),  # millibars
        "visib": Scalar("float32", fill=10.0),  # miles
        "plane_year": Scalar("float32", fill=2002.0),
        "plane_seats": Scalar("float32", fill=149.0),
    }
)

CARRIERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV")
ORIGINS = ("EWR", "JFK", "LGA")
DESTINATIONS = tuple(
    "ABQ ACK ALB ANC ATL AUS AVL BDL BGR BHM BNA BOS BQN BTV BUF BUR BWI BZN CAE CAK CHO CHS CLE CLT CMH CRW CVG DAY "
    "DCA DEN DFW DSM DTW EGE EYW FLL GRR GSO GSP HDN HNL HOU IAD IAH ILM IND JAC JAX LAS LAX LEX LGA LGB MCI MCO MDW "
    "MEM MHT MIA MKE MSN MSP MSY MTJ MVY MYR OAK OKC OMA ORD ORF PBI PDX PHL PHX PIT PSE PSP PVD PWM RDU RIC ROC RSW "
    "SAN SAT SAV SBN SDF SEA SFO SJC SJU SLC SMF SNA SRQ STL STT SYR TPA TUL TVC TYS XNA".split()
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PLANE_TYPES = ("unknown", "Fixed wing multi engine", "Fixed wing single engine", "Rotorcraft")
ENGINES = ("unknown", "4 Cycle", "Reciprocating", "Turbo-fan", "Turbo-jet", "Turbo-prop", "Turbo-shaft")

CATEGORIES = {
    "carrier": Category(CARRIERS),
    "origin": Category(ORIGINS),
    "dest": Category(DESTINATIONS),
    "weekday": Category(WEEKDAYS),
    "plane_type": Category(PLANE_TYPES, fill="unknown"),
    "engine": Category(ENGINES, fill="unknown"),
}

# The label, `arr_delay`, is minutes late at arrival; negative is early.
FLIGHTS = Schema({"arr_delay": Scalar("float32"), "dense": DENSE, **CATEGORIES})
