"""File systems, locks, ranks and validation for every other package. Knows nothing of Parquet."""

from __future__ import annotations

# First of all imports: pyarrow can hang at exit if a thread other than the main one imports it first.
import parquet_loader.common.arrow_setup

# isort: split

from parquet_loader.common.arrow_features import (
    fill_null,
    from_numpy,
    inferred_array,
    reads_null_fixed_size_lists,
    referenced_bytes,
    scalar,
    text_array,
)
from parquet_loader.common.arrow_setup import has_gil, prepare_thread, use_returning_pool
from parquet_loader.common.deprecation import warn_at_caller, warn_deprecated
from parquet_loader.common.descriptors import is_out_of_descriptors, out_of_descriptors, raise_limit
from parquet_loader.common.distributed import Ranks, Shard, broadcasting_errors, current_ranks, is_worker
from parquet_loader.common.expressions import Call, FieldRef, Literal, Node, named_columns, nodes, read_expression
from parquet_loader.common.failures import (
    is_out_of_memory,
    is_shortage,
    out_of_memory,
    reading_errors,
    starting_threads,
    system_error,
)
from parquet_loader.common.hints import (
    DATASET_KEYWORDS,
    LOADER_KEYWORDS,
    WRITER_KEYWORDS,
    NotCopied,
    NotIndexed,
    check_frame,
    check_keywords,
    check_source,
    explains_keywords,
    named,
    needs_package,
)
from parquet_loader.common.lru_cache import LruCache
from parquet_loader.common.native.bindings import (
    ENDED,
    FULL,
    KERNELS,
    NO_MEMORY,
    PROBLEM,
    SYSTEM,
    failed_read,
    kernels_remedy,
    trim_buffers,
    warn_if_missing,
)
from parquet_loader.common.native.bindings import IS_BUILT as IS_BUILT  # documented: docs/install.md
from parquet_loader.common.native.bindings import LOADED_CODECS as LOADED_CODECS  # the same
from parquet_loader.common.native.permute import (
    READ_BEHIND,
    RaggedOrder,
    addresses_of,
    copy_columns,
    join_columns,
    order_after,
    order_ragged,
    take_columns,
    take_ragged,
)
from parquet_loader.common.options import OutputOptions, ReadOptions, RemoteOptions, ShardOptions
from parquet_loader.common.permutations import (
    PERMUTATION_METHOD,
    IndexedStream,
    OrderMemory,
    Stream,
    WordArray,
    bit_generator,
    number_bits,
    order_of_words,
    permutation,
    random_words,
)
from parquet_loader.common.processors import available_processors
from parquet_loader.common.progress import ShowProgress, no_progress, progress_bar, shown_progress
from parquet_loader.common.signals import (
    SIGINT_POLL_S,
    in_order,
    in_threads,
    result_of,
    signal_name,
    uninterrupted,
    wait_for_lock,
)
from parquet_loader.common.signatures import IMAGE_SUFFIXES, SIGNATURE_BYTES, audio_kind, image_kind, video_kind
from parquet_loader.common.splitmix import GOLDEN, LAST_SHIFT, MASK, STEPS, Words, hashed_bytes, mixed, mixed_words
from parquet_loader.common.storage.account_file import begin_account, end_account, format_account, parse_account
from parquet_loader.common.storage.endpoints import (
    BROKEN_OFF,
    UnreachableError,
    endpoint_of,
    endpoint_of_url,
    is_encrypted,
    probe,
    refused,
    remedy,
)
from parquet_loader.common.storage.file_locks import (
    FileLock,
    LockedFile,
    check_locks_exclude,
    exclusive,
    holds_exclusive,
    is_locked,
)
from parquet_loader.common.storage.filesystem import (
    PathLike,
    identity_of,
    is_local,
    list_below,
    local_path,
    look_up,
    resolve,
    schemes_of,
    url_prefix,
)
from parquet_loader.common.storage.hub.address import HubAddress
from parquet_loader.common.storage.hub.api import HubApi, HubEntry, HubError
from parquet_loader.common.storage.hub.connections import abort
from parquet_loader.common.storage.hub.filesystem import hub_of
from parquet_loader.common.storage.local_files import TEMPORARY, remove_file, replace_file, write_report
from parquet_loader.common.storage.redaction import shown, without_secrets
from parquet_loader.common.storage.trust import NO_LINK, check_private, is_plain_name, is_within, make_private, no_link
from parquet_loader.common.typing import BoolArray, Digests, IntArray
from parquet_loader.common.units import format_bytes, format_count, parse_bytes
from parquet_loader.common.validation import (
    check_bool,
    check_choice,
    check_columns,
    check_int,
    check_kind,
    check_split,
    check_transform,
    check_window,
    is_number,
    unfit_call,
)
