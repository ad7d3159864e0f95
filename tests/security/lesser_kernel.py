"""Runs a command as on a kernel that lacks something: python lesser_kernel.py WITHOUT COMMAND...

WITHOUT is `landlock` (built in but not active), `landlock,namespaces` (users get none either), or
`capset` (taken away by a service manager, as security/ingle.service does).
"""

import ctypes
import errno
import os
import struct
import sys

NUMBERS = {
    "landlock": (444, errno.EOPNOTSUPP),
    "namespaces": (272, errno.EPERM),
    "capset": (126, errno.EPERM),
}
"""landlock_create_ruleset, unshare and capset on x86-64."""
LOAD_NUMBER = (0x20, 0, 0, 0)
ALLOW = (0x06, 0, 0, 0x7FFF0000)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def refuse(names):
    """A seccomp filter that gives the errors of a kernel without these."""
    steps = [LOAD_NUMBER]
    for name in names:
        number, error = NUMBERS[name]
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error)]
    code = b"".join(struct.pack("<HBBI", *step) for step in [*steps, ALLOW])
    buffer = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(
        struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0),
    ):
        if libc.prctl(*(ctypes.c_ulong(each) for each in arguments)) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    refuse(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
