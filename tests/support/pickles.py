"""Pickles for tests: as Petastorm of any age and protocol writes them, and as an attacker would."""

from __future__ import annotations

import contextlib
import decimal
import itertools
import pickle
import pickletools
import random
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from parquet_loader.source.unischema.metadata_files import INDEX_KEY, UNISCHEMA_KEY
from tests.support import petastorm_oracle as oracle

PACKAGES = ("petastorm", "av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit")


class UnischemaField(NamedTuple):
    """Stands in for Petastorm's class of this name while it is pickled."""

    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...]
    codec: Any = None
    nullable: bool = False


class _Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def _class(name: str, base: type = _Plain) -> Any:
    return type(name, (base,), {"__module__": __name__})


Unischema = _class("Unischema")
ScalarCodec = _class("ScalarCodec")
NdarrayCodec = _class("NdarrayCodec")
CompressedNdarrayCodec = _class("CompressedNdarrayCodec")
CompressedImageCodec = _class("CompressedImageCodec")
SingleFieldIndexer = _class("SingleFieldIndexer")
FieldNotNullIndexer = _class("FieldNotNullIndexer")
IntegerType = _class("IntegerType")
StringType = _class("StringType")
DecimalType = _class("DecimalType")

_HOMES = {
    "unischema": (Unischema, UnischemaField),
    "codecs": (ScalarCodec, NdarrayCodec, CompressedNdarrayCodec, CompressedImageCodec),
    "etl.rowgroup_indexers": (SingleFieldIndexer, FieldNotNullIndexer),
}
_SPARK = (IntegerType, StringType, DecimalType)


def _restore(name: str, fields: Any, value: Any) -> Any:
    raise AssertionError("a pickle is never run")


@contextlib.contextmanager
def as_petastorm(package: str) -> Iterator[None]:
    """Make the classes above pickle under the names of Petastorm's and pyspark's."""
    homes: dict[str, tuple[Any, ...]] = {f"{package}.{module}": classes for module, classes in _HOMES.items()}
    homes["pyspark.sql.types"] = _SPARK
    homes["pyspark.serializers"] = (_restore,)
    parents = {name.rsplit(".", level)[0] for name in homes for level in range(1, name.count(".") + 1)}
    homes |= dict.fromkeys(parents, ())
    saved = {name: sys.modules.get(name) for name in homes}
    for name, classes in homes.items():
        module = types.ModuleType(name)
        for one in classes:
            one.__module__ = name
            setattr(module, one.__name__, one)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, before in saved.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
        for classes in homes.values():
            for one in classes:
                one.__module__ = __name__


class _Restored:
    """A namedtuple as pyspark pickled it before Python 3.8."""

    def __init__(self, field: UnischemaField) -> None:
        self.field = field

    def __reduce__(self) -> Any:
        return _restore, ("UnischemaField", UnischemaField._fields, tuple(self.field))


FIELDS = (
    UnischemaField("id", np.int64, (), ScalarCodec(_spark_type=IntegerType()), False),
    UnischemaField("text", np.str_, (), ScalarCodec(_spark_type=StringType()), True),
    UnischemaField(
        "price", decimal.Decimal, (), ScalarCodec(_spark_type=DecimalType(precision=9, scale=2, hasPrecisionInfo=True))
    ),
    UnischemaField("flag", np.bool_, (), None, False),
    UnischemaField("cloud", np.float32, (None, 3), NdarrayCodec(), False),
    UnischemaField("packed", np.uint8, (4,), CompressedNdarrayCodec(), True),
    UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec(_image_codec=".jpeg", _quality=90), False),
)


def unischema(protocol: int, package: str = PACKAGES[0], *, restored: bool = False, count: int = len(FIELDS)) -> bytes:
    """Return a pickled Unischema."""
    fields = [_Restored(f) if restored else f for f in FIELDS[:count]]
    named = dict(zip((f.name for f in FIELDS), fields, strict=False))
    with as_petastorm(package):
        return pickle.dumps(Unischema(_name="S", _fields=OrderedDict(named), **named), protocol)


def indexes(protocol: int, package: str = PACKAGES[0]) -> bytes:
    """Return pickled indexes of plain values (numpy's scalars need bytes, which protocols before 3 do not have)."""
    values: Any = defaultdict(set, {"a": {0, 1}, "b": {2}, 7: {1}, decimal.Decimal("1.50"): {0}})
    if protocol >= 3:
        values |= {np.int64(3): {0}, np.str_("é"): {1}, np.str_(""): {2}, np.float32(2.5): {3}, np.bool_(True): {1}}
        values |= {np.datetime64("2020-01-02T03", "h"): {2}, np.bytes_(b"x"): {0}}
    with as_petastorm(package):
        made = {
            "by": SingleFieldIndexer(_index_name="by", _column_name="c", _index_data=values),
            "not_null": FieldNotNullIndexer(_index_name="not_null", _column_name="d", _index_data={0, 5}),
        }
        return pickle.dumps(made, protocol)


PYTHON_2 = (
    # cPickle of Python 2, protocol 0: str with quotes, classes by copy_reg, OrderedDict from a list of pairs.
    b"ccopy_reg\n_reconstructor\np1\n(cav.ml.dataset_toolkit.unischema\nUnischema\np2\nc__builtin__\nobject\np3\nNtR"
    b"p4\n(dp5\nS'_fields'\np6\nccollections\nOrderedDict\np7\n((lp8\n(lp9\nS'id'\np10\nag1\n"
    b"(cav.ml.dataset_toolkit.unischema\nUnischemaField\np11\nc__builtin__\ntuple\np12\n(g10\ncnumpy\nint64\np13\n(t"
    b"ccopy_reg\n_reconstructor\n(cav.ml.dataset_toolkit.codecs\nScalarCodec\np14\ng3\nNtRp15\n(dp16\nS'_spark_type'\n"
    b"p17\ng1\n(cpyspark.sql.types\nLongType\np18\ng3\nNtRsbI00\ntp19\ntRp20\naa(lp21\nS'n\\xe4me'\np22\nag1\n(g11\ng12\n"
    b"(g22\ncnumpy\nunicode_\np23\n(I3\nNtNI01\nttRaatRp25\nsS'_name'\np26\nS'Old'\np27\nsb."
)


class Attack(NamedTuple):
    """A pickle that must be refused, and what the refusal says."""

    name: str
    data: bytes
    message: str


class _Calls:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def attacks() -> list[Attack]:
    """Return pickles that run code, make too much, or lie about themselves."""
    import builtins
    import functools
    import operator
    import os
    import subprocess

    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (os.system, ("true",)),
        (builtins.eval, ("1",)),
        (builtins.exec, ("1",)),
        (builtins.getattr, ("a", "b")),
        (builtins.open, ("/dev/null",)),
        (builtins.__import__, ("os",)),
        (subprocess.Popen, ("true",)),
        (operator.attrgetter, ("a",)),
        (functools.partial, (print,)),
        (np.load, ("/dev/null",)),
        (np.frombuffer, (b"a",)),
        (pickle.loads, (b"N.",)),
    ]
    found = [
        Attack(
            f"{function.__module__}.{function.__name__}, protocol {p}",
            pickle.dumps(_Calls(function, *arguments), p),
            "names",
        )
        for p in range(6)
        for function, arguments in calls
    ]
    plain = [
        (
            "a getattr that Petastorm imports",
            b"cpetastorm.unischema\ngetattr\n(NS'a'\ntR.",
            "petastorm.unischema.getattr",
        ),
        ("a module that Petastorm imports", b"cpetastorm.unischema\nsys\n.", "petastorm.unischema.sys"),
        (
            "a dotted name",
            b"\x80\x04\x8c\x13petastorm.unischema\x8c\x0aUnischema.x\x93.".replace(b"\x0aU", b"\x0bU"),
            "names",
        ),
        ("a dotted way round", b"\x80\x04\x8c\x05numpy\x8c\x0bdtype.fromme\x93.".replace(b"\x0bd", b"\x0cd"), "names"),
        (
            "a nested reduce",
            b"ccollections\ndefaultdict\n(c__builtin__\nset\ntR(S'x'\ntR.",
            "the result of another call",
        ),
        ("a call of a list", b"](tR.", "value that is not a name"),
        ("a call of a str", b"S'os.system'\n(S'true'\ntR.", "value that is not a name"),
        ("a call of object", b"c__builtin__\nobject\n(tR.", "may only be named"),
        ("a call of a number type", b"cnumpy\nint64\n(I1\ntR.", "may only be named"),
        ("a call by INST", b"(S'true'\nios\nsystem\n.", "opcode INST"),
        ("a call by OBJ", b"(cos\nsystem\nS'true'\no.", "os.system"),
        ("OBJ of a listed name", b"(ccollections\nOrderedDict\no.", "opcode OBJ"),
        ("a persistent id", b"Pid\n.", "opcode PERSID"),
        ("a persistent object", b"NQ.", "opcode BINPERSID"),
        ("an extension", b"\x82\x01.", "opcode EXT1"),
        ("an out-of-band buffer", b"\x80\x05\x97.", "opcode NEXT_BUFFER"),
        (
            "keyword arguments",
            b"\x80\x04\x8c\x07decimal\x8c\x07Decimal\x93)}\x8c\x01a\x8c\x01bs\x92.",
            "keyword arguments",
        ),
        ("attributes of a name", b"cpetastorm.unischema\nUnischema\n}b.", "value that is not an object"),
        ("attributes of a list", b"]}b.", "value that is not an object"),
        ("attributes given twice", b"ccollections\nOrderedDict\n(tR}b}b.", "twice"),
        ("a claim of 4 GB of text", b"X\xff\xff\xff\xff.", "claims 4294967295 bytes"),
        ("a claim of 2^63 bytes of text", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "claims"),
        ("a claim of 2^63 bytes", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "claims"),
        ("a bytearray of 2^63", b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "opcode BYTEARRAY8"),
        ("a str of -1 bytes", b"T\xff\xff\xff\xff.", "claims -1 bytes"),
        ("a long of 2 GB", b"\x8b\xff\xff\xff\x7f.", "claims 2147483647 bytes"),
        ("a frame of 2^63 bytes", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", "a frame claims"),
        ("a memo of 4 billion", b"Nr\xff\xff\xff\xff.", "index 4294967295 of the memo"),
        ("a memo of any size", b"Np99999999999999999999\n.", "not an index of the memo"),
        ("a memo of less than nothing", b"Np-1\n.", "not an index of the memo"),
        ("a memo never filled", b"h\x07.", "the memo holds nothing at 7"),
        ("a long number", b"L" + b"9" * 10_000 + b"L\n.", "is not a number"),
        ("a long binary number", b"\x8b\x10\x27\x00\x00" + b"\x7f" * 10_000 + b".", "a number has 10000 bytes"),
        ("a protocol to come", b"\x80\x06N.", "protocol 6"),
        ("a list in itself", b"]q\x00h\x00a.", "contains itself"),
        ("a dict in itself", b"}q\x00h\x00h\x00s.", "contains itself"),
        ("a circle of two", b"]q\x00]q\x01h\x00aa0h\x00h\x01a.", "refused"),
        ("an object in itself", b"ccollections\nOrderedDict\n(tRq\x00h\x00b.", "contains itself"),
        ("10,000 lists in each other", b"]" * 10_000 + b"a" * 9_999 + b".", "nest more than"),
        ("200,000 values on the stack", b"N" * 200_000 + b".", "are on its stack"),
        ("2,000,001 opcodes", b"N0" * 1_000_001 + b"N.", "more than 2000000 opcodes"),
        ("nothing", b"", "no STOP opcode"),
        ("no end", b"N", "no STOP opcode"),
        ("more behind the end", b"N.cos\nsystem\n", "follow its end"),
        ("two values", b"NN.", "one value at its end, found 2"),
        ("no value", b".", "one value at its end, found 0"),
        ("no mark", b"t.", "a mark that does not exist"),
        ("a mark for a value", b"(.", "one value at its end"),
        ("a value taken where there is none", b"0.", "from an empty stack"),
        ("a key has no value", b"(NNNd.", "key has no value"),
        ("text that is no UTF-8", b"X\x01\x00\x00\x00\xff.", "not UTF-8"),
        ("an unknown opcode", b"\xff.", "is not an opcode"),
        ("a plain value", b"S'Unischema'\n.", "expected a Unischema"),
        ("a Decimal", b"cdecimal\nDecimal\n(S'1'\ntR.", "expected a Unischema"),
        (
            "another object put together",
            b"ccopy_reg\n_reconstructor\n(cdecimal\nDecimal\nc__builtin__\nobject\nNtR.",
            "expected",
        ),
        ("a Unischema without attributes", b"cpetastorm.unischema\nUnischema\n)\x81.", "are not a dict"),
        ("a shared tree of 2^60", _shared_tree(), "shared references"),
    ]
    found += [Attack(*entry) for entry in plain]
    for what in ("dtype", "scalar"):
        module = "numpy" if what == "dtype" else "numpy.core.multiarray"
        body = f"cpetastorm.unischema\nUnischema\n)\x81}}S'_fields'\n}}S'a'\nc{module}\n{what}\n(S'O8'\ntRssb."
        found.append(Attack(f"a {what} of objects", body.encode("latin-1"), "refused"))
    return found


def _shared_tree() -> bytes:
    """Return a tuple of two of the tuple before, sixty times over."""
    data = b")\x94"
    for level in range(60):
        data += b"0" + 2 * (b"h" + bytes([level])) + b"\x86\x94"
    return b"\x80\x04" + data + b"."


_INDEXER = (
    b"cpetastorm.etl.rowgroup_indexers\nSingleFieldIndexer\n)\x81(dS'_index_name'\nS'i'\nsS'_column_name'\nS'c'\ns"
)
_SET = b"c__builtin__\nset\n"


def growing_unischema(count: int) -> bytes:
    """Return a pickled Unischema whose fields all share a codec of many attributes."""
    codec = b"cpetastorm.codecs\nNdarrayCodec\n)\x81(d(" + b"".join(b"S'%d'\nN" % n for n in range(count)) + b"ub"
    field = b"cpetastorm.unischema\nUnischemaField\n(S'f'\ncnumpy\nint8\n)" + codec + b"I01\nt\x81q\x000"
    fields = b"(d(" + b"S'f'\nh\x00" * count + b"u"
    return field + b"cpetastorm.unischema\nUnischema\n)\x81(dS'_name'\nS'S'\nsS'_fields'\n" + fields + b"sb."


def growing_indexes(count: int) -> list[tuple[str, bytes]]:
    """Return pickled indexes that take the square of their length to read, or of their memory to hold."""
    numbered = [b"S'%d'\n" % n for n in range(count)]
    attributes = b"".join(name + b"N" for name in numbered)
    shared = _INDEXER + b"S'_index_data'\n(dsb" + b"(d(" + attributes + b"u"
    shared = shared.replace(b"(dsb(d(", b"(ds(").removesuffix(b"u") + b"ubq\x000"
    one_list = b"(l(" + b"".join(b"I%d\n" % n for n in range(2, count + 2)) + b"e\x85q\x000" + _SET + b"q\x010"
    sets = b"(d(" + b"".join(b"I%d\nh\x01h\x00R" % n for n in range(2, count + 2)) + b"u"
    size = count * 1000
    scalar = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'S%d'\ntRB" % size
    scalar += size.to_bytes(4, "little") + b"x" * size + b"tRq\x000"
    dicts = b"".join(name + _INDEXER + b"S'_index_data'\n(dh\x00" + _SET + b")Rssb" for name in numbered)
    return [
        ("attributes of one index", shared + b"(d(" + b"".join(name + b"h\x00" for name in numbered) + b"u."),
        ("numbers of one list", one_list + b"(dS'a'\n" + _INDEXER + b"S'_index_data'\n" + sets + b"sbs."),
        ("bytes of one scalar", scalar + b"(d(" + dicts + b"u."),
    ]


def indexed_of_one_hash(count: int) -> bytes:
    """Return a pickled index of Decimals that all have the hash 0."""
    one = b"cdecimal\nDecimal\n(S'%d'\ntR" + _SET + b")R"
    values = b"".join(one % (n * (2**61 - 1)) for n in range(1, count + 1))
    return b"(dS'a'\n" + _INDEXER + b"S'_index_data'\n(d(" + values + b"usbs."


INDEX_ATTACKS = [
    (
        "a scalar of objects",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\ntRS'12345678'\ntR",
        "the dtype 'O8' is not allowed",
    ),
    ("a dtype", b"cnumpy\ndtype\n(S'i8'\ntR", "not a scalar"),
    (
        "a scalar of no bytes",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'i8'\ntRS'a'\ntR",
        "does not have 8 bytes",
    ),
    (
        "a scalar of text of 4 GB",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'U9999999'\ntRS'a'\ntR",
        "does not have",
    ),
    (
        "a character that is none",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'U1'\ntRS'\\xff\\xff\\xff\\xff'\ntR",
        "refused",
    ),
    ("a Decimal of 10^999999999", b"cdecimal\nDecimal\n(S'1E999999999'\ntR", "a Decimal is not a number"),
    ("a tuple as value", b"(I1\nt", "not a scalar"),
    ("an integer that no column holds", b"L99999999999999999999999999L\n", "exceeds 64 bits"),
]


def index_of(key: bytes) -> bytes:
    """Return pickled indexes with one value, given as opcodes."""
    return (
        b"(dS'by'\ncpetastorm.etl.rowgroup_indexers\nSingleFieldIndexer\n)\x81(dS'_index_name'\nS'by'\nsS'_column_name'\n"
        b"S'c'\nsS'_index_data'\n(d" + key + b"c__builtin__\nset\n((lI1\natRssbs."
    )


# -- mutations --


def real() -> list[bytes]:
    """Return what Petastorm itself pickled."""
    found = []
    for folder in (oracle.SERIES, oracle.EVERYTHING):
        metadata = pq.read_metadata(folder / "_common_metadata").metadata
        found += [metadata[key] for key in (UNISCHEMA_KEY, INDEX_KEY) if key in metadata]
    return found


def seeds() -> list[bytes]:
    """Return pickles to mutate: small ones of every protocol and form, attacks, and a real one."""
    small = [unischema(p, count=2) for p in range(6)] + [unischema(4, restored=True, count=1), PYTHON_2]
    small += [indexes(p) for p in range(6)] + [index_of(key) for _, key, _ in INDEX_ATTACKS]
    small += [a.data for a in attacks() if len(a.data) < 300]
    return small + real()[:1]


def opcodes_of(data: bytes) -> list[bytes]:
    """Return a pickle cut into its opcodes, as far as they can be told apart."""
    positions: list[int] = []
    with contextlib.suppress(Exception):
        positions.extend(position for _, _, position in pickletools.genops(data) if position is not None)
    bounds = [*(positions or [0]), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


class Mutator:
    """Draws pickles: opcodes of the seeds left out, doubled, swapped, replaced, cut, and their arguments changed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seeds = [opcodes_of(data) for data in seeds()]
        self._pool = sorted({op for ops in self._seeds for op in ops if len(op) < 60})
        self._pool += [bytes([opcode]) for opcode in range(256)]

    def draw(self) -> bytes:
        """Return one pickle."""
        r = self._random
        ops = list(r.choice(self._seeds))
        for _ in range(r.choice((1, 1, 1, 2, 3, 8))):
            at = r.randrange(len(ops)) if ops else 0
            match r.randrange(7):
                case 0 if ops:
                    del ops[at : at + r.choice((1, 1, 3))]
                case 1:
                    ops.insert(at, r.choice(self._pool))
                case 2 if ops:
                    ops[at] = r.choice(self._pool)
                case 3 if ops:
                    ops.insert(at, ops[r.randrange(len(ops))])
                case 4 if len(ops) > 1:
                    other = r.randrange(len(ops))
                    ops[at], ops[other] = ops[other], ops[at]
                case 5 if ops and ops[at]:
                    changed = bytearray(ops[at])
                    changed[r.randrange(len(changed))] = r.choice((0, 1, 0x7F, 0x80, 0xFF, r.randrange(256)))
                    ops[at] = bytes(changed)
                case _:
                    donor = r.choice(self._seeds)
                    start = r.randrange(len(donor)) if donor else 0
                    ops[at:at] = donor[start : start + r.randrange(6)]
        return b"".join(ops)
