//! Which symbolic links of a model folder are followed. A folder from a stranger may hold a link to a
//! secret of this machine, as its chat template for example, which clients can read. At start, any thread.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::fs::canonicalize;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::error::ModelError;

/// Whether `path`, a file of a model's `folder` or a folder in it, may be opened: it lies there, or in the
/// `blobs` of the same model in a Hugging Face cache, or every user of the machine may read it. A path
/// that leads nowhere may be opened; that fails for its own reason.
pub fn may_follow(folder: &Path, path: &Path) -> bool {
    let (Ok(home), Ok(real)) = (canonicalize(folder), canonicalize(path)) else { return true };
    if real.starts_with(&home) {
        return true;
    }
    // models--ORG--NAME/snapshots/HASH, or a folder in that.
    let snapshots = home.ancestors().skip(1).take(2).find(|above| above.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|model| model.join("blobs"));
    blobs.is_some_and(|blobs| real.starts_with(blobs)) || is_public(&real)
}

/// Refuses what `may_follow` does not allow.
pub(crate) fn check(folder: &Path, path: &Path) -> Result<(), ModelError> {
    if may_follow(folder, path) {
        return Ok(());
    }
    let target = canonicalize(path).unwrap_or_default();
    let reason = format!(
        "is a link to {}, outside of the model's folder, which not every user may read: copy it into the folder",
        target.display()
    );
    Err(ModelError::malformed(&path.display().to_string(), reason))
}

fn is_public(real: &Path) -> bool {
    let has = |path: &Path, bits: u32| {
        path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & bits == bits)
    };
    has(real, 0o004) && real.ancestors().skip(1).all(|folder| has(folder, 0o001))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A folder of its own that everybody may enter; it is gone at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ingle-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            Self(canonicalize(path).unwrap())
        }

        fn file(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn test_links_to_what_others_may_not_read_are_not_followed() {
        let scratch = Scratch::new("links");
        let (secret, public) = (scratch.file("keys", 0o600), scratch.file("shared", 0o644));
        let hidden = scratch.file("private/readable", 0o644);
        fs::set_permissions(hidden.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
        let inside = scratch.file("model/config.json", 0o600);
        let folder = scratch.0.join("model");
        let linked = |target: &Path| {
            let link = folder.join("chat_template.jinja");
            fs::remove_file(&link).ok();
            symlink(target, &link).unwrap();
            may_follow(&folder, &link)
        };
        assert!(linked(&inside) && linked(Path::new("config.json")));
        // Unless all temporary files are hidden from others.
        assert_eq!(linked(&public), is_public(&scratch.file("public", 0o644)));
        assert!(!linked(&secret) && !linked(Path::new("../keys")) && !linked(&hidden));
        assert!(!linked(Path::new("/proc/self/environ")));
        let link = folder.join("chat_template.jinja");
        let error = check(&folder, &link).unwrap_err().to_string();
        assert!(error.contains("chat_template.jinja: is a link to /proc/"), "{error}");
        assert!(linked(Path::new("nowhere")), "that has an error of its own");
        assert!(may_follow(&folder, &inside));
    }

    #[test]
    fn test_a_snapshot_reaches_the_blobs_of_its_own_model_alone() {
        let scratch = Scratch::new("snapshots");
        let own = scratch.file("models--a--b/blobs/1", 0o600);
        let other = scratch.file("models--c--d/blobs/1", 0o600);
        let folder = scratch.0.join("models--a--b/snapshots/hash");
        for folder in [folder.clone(), folder.join("1_Pooling")] {
            fs::create_dir_all(&folder).unwrap();
            for (target, is_followed) in [(&own, true), (&other, false)] {
                let link = folder.join("config.json");
                fs::remove_file(&link).ok();
                symlink(target, &link).unwrap();
                assert_eq!(may_follow(&folder, &link), is_followed);
            }
        }
    }
}
