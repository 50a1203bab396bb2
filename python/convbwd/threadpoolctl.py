"""
Makes threadpoolctl see and limit the library's threads. Importing this module registers it.

>>> import convbwd.threadpoolctl
>>> from threadpoolctl import threadpool_limits
>>> with threadpool_limits(1, user_api="convbwd"):
...     convbwd.get_num_threads()
1
"""

from __future__ import annotations

from threadpoolctl import LibController, register

from convbwd import _core


class ConvbwdController(LibController):  # type: ignore[misc]
    """The pool of `convbwd.set_num_threads`."""

    user_api = "convbwd"
    internal_api = "convbwd"
    filename_prefixes = ("_core",)
    check_symbols = ("convbwd_get_num_threads",)

    def get_num_threads(self) -> int:
        """Return how many threads a call may use."""
        return _core.get_num_threads()

    def set_num_threads(self, num_threads: int) -> None:
        """Set how many threads a call may use, for the whole process."""
        _core.set_num_threads(num_threads)

    def get_version(self) -> str:
        """Return the version of the library."""
        return _core.__version__


register(ConvbwdController)
