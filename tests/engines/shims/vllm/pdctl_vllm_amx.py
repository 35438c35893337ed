"""Asks Linux for the AMX tile registers at the start of every process of the test environment.

vLLM's bfloat16 attention on CPU uses AMX where the machine has it, but only some of its operators ask for the
permission. A decode engine whose first request comes with its KV cache runs none of those, and dies of SIGILL.
"""

import ctypes
import platform

_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18

if platform.system() == "Linux" and platform.machine() == "x86_64":
    ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)  # fails harmlessly where there is no AMX
