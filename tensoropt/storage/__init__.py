"""Files between runs: written whole, kept where nobody else can write, read without trust."""

from tensoropt.storage.cache_folder import cache_directory, distrust, private_folder, remove, remove_leftovers
from tensoropt.storage.whole_file import PARTIAL, keep_name, write_whole

__all__ = [
    "PARTIAL",
    "cache_directory",
    "distrust",
    "keep_name",
    "private_folder",
    "remove",
    "remove_leftovers",
    "write_whole",
]
