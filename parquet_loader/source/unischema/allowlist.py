"""The names that a pickle of Petastorm's metadata may contain, and their meaning here.

No name is ever imported, and no entry of this list is a callable. A pickle with any other name is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal[
    "unischema",
    "field",
    "codec",
    "indexer",
    "spark",
    "ordered dict",
    "default dict",
    "set",
    "decimal",
    "dtype",
    "scalar",
    "restore",
    "reconstructor",
    "number type",
    "base",
]


@dataclass(frozen=True, slots=True)
class AllowedName:
    """An allowed name.

    Attributes:
        role: Its meaning, such as a type or a codec.
        name: The canonical name within its role, such as ``"str_"`` for ``numpy.unicode_``.
    """

    role: Role
    name: str


CALLED: frozenset[Role] = frozenset(get_args(Role)) - {"number type", "base"}
"""Roles whose names a pickle calls to make objects; names of other roles are only values."""

_PACKAGES = ("petastorm", "av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit")
_CODECS = ("ScalarCodec", "NdarrayCodec", "CompressedNdarrayCodec", "CompressedImageCodec")
_INDEXERS = ("SingleFieldIndexer", "FieldNotNullIndexer")
SPARK_TYPES = (
    "NullType",
    "StringType",
    "CharType",
    "VarcharType",
    "BinaryType",
    "BooleanType",
    "DateType",
    "TimestampType",
    "TimestampNTZType",
    "DecimalType",
    "DoubleType",
    "FloatType",
    "ByteType",
    "ShortType",
    "IntegerType",
    "LongType",
    "DayTimeIntervalType",
    "YearMonthIntervalType",
    "ArrayType",
    "MapType",
    "StructField",
    "StructType",
)
# Old and new names of numpy's scalar types, each with its name in current numpy.
NUMBER_TYPES = {
    "bool": "bool",
    "bool_": "bool",
    "bool8": "bool",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "byte": "int8",
    "short": "int16",
    "intc": "int32",
    "int_": "int64",
    "intp": "int64",
    "long": "int64",
    "longlong": "int64",
    "ubyte": "uint8",
    "ushort": "uint16",
    "uintc": "uint32",
    "uint": "uint64",
    "uintp": "uint64",
    "ulong": "uint64",
    "ulonglong": "uint64",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "half": "float16",
    "single": "float32",
    "double": "float64",
    "float_": "float64",
    "complex64": "complex64",
    "complex128": "complex128",
    "csingle": "complex64",
    "cdouble": "complex128",
    "complex_": "complex128",
    "str_": "str_",
    "unicode_": "str_",
    "str0": "str_",
    "bytes_": "bytes_",
    "string_": "bytes_",
    "bytes0": "bytes_",
    "datetime64": "datetime64",
    "timedelta64": "timedelta64",
}


def _listed() -> dict[tuple[str, str], AllowedName]:
    found: dict[tuple[str, str], AllowedName] = {}
    for package in _PACKAGES:
        found[f"{package}.unischema", "Unischema"] = AllowedName("unischema", "Unischema")
        found[f"{package}.unischema", "UnischemaField"] = AllowedName("field", "UnischemaField")
        found |= {(f"{package}.codecs", codec): AllowedName("codec", codec) for codec in _CODECS}
        found |= {(f"{package}.etl.rowgroup_indexers", name): AllowedName("indexer", name) for name in _INDEXERS}
    found |= {("pyspark.sql.types", name): AllowedName("spark", name) for name in SPARK_TYPES}
    found |= {("numpy", old): AllowedName("number type", new) for old, new in NUMBER_TYPES.items()}
    found["numpy", "dtype"] = AllowedName("dtype", "dtype")
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        found[module, "scalar"] = AllowedName("scalar", "scalar")
    found["collections", "OrderedDict"] = AllowedName("ordered dict", "OrderedDict")
    found["collections", "defaultdict"] = AllowedName("default dict", "defaultdict")
    found["decimal", "Decimal"] = AllowedName("decimal", "Decimal")
    found["pyspark.serializers", "_restore"] = AllowedName("restore", "_restore")
    for module in ("copy_reg", "copyreg"):
        found[module, "_reconstructor"] = AllowedName("reconstructor", "_reconstructor")
    for module in ("__builtin__", "builtins"):
        found[module, "set"] = AllowedName("set", "set")
        found[module, "tuple"] = AllowedName("base", "tuple")
        found[module, "object"] = AllowedName("base", "object")
    return found


LISTED = _listed()
"""All allowed names, by module and name."""
