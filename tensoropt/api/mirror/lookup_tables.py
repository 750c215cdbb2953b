"""Tables of ``tf.contrib.lookup`` and ``tf.lookup`` that nobody changes: ops on constants, never initialized.

Keys are found by their places among sorted ones; texts by their fingerprints, which are compared whole afterwards. So
a table works in the model, in datasets and in functions alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = [
    "FastHashSpec",
    "HashTable",
    "KeyValueTensorInitializer",
    "StaticHashTable",
    "StaticVocabularyTable",
    "StrongHashSpec",
    "TextFileIdTableInitializer",
    "TextFileIndex",
    "TextFileInitializer",
    "TextFileStringTableInitializer",
    "index_table_from_file",
    "index_table_from_tensor",
    "index_to_string_table_from_file",
    "index_to_string_table_from_tensor",
]

_BUCKETS = 2**62  # of fingerprints: texts of one bucket are an error when the table is made


class TextFileIndex:
    """``tf.lookup.TextFileIndex``: what of a line is meant."""

    WHOLE_LINE = -2
    LINE_NUMBER = -1


class FastHashSpec:
    """The hash that scripts ask for, of texts that are in no table."""

    hasher, key = "fasthash", ()


class StrongHashSpec:
    """A keyed hash of texts that are in no table."""

    hasher = "stronghash"

    def __init__(self, key: Sequence[int]) -> None:
        """Takes two integers."""
        self.key = tuple(key)


def _static(values: Any, what: str) -> Any:
    """The values of a list, an array or a constant.

    Raises:
        GraphError: only a run knows them.
    """
    if not isinstance(values, tf.Tensor):
        return np.asarray(values)
    found = tf.get_static_value(values)
    if found is None:
        raise GraphError(
            f"Table: {what} must be known before a run. Got tensor '{values.name}'. Give a list or a constant."
        )
    return np.asarray(found)


class KeyValueTensorInitializer:
    """Keys and their values."""

    def __init__(
        self, keys: Any, values: Any, key_dtype: Any = None, value_dtype: Any = None, name: Any = None
    ) -> None:
        """Takes as many keys as values, and their dtypes where these are not those of the arrays."""
        del name
        found = _static(keys, "keys"), _static(values, "values")
        if found[0].shape != found[1].shape or found[0].ndim != 1:
            raise GraphError(
                f"Table: needs as many keys as values, in one dimension. Got shapes {found[0].shape} and "
                f"{found[1].shape}."
            )
        self.keys, self.key_dtype = _typed(found[0], key_dtype)
        self.values, self.value_dtype = _typed(found[1], value_dtype)


def _typed(values: Any, dtype: Any) -> tuple[Any, Any]:
    """Values as an array, texts as bytes, and their dtype."""
    if values.dtype.kind in "OSU":
        texts = [each.encode() if isinstance(each, str) else bytes(each) for each in values.tolist()]
        return np.array(texts, object), tf.string
    dtype = tf.as_dtype(values.dtype if dtype is None else dtype)
    return values.astype(dtype.as_numpy_dtype), dtype


class TextFileInitializer(KeyValueTensorInitializer):
    """Keys and values from the lines of a file, which is read at once."""

    def __init__(
        self,
        filename: Any,
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: Any = None,
        value_index_offset: int = 0,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            filename: of the file.
            key_dtype: of keys.
            key_index: the column of keys, or a :class:`TextFileIndex`.
            value_dtype: of values.
            value_index: the column of values, or a :class:`TextFileIndex`.
            vocab_size: so many lines; all by default.
            delimiter: between columns.
            name: without effect.
            value_index_offset: what the numbers of lines begin with, as values.

        Raises:
            GraphError: the file has fewer lines or columns.
        """
        name = _static(filename, "the name of the file").item()
        with tf.io.gfile.GFile(name, "rb") as file:
            lines = file.read().split(b"\n")
        if not lines[-1]:
            lines.pop()
        lines = [line.rstrip(b"\r") for line in lines]
        if vocab_size is not None:
            if vocab_size > len(lines):
                raise GraphError(f"Table of '{name}': vocab_size is {vocab_size}, but there are {len(lines)} lines.")
            lines = lines[:vocab_size]

        def column(index: int, dtype: Any) -> Any:
            if index == TextFileIndex.LINE_NUMBER:
                return np.arange(len(lines))
            found = lines
            if index != TextFileIndex.WHOLE_LINE:
                rows = [line.split(delimiter.encode()) for line in lines]
                short = next((number for number, row in enumerate(rows) if len(row) <= index), None)
                if short is not None:
                    raise GraphError(f"Table of '{name}': line {short + 1} has no column {index}. Got {rows[short]}.")
                found = [row[index] for row in rows]
            if tf.as_dtype(dtype) == tf.string:
                return np.array(found, object)
            return np.array([float(each) if tf.as_dtype(dtype).is_floating else int(each) for each in found])

        values = column(value_index, value_dtype)
        if value_index == TextFileIndex.LINE_NUMBER:
            values += value_index_offset
        super().__init__(column(key_index, key_dtype), values, key_dtype, value_dtype)


class TextFileIdTableInitializer(TextFileInitializer):
    """The numbers of lines, by what stands in them."""

    def __init__(
        self,
        filename: Any,
        key_column_index: int = TextFileIndex.WHOLE_LINE,
        value_column_index: int = TextFileIndex.LINE_NUMBER,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: Any = None,
        key_dtype: Any = tf.string,
    ) -> None:
        """Takes TensorFlow's arguments; see :class:`TextFileInitializer`."""
        super().__init__(filename, key_dtype, key_column_index, tf.int64, value_column_index, vocab_size, delimiter)


class TextFileStringTableInitializer(TextFileInitializer):
    """The lines of a text file, by their numbers."""

    def __init__(
        self,
        filename: Any,
        key_column_index: int = TextFileIndex.LINE_NUMBER,
        value_column_index: int = TextFileIndex.WHOLE_LINE,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: Any = None,
    ) -> None:
        """Takes TensorFlow's arguments; see :class:`TextFileInitializer`."""
        super().__init__(filename, tf.int64, key_column_index, tf.string, value_column_index, vocab_size, delimiter)


def _computed(make: Callable[[], Any]) -> Any:
    """Computes the values of ops at once, in a graph and a session of their own."""
    with tf.Graph().as_default() as graph:
        made = make()
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(made)


def _fingerprints(texts: Any) -> Any:
    return tf.strings.to_hash_bucket_fast(texts, _BUCKETS)


class HashTable:
    """A table of constants.

    Attributes:
        key_dtype: of keys.
        value_dtype: of values.
        init: an operation that does nothing, in the place of TensorFlow's.
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer,
        default_value: Any,
        shared_name: str | None = None,
        name: str | None = None,
        num_oov_buckets: int = 0,
        hasher: Any = None,
    ) -> None:
        """Makes a table.

        Args:
            initializer: has the keys and values.
            default_value: of other keys.
            shared_name: without effect.
            name: of the ops' scope.
            num_oov_buckets: how many values other keys are spread over, behind all of the table.
            hasher: of other keys.

        Raises:
            GraphError: a key is there twice with several values.
        """
        del shared_name
        self.key_dtype, self.value_dtype = initializer.key_dtype, initializer.value_dtype
        self._default, self._oov, self._hasher = default_value, num_oov_buckets, hasher or FastHashSpec()
        self._scope, self._count = name or "table", len(initializer.keys)
        order_by = initializer.keys
        if self.key_dtype == tf.string and self._count:
            order_by = _computed(lambda: _fingerprints(tf.constant(initializer.keys.tolist())))
        order = np.argsort(order_by, kind="stable")
        self._sorted, self._keys = order_by[order], initializer.keys[order]
        self._values = initializer.values[order]
        same = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        for place in same:
            if self._keys[place] != self._keys[place + 1] or self._values[place] != self._values[place + 1]:
                raise GraphError(
                    f"Table '{self._scope}': the key {self._keys[place]!r} has several values, "
                    f"{self._values[place]} and {self._values[place + 1]}. Leave one out."
                )

    @property
    def init(self) -> Any:
        """See the class."""
        with current_model().enter():
            return tf.no_op(name="table_init")

    initializer = init

    def size(self, name: str | None = None) -> Any:
        """Returns the number of keys, with the buckets of other keys, as an int64 scalar."""
        with current_model().enter():
            return tf.constant(self._count + self._oov, tf.int64, name=name or "table_size")

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values of keys.

        Args:
            keys: a tensor, or a ``SparseTensor``, of the key's dtype.
            name: of the ops' scope.

        Raises:
            GraphError: for keys of another dtype.
        """
        with current_model().enter(), tf.name_scope(name or f"{self._scope}_Lookup"):
            if isinstance(keys, tf.SparseTensor | tf.compat.v1.SparseTensorValue):
                return tf.SparseTensor(keys.indices, self.lookup(keys.values), keys.dense_shape)
            if isinstance(keys, tf.RaggedTensor):
                return keys.with_flat_values(self.lookup(keys.flat_values))
            keys = tf.convert_to_tensor(keys, None if isinstance(keys, tf.Tensor) else self.key_dtype)
            if keys.dtype != self.key_dtype and not (keys.dtype.is_integer and self.key_dtype.is_integer):
                raise GraphError(f"Table '{self._scope}': keys must be {self.key_dtype.name}. Got {keys.dtype.name}.")
            other = self._other(keys)
            if not self._count:
                return other
            texts = self.key_dtype == tf.string
            wanted = _fingerprints(keys) if texts else tf.cast(keys, self.key_dtype)
            places = tf.searchsorted(tf.constant(self._sorted), tf.reshape(wanted, [-1]))
            places = tf.reshape(tf.minimum(places, self._count - 1), tf.shape(keys))
            places.set_shape(keys.shape)
            found = tf.equal(
                tf.gather(tf.constant(self._keys.tolist(), self.key_dtype), places), keys if texts else wanted
            )
            values = tf.gather(tf.constant(self._values.tolist(), self.value_dtype), places)
            return tf.where(found, values, other)

    __getitem__ = lookup

    def _other(self, keys: Any) -> Any:
        """The values of keys that are in no table."""
        if not self._oov:
            return tf.fill(tf.shape(keys), tf.constant(self._default, self.value_dtype))
        texts = keys if keys.dtype == tf.string else tf.as_string(keys)
        if self._hasher.hasher == "stronghash":
            made = tf.strings.to_hash_bucket_strong(texts, self._oov, self._hasher.key)
        else:
            made = tf.strings.to_hash_bucket_fast(texts, self._oov)
        return tf.cast(made + self._count, self.value_dtype)


class StaticHashTable(HashTable):
    """``tf.lookup.StaticHashTable``: a :class:`HashTable` without buckets."""

    def __init__(
        self,
        initializer: KeyValueTensorInitializer,
        default_value: Any,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        """Takes the keys and values, and the value of other keys."""
        del experimental_is_anonymous
        super().__init__(initializer, default_value, None, name)


class StaticVocabularyTable(HashTable):
    """``tf.lookup.StaticVocabularyTable``: a :class:`HashTable` with buckets for other keys."""

    def __init__(
        self,
        initializer: KeyValueTensorInitializer | None,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        """Takes the keys and values, which may be none, and the number of buckets.

        Raises:
            GraphError: there are no buckets.
        """
        del experimental_is_anonymous
        if num_oov_buckets <= 0:
            raise GraphError(
                f"StaticVocabularyTable: num_oov_buckets must be at least 1. Got {num_oov_buckets}. For none, use a "
                "StaticHashTable."
            )
        if initializer is None:
            initializer = KeyValueTensorInitializer([], [], tf.int64, tf.int64)
            initializer.key_dtype = tf.as_dtype(lookup_key_dtype or tf.string)
        super().__init__(initializer, -1, None, name, num_oov_buckets)


def index_table_from_tensor(
    mapping: Any = None,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = None,
    dtype: Any = tf.string,
    name: str | None = None,
    vocabulary_list: Any = None,
) -> HashTable:
    """The places of keys in a list; arguments are TensorFlow's (``vocabulary_list`` is ``tf.lookup``'s ``mapping``)."""
    keys = _static(mapping if vocabulary_list is None else vocabulary_list, "the mapping")
    made = KeyValueTensorInitializer(keys, np.arange(len(keys)), None if dtype == tf.string else dtype, tf.int64)
    return HashTable(made, default_value, None, name or "string_to_index", num_oov_buckets, hasher_spec)


def index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: Any = None,
    key_dtype: Any = tf.string,
    name: str | None = None,
    key_column_index: int = TextFileIndex.WHOLE_LINE,
    value_column_index: int = TextFileIndex.LINE_NUMBER,
    delimiter: str = "\t",
) -> HashTable:
    """The numbers of lines, by what stands in them; arguments are TensorFlow's."""
    made = TextFileInitializer(
        vocabulary_file, key_dtype, key_column_index, tf.int64, value_column_index, vocab_size, delimiter
    )
    return HashTable(made, default_value, None, name or "string_to_index", num_oov_buckets, hasher_spec)


def index_to_string_table_from_tensor(
    mapping: Any = None, default_value: str = "UNK", name: str | None = None, vocabulary_list: Any = None
) -> HashTable:
    """The texts of a list, by their places."""
    texts = _static(mapping if vocabulary_list is None else vocabulary_list, "the mapping")
    made = KeyValueTensorInitializer(np.arange(len(texts)), texts, tf.int64, tf.string)
    return HashTable(made, default_value, None, name or "index_to_string")


def index_to_string_table_from_file(
    vocabulary_file: Any,
    vocab_size: int | None = None,
    default_value: str = "UNK",
    name: str | None = None,
    key_column_index: int = TextFileIndex.LINE_NUMBER,
    value_column_index: int = TextFileIndex.WHOLE_LINE,
    delimiter: str = "\t",
) -> HashTable:
    """Makes a table of the lines of a file, by their numbers."""
    made = TextFileInitializer(
        vocabulary_file, tf.int64, key_column_index, tf.string, value_column_index, vocab_size, delimiter
    )
    return HashTable(made, default_value, None, name or "index_to_string")
