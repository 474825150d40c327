"""Codecs: encode and decode values for which Parquet has no type."""

from __future__ import annotations

from abc import abstractmethod
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parquet_loader.decode import image_array, npy_array, npz_array
from parquet_loader.schema import encode_array
from parquet_loader.source import SparkType

if TYPE_CHECKING:
    from parquet_loader.petastorm.unischema import UnischemaField


class DataframeColumnCodec:
    """Base of all codecs."""

    @abstractmethod
    def encode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return the stored form of a value; raises ValueError if the field cannot hold it."""
        raise NotImplementedError

    @abstractmethod
    def decode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return the value of a stored form."""
        raise NotImplementedError

    @abstractmethod
    def spark_dtype(self) -> Any:
        """Return the Spark type of the stored form; needs pyspark."""
        raise NotImplementedError


def _checked(field: UnischemaField, value: Any) -> npt.NDArray[Any]:
    if not isinstance(value, np.ndarray):
        raise ValueError(f"field {field.name}: expected an array of {field.numpy_dtype}, found {type(value).__name__}")
    if value.dtype.type is not field.numpy_dtype and value.dtype.newbyteorder("=") != np.dtype(field.numpy_dtype):
        raise ValueError(f"field {field.name}: expected an array of {field.numpy_dtype}, found {value.dtype}")
    if not is_compliant_shape(value.shape, field.shape):
        raise ValueError(f"field {field.name}: expected the shape {field.shape}, found {value.shape}")
    return value


def is_compliant_shape(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    """Whether two shapes agree; None and 0 agree with any length."""
    return len(a) == len(b) and all(x == y for x, y in zip(a, b, strict=True) if x and y)


class _BinaryCodec(DataframeColumnCodec):
    """Base of the codecs that store bytes."""

    def spark_dtype(self) -> Any:
        """Return BinaryType; needs pyspark."""
        from pyspark.sql.types import BinaryType  # noqa: PLC0415  (only writers need Spark)

        return BinaryType()

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


class CompressedImageCodec(_BinaryCodec):
    """Images ``[h, w]`` or ``[h, w, 3]`` (RGB) of uint8 or uint16, as PNG or JPEG.

    Args:
        image_codec: ``"png"`` or ``"jpeg"``.
        quality: JPEG quality.
    """

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        self._image_codec = "." + image_codec
        self._quality = quality

    @property
    def image_codec(self) -> str:
        """``"png"`` or ``"jpeg"``."""
        return self._image_codec[1:]

    def encode(self, unischema_field: UnischemaField, value: Any) -> bytearray:
        """Return the bytes of an image."""
        pixels = _checked(unischema_field, value)
        if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
            raise ValueError(f"field {unischema_field.name}: images are (h, w) or (h, w, 3), not {pixels.shape}")
        kind = {"jpg": "jpeg"}.get(self.image_codec, self.image_codec)
        return bytearray(encode_array(pixels, kind, self._quality))

    def decode(self, unischema_field: UnischemaField, value: Any) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return the pixels: grey ``[h, w]`` or RGB ``[h, w, 3]``, 8 or 16 bits."""
        pixels = np.array(image_array(value))
        if pixels.ndim == 3 and pixels.shape[2] != 3:
            raise ValueError(f"images are (h, w) or (h, w, 3), not {pixels.shape}")
        return pixels

    def __str__(self) -> str:
        return f"CompressedImageCodec('{self.image_codec}', {self._quality})"


class NdarrayCodec(_BinaryCodec):
    """Arrays of any dtype except objects, as `np.save` writes them."""

    def encode(self, unischema_field: UnischemaField, value: Any) -> bytearray:
        """Return the bytes of an array."""
        return bytearray(encode_array(_checked(unischema_field, value), "npy"))

    def decode(self, unischema_field: UnischemaField, value: Any) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return the array, writable."""
        return npy_array(value).copy("K")


class CompressedNdarrayCodec(_BinaryCodec):
    """Arrays as `np.savez_compressed` writes them."""

    def encode(self, unischema_field: UnischemaField, value: Any) -> bytearray:
        """Return the bytes of an array."""
        return bytearray(encode_array(_checked(unischema_field, value), "npz"))

    def decode(self, unischema_field: UnischemaField, value: Any) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return the array, writable."""
        return npz_array(value).copy("K")


class ScalarCodec(DataframeColumnCodec):
    """Scalars, stored as a Spark type.

    Args:
        spark_type: A `pyspark.sql.types` type, or a `SparkType` if there is no Spark.
    """

    def __init__(self, spark_type: Any) -> None:
        self._spark_type = spark_type

    @property
    def spark_type_name(self) -> str:
        """Name of the Spark type's class."""
        return self._spark_type.name if isinstance(self._spark_type, SparkType) else type(self._spark_type).__name__

    def encode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return a scalar as the Python type that Spark takes."""
        name = unischema_field.name
        is_scalar_array = isinstance(value, np.ndarray) and value.shape == ()
        if not is_scalar_array and hasattr(value, "__len__") and not isinstance(value, str | bytes | bytearray):
            raise TypeError(f"field {name}: expected a scalar, found {type(value).__name__}")
        if unischema_field.shape:
            raise ValueError(f"field {name}: ScalarCodec is for the shape (), not {unischema_field.shape}")
        kind = self.spark_type_name
        if kind in ("ByteType", "ShortType", "IntegerType", "LongType"):
            return int(value)
        if kind in ("FloatType", "DoubleType"):
            return float(value)
        if kind == "BooleanType":
            return bool(value)
        if kind == "StringType":
            if not isinstance(value, str):
                raise ValueError(f"field {name}: expected a str, found {type(value).__name__}")
            return str(value)
        return value

    def decode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """Return a scalar of the field's type."""
        return unischema_field.numpy_dtype(value)

    def spark_dtype(self) -> Any:
        """Return the Spark type."""
        if not isinstance(self._spark_type, SparkType):
            return self._spark_type
        from pyspark.sql import types  # noqa: PLC0415

        spark = self._spark_type
        if spark.name == "DecimalType":
            return types.DecimalType(spark.precision or 10, spark.scale or 0)
        return getattr(types, spark.name)()

    def __str__(self) -> str:
        return f"ScalarCodec({self.spark_type_name}())"


def is_number_type(numpy_dtype: Any) -> bool:
    """Whether a field's type is a numpy scalar type or `Decimal`."""
    return isinstance(numpy_dtype, type) and issubclass(numpy_dtype, np.generic | Decimal)
