"""Files between runs: written whole, kept where nobody else can write, read without trust."""

from tensoropt.storage.cache_folder import cache_directory, private_folder, wanted_cache
from tensoropt.storage.regular_file import distrust, open_regular, read_regular
from tensoropt.storage.unfinished_files import PARTIAL, discard_folder, escaped, new_folder, remove_leftovers
from tensoropt.storage.whole_file import keep_name, write_whole

__all__ = [
    "PARTIAL",
    "cache_directory",
    "discard_folder",
    "distrust",
    "escaped",
    "keep_name",
    "new_folder",
    "open_regular",
    "private_folder",
    "read_regular",
    "remove_leftovers",
    "wanted_cache",
    "write_whole",
]
