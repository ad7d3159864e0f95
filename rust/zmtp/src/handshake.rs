//! The greeting and the READY command of both sides. Any thread.

use crate::error::ZmtpError;
use crate::frame::{COMMAND, Frame, put};

/// Bytes of a greeting.
pub(crate) const GREETING_LEN: usize = 64;

/// Our greeting: signature, version 3.0, NULL, not a server.
pub(crate) fn greeting() -> [u8; GREETING_LEN] {
    let mut bytes = [0; GREETING_LEN];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Checks a peer's greeting as far as it has come; true once it is whole.
///
/// # Errors
/// `Signature`, `Version` or `Mechanism`.
pub(crate) fn check_greeting(bytes: &[u8]) -> Result<bool, ZmtpError> {
    if bytes.first().is_some_and(|&byte| byte != 0xff)
        || bytes.get(9).is_some_and(|&byte| byte != 0x7f)
    {
        return Err(ZmtpError::Signature);
    }
    if let Some(&version) = bytes.get(10).filter(|&&version| version < 3) {
        return Err(ZmtpError::Version(version));
    }
    let Some(mechanism) = bytes.get(12..32) else { return Ok(false) };
    if mechanism != NULL {
        return Err(ZmtpError::Mechanism);
    }
    Ok(bytes.len() >= GREETING_LEN)
}

/// The READY command of a socket of this type.
pub(crate) fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend_from_slice(&(socket_type.len() as u32).to_be_bytes());
    body.extend_from_slice(socket_type.as_bytes());
    let mut out = Vec::with_capacity(body.len() + 2);
    put(&mut out, COMMAND, &body);
    out
}

/// Checks the peer's READY; its socket must have one of these types.
///
/// # Errors
/// `Ready`, `SocketType` or `Refused`.
pub(crate) fn check_ready(frame: Frame<'_>, allowed: &[&str]) -> Result<(), ZmtpError> {
    let (name, mut rest) = command(frame.body).ok_or(ZmtpError::Ready)?;
    match name {
        b"READY" if frame.is_command => {}
        b"ERROR" if frame.is_command => return Err(ZmtpError::Refused),
        _ => return Err(ZmtpError::Ready),
    }
    let mut found = None;
    while !rest.is_empty() {
        let (name, value, after) = property(rest).ok_or(ZmtpError::Ready)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            found = Some(value);
        }
        rest = after;
    }
    match found {
        Some(kind) if allowed.iter().any(|each| each.as_bytes() == kind) => Ok(()),
        _ => Err(ZmtpError::SocketType),
    }
}

/// A command's name and the rest of its body.
pub(crate) fn command(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = body.split_first()?;
    rest.split_at_checked(usize::from(len))
}

/// Name and value of the first property, and what follows it.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = command(bytes)?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (value, rest) = rest.split_at_checked(len)?;
    Some((name, value, rest))
}

const NULL: &[u8] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
