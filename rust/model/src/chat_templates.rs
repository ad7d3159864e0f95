//! The chat templates of a checkpoint, by name. Reads small files at start and compiles nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::config::Fields;
use crate::error::{ModelError, shown};
use crate::gguf::GgufMetadata;
use crate::json_file::{Json, read};
use crate::links;

/// Chat templates by name. A checkpoint with one template calls it `default`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTemplates {
    /// Name to source.
    pub named: BTreeMap<String, String>,
}

impl ChatTemplates {
    /// A checkpoint with one template or none.
    pub fn only(source: Option<String>) -> Self {
        Self { named: source.map(|source| (DEFAULT.to_owned(), source)).into_iter().collect() }
    }

    /// Those of a GGUF file: `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for each name
    /// listed in `tokenizer.chat_templates`.
    pub(crate) fn of_gguf(metadata: &GgufMetadata) -> Result<Self, ModelError> {
        let Self { mut named } = Self::only(metadata.string(GGUF_KEY)?.map(str::to_owned));
        let list = metadata.strings(GGUF_LIST)?.unwrap_or_default();
        if list.len() > MAX_TEMPLATES {
            return Err(ModelError::field(metadata.file(), GGUF_LIST, too_many()));
        }
        for name in list {
            let key = format!("{GGUF_KEY}.{name}");
            let source = metadata.string(&key)?.ok_or_else(|| {
                let reason = format!("is missing, but {GGUF_LIST} lists its name");
                ModelError::field(metadata.file(), &key, reason)
            })?;
            let first = named.entry(name.to_string()).or_insert_with(|| source.to_owned());
            if first != source {
                let reason = format!("contradicts {GGUF_KEY}, which is the default template too");
                return Err(ModelError::field(metadata.file(), &key, reason));
            }
        }
        Ok(Self { named })
    }

    /// Those of a Hugging Face folder. If several files hold a template of one name, the first of these
    /// wins: chat_template.jinja and additional_chat_templates/NAME.jinja, tokenizer_config.json,
    /// chat_template.json.
    pub(crate) fn of_folder(folder: &Path, config: Option<&Json>) -> Result<Self, ModelError> {
        let mut named = BTreeMap::new();
        if let Some(source) = text_of(folder, "chat_template.jinja")? {
            named.insert(DEFAULT.to_owned(), source);
        }
        let more = folder.join(ADDITIONAL);
        if more.is_dir() {
            links::check(folder, &more)?;
            let unreadable = |cause: std::io::Error| ModelError::Layout {
                path: more.display().to_string(),
                reason: format!("cannot be read: {cause}"),
            };
            for entry in std::fs::read_dir(&more).map_err(unreadable)? {
                let file = entry.map_err(unreadable)?.file_name();
                let file = file.to_string_lossy();
                let Some(name) = file.strip_suffix(".jinja") else { continue };
                if named.len() >= MAX_TEMPLATES {
                    return Err(ModelError::malformed(ADDITIONAL, too_many()));
                }
                if let Some(source) = text_of(&more, &file)? {
                    named.entry(name.to_owned()).or_insert(source);
                }
            }
        }
        let legacy = match named.is_empty() {
            true => Json::optional(folder, "chat_template.json", MAX_TEMPLATE_BYTES)?,
            false => None,
        };
        for json in config.into_iter().chain(&legacy) {
            for (name, source) in of_config(&json.fields()?)? {
                named.entry(name).or_insert(source);
            }
        }
        Ok(Self { named })
    }
}

/// The templates in a `chat_template` field: a string, or a list of named ones.
fn of_config(config: &Fields<'_>) -> Result<Vec<(String, String)>, ModelError> {
    match config.get(KEY) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![(DEFAULT.to_owned(), text.clone())]),
        Some(Value::Array(list)) if list.len() <= MAX_TEMPLATES => {
            let entry = |item: &Value| {
                let text = |key: &str| Some(item.get(key)?.as_str()?.to_owned());
                let pair = text("name").zip(text("template"));
                pair.ok_or_else(|| {
                    config.error(KEY, "is a list with an entry without name or template")
                })
            };
            let named = list.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
            let mut names = BTreeSet::new();
            match named.iter().find(|(name, _)| !names.insert(name)) {
                Some((name, _)) => {
                    let reason = format!("has two templates of the name {}", shown(name));
                    Err(config.error(KEY, reason))
                }
                None => Ok(named),
            }
        }
        Some(other) => Err(config.wrong(KEY, other, "a template or a list of named templates")),
    }
}

fn text_of(folder: &Path, file: &str) -> Result<Option<String>, ModelError> {
    let Some((name, bytes)) = read(folder, file, MAX_TEMPLATE_BYTES)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| ModelError::malformed(&name, "not UTF-8"))
}

fn too_many() -> String {
    format!("has more than {MAX_TEMPLATES} templates")
}

const KEY: &str = "chat_template";
const GGUF_KEY: &str = "tokenizer.chat_template";
const GGUF_LIST: &str = "tokenizer.chat_templates";
const DEFAULT: &str = "default";
const ADDITIONAL: &str = "additional_chat_templates";
/// Published models have up to four.
const MAX_TEMPLATES: usize = 32;
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;
