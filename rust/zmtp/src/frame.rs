//! Frames: flags, length, body. Any thread.

use crate::error::ZmtpError;

/// The frame has a successor in the same message.
pub(crate) const MORE: u8 = 1;
/// Eight bytes of length instead of one.
pub(crate) const LONG: u8 = 2;
/// A command instead of a part of a message.
pub(crate) const COMMAND: u8 = 4;

/// One frame of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) is_command: bool,
    pub(crate) has_more: bool,
    pub(crate) body: &'a [u8],
}

/// The first frame of `bytes` and its whole length; `None` while it is incomplete.
///
/// # Errors
/// `Frame` for flags that do not exist, `TooMuch` for a body above `max_len`.
pub(crate) fn split(bytes: &[u8], max_len: usize) -> Result<Option<(Frame<'_>, usize)>, ZmtpError> {
    let Some((&flags, rest)) = bytes.split_first() else { return Ok(None) };
    let is_command = flags & COMMAND != 0;
    let has_more = flags & MORE != 0;
    if flags & !(MORE | LONG | COMMAND) != 0 || (is_command && has_more) {
        return Err(ZmtpError::Frame);
    }
    let (len, head) = if flags & LONG != 0 {
        let Some((len, _)) = rest.split_first_chunk::<8>() else { return Ok(None) };
        (u64::from_be_bytes(*len), 9)
    } else {
        let Some(&len) = rest.first() else { return Ok(None) };
        (u64::from(len), 2)
    };
    let len = usize::try_from(len).map_err(|_| ZmtpError::TooMuch)?;
    if len > max_len {
        return Err(ZmtpError::TooMuch);
    }
    // Both are small: the sum cannot overflow.
    let end = head + len;
    Ok(bytes.get(head..end).map(|body| (Frame { is_command, has_more, body }, end)))
}

/// Appends one frame; `flags` without LONG.
pub(crate) fn put(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(len) => out.extend_from_slice(&[flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// A message as it is sent: all its frames.
#[must_use]
pub fn encode_message(frames: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (number, frame) in frames.iter().enumerate() {
        put(&mut out, if number + 1 < frames.len() { MORE } else { 0 }, frame);
    }
    out
}
