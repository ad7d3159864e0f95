//! Names of the errors that probes can end with. Pure.

/// `EPERM` for 1; a number that has no name here stays one.
pub(super) fn error_name(number: i32) -> String {
    let known = NAMES.iter().find(|(_, known)| *known == number);
    known.map_or_else(|| format!("error {number}"), |(name, _)| (*name).to_owned())
}

macro_rules! errors {
    ($($name:ident)*) => {
        &[$((stringify!($name), libc::$name)),*]
    };
}

const NAMES: &[(&str, i32)] = errors! {
    E2BIG EACCES EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EAGAIN EBADF EBUSY ECHILD ECONNREFUSED EEXIST EFAULT EFBIG
    EINVAL EIO EISDIR ELOOP EMFILE ENETUNREACH ENODEV ENOENT ENOKEY ENOMEM ENOSPC ENOSYS ENOTDIR ENOTSOCK ENOTTY ENXIO
    EOPNOTSUPP EPERM EPROTONOSUPPORT EROFS ESOCKTNOSUPPORT ESRCH EUSERS EXDEV
};
