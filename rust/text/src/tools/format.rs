//! How models write tool calls: one table of formats, which the chat template or a setting selects from.

use super::dialect::{self, Dialect};

/// A way to spell tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, once a call: Hermes, Qwen, SmolLM3.
    Hermes,
    /// `<tool_call>[{"name": .., "arguments": {..}}, ..]</tool_call>`: SmolLM2. Its template has no
    /// place for tools; they go into the system message.
    SmolLm2,
    /// `{"name": .., "parameters": {..}}` as the whole answer, after `<|python_tag|>` or nothing.
    Llama3,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{..}`, once a call: Mistral since the eleventh tokenizer version.
    MistralNamed,
    /// `<|tool_call|>[{"name": .., "arguments": {..}}, ..]`: Granite 3.
    Granite,
    /// The same with `<|/tool_call|>` at the end: Phi-4-mini, in templates that take tools.
    Phi4Mini,
    /// The same with the published template, which takes tools as a key of the system message.
    Phi4MiniSystem,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.
    Qwen3Coder,
    /// The same inside `<seed:tool_call>`: Seed-OSS.
    SeedOss,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM-4.5.
    Glm45,
    /// The same with nothing between its parts: GLM-4.7.
    Glm47,
    /// `<minimax:tool_call><invoke name=".."><parameter name="..">value</parameter></invoke>..`.
    MiniMaxM2,
    /// `<function_calls>name(key=value, ..)</function_calls>`, a line a call: OLMo 3.
    Olmo3,
    /// `[name(key=value, ..), ..]` as the whole answer, perhaps between `<|python_start|>` and
    /// `<|python_end|>`: Llama 4 with a template that asks for it.
    Llama4Pythonic,
    /// A call's name, then its arguments in a fence of Markdown: DeepSeek V3 and R1.
    DeepSeekV3,
    /// A call's name, then its arguments: DeepSeek V3.1.
    DeepSeekV31,
    /// `<|tool_call>call:name{key:<|"|>text<|"|>,..}<tool_call|>`: Gemma 4.
    Gemma4,
    /// A message to `functions.name`: gpt-oss. Its whole answer is read by `harmony.rs`.
    Harmony,
}

/// One line of the table.
struct Row {
    format: ToolFormat,
    /// What `--tool-call-parser` calls it: vLLM's name where vLLM has the format.
    name: &'static str,
    /// A template that has all of these texts asks for this format, if none above fits.
    signs: &'static [&'static str],
    /// What begins and ends a call. Special tokens among them stay in the text that is parsed.
    markers: &'static [&'static str],
}

/// Every format. Those with more specific signs come first.
const TABLE: [Row; 20] = [
    row(ToolFormat::Harmony, "openai", &["<|channel|>", "<|message|>"], &dialect::HARMONY),
    row(ToolFormat::Gemma4, "gemma4", &["<|tool_call>call:"], dialect::GEMMA_4.markers),
    row(
        ToolFormat::MistralNamed,
        "mistral_named",
        &["[TOOL_CALLS]", "[ARGS]"],
        &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    ),
    row(ToolFormat::Mistral, "mistral", &["[TOOL_CALLS]"], &["[TOOL_CALLS]"]),
    row(
        ToolFormat::DeepSeekV3,
        "deepseek_v3",
        &["<｜tool▁calls▁begin｜>", "```json"],
        dialect::DEEPSEEK_V3.markers,
    ),
    row(
        ToolFormat::DeepSeekV31,
        "deepseek_v31",
        &["<｜tool▁calls▁begin｜>"],
        dialect::DEEPSEEK_V31.markers,
    ),
    row(
        ToolFormat::MiniMaxM2,
        "minimax_m2",
        &["<minimax:tool_call>", "<invoke name="],
        dialect::MINIMAX_M2.markers,
    ),
    row(
        ToolFormat::SeedOss,
        "seed_oss",
        &["<seed:tool_call>", "<function="],
        dialect::SEED_OSS.markers,
    ),
    row(ToolFormat::Glm47, "glm47", &["</arg_key><arg_value>"], dialect::GLM_47.markers),
    row(ToolFormat::Glm45, "glm45", &["<tool_call>", "<arg_key>"], dialect::GLM_45.markers),
    row(
        ToolFormat::Qwen3Coder,
        "qwen3_coder",
        &["<tool_call>", "<function="],
        dialect::QWEN3_CODER.markers,
    ),
    row(ToolFormat::Olmo3, "olmo3", &["<function_calls>", "<functions>"], dialect::OLMO_3.markers),
    row(
        ToolFormat::Phi4Mini,
        "phi4_mini_json",
        &["<|tool_call|>", "<|/tool_call|>"],
        &["<|tool_call|>", "<|/tool_call|>"],
    ),
    row(
        ToolFormat::Phi4MiniSystem,
        "phi4_mini_system",
        &["<|tool|>", "<|/tool|>"],
        &["<|tool_call|>", "<|/tool_call|>"],
    ),
    row(ToolFormat::Hermes, "hermes", &["<tool_call>"], &["<tool_call>", "</tool_call>"]),
    row(
        ToolFormat::Llama4Pythonic,
        "llama4_pythonic",
        &["func_name1(params_name1="],
        dialect::LLAMA_4_PYTHONIC.markers,
    ),
    row(ToolFormat::Granite, "granite", &["<|start_of_role|>"], &["<|tool_call|>"]),
    row(ToolFormat::Llama3, "llama3_json", &["<|python_tag|>"], &["<|python_tag|>"]),
    row(ToolFormat::Llama3, "llama3_json", &["\"parameters\""], &["<|python_tag|>"]),
    // Its template has no place for tools, so `detect` looks for its name.
    row(ToolFormat::SmolLm2, "smollm2", &[], &["<tool_call>", "</tool_call>"]),
];

const fn row(
    format: ToolFormat,
    name: &'static str,
    signs: &'static [&'static str],
    markers: &'static [&'static str],
) -> Row {
    Row { format, name, signs, markers }
}

impl ToolFormat {
    /// The format that a template asks the model for; `None` where it has no tools, or spells calls
    /// in a way that we do not parse.
    pub fn detect(template: &str) -> Option<Self> {
        if !template.contains("tools") {
            return template.contains("SmolLM").then_some(Self::SmolLm2);
        }
        let fits =
            |row: &&Row| !row.signs.is_empty() && row.signs.iter().all(|s| template.contains(s));
        let found = TABLE.iter().find(fits)?.format;
        // A format of elements that is none of ours must not be read as JSON.
        let has_elements = template.contains("<function=") || template.contains("<arg_key>");
        let is_json = matches!(found, Self::Hermes | Self::Granite | Self::Llama3);
        (!(has_elements && is_json)).then_some(found)
    }

    /// The format of this name.
    pub fn named(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.format)
    }

    /// All formats, as `named` knows them.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
        names.dedup();
        names
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().map_or("", |row| row.name)
    }

    /// The markers of this format; a tokenizer may have them as special tokens, which must then stay
    /// in the text that the parser reads. The first one opens a call.
    pub fn markers(self) -> &'static [&'static str] {
        self.row().map_or(&[], |row| row.markers)
    }

    /// How calls are spelled whose name stands apart from JSON; `None` for other formats.
    pub(crate) fn dialect(self) -> Option<&'static Dialect> {
        Some(match self {
            Self::Qwen3Coder => &dialect::QWEN3_CODER,
            Self::SeedOss => &dialect::SEED_OSS,
            Self::Glm45 => &dialect::GLM_45,
            Self::Glm47 => &dialect::GLM_47,
            Self::MiniMaxM2 => &dialect::MINIMAX_M2,
            Self::Olmo3 => &dialect::OLMO_3,
            Self::Llama4Pythonic => &dialect::LLAMA_4_PYTHONIC,
            Self::DeepSeekV3 => &dialect::DEEPSEEK_V3,
            Self::DeepSeekV31 => &dialect::DEEPSEEK_V31,
            Self::Gemma4 => &dialect::GEMMA_4,
            _ => return None,
        })
    }

    fn row(self) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.format == self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_format_has_a_row_a_name_and_a_marker() {
        for name in ToolFormat::names() {
            let format = ToolFormat::named(name).unwrap();
            assert_eq!(format.name(), name);
            assert!(!format.markers().is_empty(), "{name}");
        }
        assert_eq!(ToolFormat::named("none"), None);
    }

    #[test]
    fn test_a_template_shows_its_format() {
        let cases = [
            ("tools <tool_call>{", Some(ToolFormat::Hermes)),
            ("tools <tool_call>\n<function=f>", Some(ToolFormat::Qwen3Coder)),
            ("tools <seed:tool_call>\n<function=f>", Some(ToolFormat::SeedOss)),
            ("tools <tool_call>f\n<arg_key>", Some(ToolFormat::Glm45)),
            ("tools <tool_call>f<arg_key>k</arg_key><arg_value>", Some(ToolFormat::Glm47)),
            ("tools [func_name1(params_name1=a)]", Some(ToolFormat::Llama4Pythonic)),
            ("tools <minimax:tool_call> <invoke name=\"", Some(ToolFormat::MiniMaxM2)),
            ("<functions> tools <function_calls>", Some(ToolFormat::Olmo3)),
            ("tools <｜tool▁calls▁begin｜> ```json", Some(ToolFormat::DeepSeekV3)),
            ("tools <｜tool▁calls▁begin｜>", Some(ToolFormat::DeepSeekV31)),
            ("tools <|channel|>analysis<|message|>", Some(ToolFormat::Harmony)),
            ("tools <|tool>{}<tool|> <|tool_call>call:f{}<tool_call|>", Some(ToolFormat::Gemma4)),
            ("tools [TOOL_CALLS] [ARGS]", Some(ToolFormat::MistralNamed)),
            ("tools [TOOL_CALLS]", Some(ToolFormat::Mistral)),
            ("tools <|tool|><|tool_call|>[]<|/tool_call|>", Some(ToolFormat::Phi4Mini)),
            ("tools <|tool|>{}<|/tool|>", Some(ToolFormat::Phi4MiniSystem)),
            ("tools <|start_of_role|>assistant<|tool_call|>", Some(ToolFormat::Granite)),
            ("tools <|start_of_role|> <tool_call>{", Some(ToolFormat::Hermes)),
            ("tools <|python_tag|>", Some(ToolFormat::Llama3)),
            ("tools {\"name\": n, \"parameters\": p}", Some(ToolFormat::Llama3)),
            ("SmolLM <tool_call>", Some(ToolFormat::SmolLm2)),
            // A function's element around JSON, or without its frame, is no format of ours.
            ("tools <function=f>{} <|python_tag|>", None),
            ("tools only", None),
            ("<tool_call>", None),
        ];
        for (template, format) in cases {
            assert_eq!(ToolFormat::detect(template), format, "{template}");
        }
    }
}
