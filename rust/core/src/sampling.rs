//! A request's sampling fields: names, ranges and defaults. Plain data, shared by wire, plan and
//! executors. Any thread.
//!
//! `SAMPLING_FIELDS` is the only list of the plain ones. The wire document, a model's defaults, the
//! HTTP request types, `ingle.SamplingParams`, `/openapi.json`, the command line's flags, the words of
//! a slot on a GPU and docs/FIELDS.md are made from it (decision 0060). A new field is one line here
//! and its effect in the samplers of the devices.

use crate::TokenId;

/// Defines `SamplingParams` and `SAMPLING_FIELDS` from one line a field: type and default, the range,
/// the values that mean "off" (the first is the usual one), and whether generation_config.json may set
/// the default. The doc comment is what users read.
macro_rules! plain_fields {
    ($($(#[doc = $about:literal])+ $name:ident: $kind:ident = $default:literal,
        $range:expr, off $off:expr, from_model $from_model:literal;)+) => {
        /// Sampling parameters of one request, already validated and complete.
        ///
        /// The order of the sampler is fixed: raw log-probs, `logit_bias`, allowed ids and masks,
        /// penalties, temperature, top-k, top-p, min-p, top-n-sigma, then Gumbel-max with Philox keyed
        /// by seed, choice index, output position and token id. A temperature of 0 is argmax; the lowest id wins
        /// a tie.
        #[derive(Clone, Debug, PartialEq)]
        pub struct SamplingParams {
            $($(#[doc = $about])+ pub $name: $kind,)+
            /// Added to raw logits.
            pub logit_bias: Vec<(TokenId, f32)>,
            /// If set, no other token can be sampled; sorted, without doubles, not empty.
            pub allowed_token_ids: Option<Vec<TokenId>>,
            /// While the output is shorter than this, `min_tokens_banned` cannot be sampled.
            pub min_tokens: u32,
            /// The ids that `min_tokens` holds back: end-of-text and stop ids.
            pub min_tokens_banned: Vec<TokenId>,
            /// Key of the random numbers.
            pub seed: u64,
            /// Which of the `n` choices this is; part of the random key.
            pub choice_index: u32,
            /// Log-probs wanted with each sampled token: `Some(k)` is the token itself and the `k` best.
            pub log_probs: Option<u32>,
        }

        impl SamplingParams {
            /// What a request without sampling fields gets from a model without defaults.
            #[must_use]
            pub fn unset() -> Self {
                Self {
                    $($name: $default,)+
                    logit_bias: Vec::new(),
                    allowed_token_ids: None,
                    min_tokens: 0,
                    min_tokens_banned: Vec::new(),
                    seed: 0,
                    choice_index: 0,
                    log_probs: None,
                }
            }
        }

        /// How many plain sampling fields there are.
        pub const NUM_SAMPLING_FIELDS: usize = [$(stringify!($name)),+].len();

        /// The plain sampling fields: one number each. In the order of the documentation and of the
        /// words that the kernels read.
        pub static SAMPLING_FIELDS: &[SamplingField] = &[$(SamplingField {
            name: stringify!($name),
            about: concat!($($about),+),
            is_whole: $kind::IS_WHOLE,
            range: $range,
            default: $default as f64,
            off: &$off,
            from_model: $from_model,
            get: |params| f64::from(params.$name),
            set: |params, value, range| params.$name = $kind::of(value, range),
        }),+];
    };
}

plain_fields! {
    /// Higher values flatten the distribution; 0 always takes the most likely token.
    temperature: f32 = 1.0, from(0.0, 2.0), off [], from_model true;
    /// Samples from the k most likely tokens; 0 and -1 keep all.
    top_k: u32 = 0, from(-1.0, 2_147_483_647.0), off [0.0, -1.0], from_model true;
    /// Samples from the smallest set of tokens with at least this total probability; 1 keeps all.
    top_p: f32 = 1.0, above(0.0, 1.0), off [1.0], from_model true;
    /// Drops tokens less likely than this times the most likely token; 0 keeps all.
    min_p: f32 = 0.0, from(0.0, 1.0), off [0.0], from_model true;
    /// Drops tokens whose logit is more than this many standard deviations of all logits below the best; 0 keeps all.
    top_n_sigma: f32 = 0.0, from(0.0, 100.0), off [0.0], from_model false;
    /// Values above 1 make tokens of the prompt and the answer less likely; 1 is off.
    repetition_penalty: f32 = 1.0, from(0.01, 100.0), off [1.0], from_model true;
    /// Subtracted once from the logit of each token that the answer already contains; 0 is off.
    presence_penalty: f32 = 0.0, from(-2.0, 2.0), off [0.0], from_model false;
    /// Subtracted from a token's logit once per occurrence in the answer so far; 0 is off.
    frequency_penalty: f32 = 0.0, from(-2.0, 2.0), off [0.0], from_model false;
}

/// One plain sampling field: a number that a request may set.
#[derive(Clone, Copy, Debug)]
pub struct SamplingField {
    /// As in requests.
    pub name: &'static str,
    /// What it does, for users; begins with a space.
    about: &'static str,
    /// Whether only integers are taken.
    pub is_whole: bool,
    /// What is taken.
    pub range: NumberRange,
    /// The value without a request's or a model's word.
    pub default: f64,
    /// Values that change nothing, the usual one first.
    pub off: &'static [f64],
    /// Whether generation_config.json may set the default.
    pub from_model: bool,
    get: fn(&SamplingParams) -> f64,
    set: fn(&mut SamplingParams, f64, NumberRange),
}

impl SamplingField {
    /// The field of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        SAMPLING_FIELDS.iter().find(|field| field.name == name)
    }

    /// What it does, for users.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.about.trim_start()
    }

    /// What is allowed, for errors and documents: `a number from 0 to 1`.
    #[must_use]
    pub fn allowed(&self) -> String {
        let kind = if self.is_whole { "a whole number" } else { "a number" };
        let NumberRange { least, excludes_least, most } = self.range;
        if excludes_least {
            format!("{kind} above {least} and at most {most}")
        } else {
            format!("{kind} from {least} to {most}")
        }
    }

    /// The value that the parameters have.
    #[must_use]
    pub fn get(&self, params: &SamplingParams) -> f64 {
        (self.get)(params)
    }

    /// Sets the field to a client's or a model's value.
    ///
    /// # Errors
    /// One line that names the field, what is allowed, and `given`: the value as it was written.
    pub fn put(
        &self,
        params: &mut SamplingParams,
        value: f64,
        given: &dyn std::fmt::Display,
    ) -> Result<(), String> {
        if !self.range.has(value) || (self.is_whole && value.fract() != 0.0) {
            return Err(self.refusal(given));
        }
        (self.set)(params, value, self.range);
        Ok(())
    }

    /// What an error says of `given`, a value that the field cannot have.
    #[must_use]
    pub fn refusal(&self, given: &dyn std::fmt::Display) -> String {
        format!("{}: must be {}, not {given}", self.name, self.allowed())
    }
}

/// The numbers that a field takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberRange {
    /// The least of them, or what all of them are above.
    pub least: f64,
    /// Whether `least` itself is not taken.
    pub excludes_least: bool,
    /// The greatest.
    pub most: f64,
}

impl NumberRange {
    /// Whether a value is in it; NaN never is.
    #[must_use]
    pub fn has(self, value: f64) -> bool {
        let reaches = if self.excludes_least { value > self.least } else { value >= self.least };
        reaches && value <= self.most
    }
}

const fn from(least: f64, most: f64) -> NumberRange {
    NumberRange { least, excludes_least: false, most }
}

const fn above(least: f64, most: f64) -> NumberRange {
    NumberRange { least, excludes_least: true, most }
}

/// The types that a plain field has in `SamplingParams`.
trait PlainNumber {
    /// Whether requests give it as an integer.
    const IS_WHOLE: bool;

    /// From a value in `range`.
    fn of(value: f64, range: NumberRange) -> Self;
}

impl PlainNumber for f32 {
    const IS_WHOLE: bool = false;

    fn of(value: f64, range: NumberRange) -> Self {
        let rounded = value as f32;
        // f32 may round a tiny number to 0, which the range may exclude.
        if rounded == 0.0 && !range.has(0.0) { f32::MIN_POSITIVE } else { rounded }
    }
}

impl PlainNumber for u32 {
    const IS_WHOLE: bool = true;

    fn of(value: f64, _: NumberRange) -> Self {
        // Saturates: -1, which is another way to write "off", becomes 0.
        value as u32
    }
}

impl Default for SamplingParams {
    /// Greedy, nothing else changed.
    fn default() -> Self {
        Self { temperature: 0.0, ..Self::unset() }
    }
}

impl SamplingParams {
    /// Whether the sampler must know which tokens came before.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_takes_its_bounds_and_nothing_beyond_them() {
        for field in SAMPLING_FIELDS {
            let mut params = SamplingParams::unset();
            let step = if field.is_whole { 1.0 } else { 1e-9 };
            let NumberRange { least, excludes_least, most } = field.range;
            let inside = if excludes_least { least + step } else { least };
            for value in [inside, most].into_iter().chain(field.off.iter().copied()) {
                assert_eq!(field.put(&mut params, value, &value), Ok(()), "{}", field.name);
            }
            for value in [inside - step, most + step, f64::NAN, f64::INFINITY] {
                let text = field.put(&mut params, value, &value).expect_err(field.name);
                assert_eq!(
                    text,
                    format!("{}: must be {}, not {value}", field.name, field.allowed())
                );
            }
            assert_eq!(field.get(&SamplingParams::unset()), field.default, "{}", field.name);
            assert!(field.range.has(field.default), "{}", field.name);
        }
    }

    #[test]
    fn a_value_lands_in_the_field_of_its_name() {
        let put = |name: &str, value: f64| {
            let mut params = SamplingParams::unset();
            let field = SamplingField::named(name).expect(name);
            field.put(&mut params, value, &value).expect(name);
            assert_eq!(field.get(&params), f64::from(value as f32), "{name}");
            params
        };
        assert_eq!(put("temperature", 0.5).temperature, 0.5);
        assert_eq!(put("top_p", 0.5).top_p, 0.5);
        assert_eq!(put("top_k", 7.0).top_k, 7);
        assert_eq!(put("repetition_penalty", 0.5).repetition_penalty, 0.5);
        assert_eq!(put("frequency_penalty", -0.5).frequency_penalty, -0.5);
        assert!(SamplingField::named("temprature").is_none());
    }

    #[test]
    fn both_ways_to_switch_top_k_off_are_zero() {
        let field = SamplingField::named("top_k").expect("top_k");
        for off in [0.0, -1.0] {
            let mut params = SamplingParams { top_k: 5, ..SamplingParams::unset() };
            field.put(&mut params, off, &off).expect("off");
            assert_eq!(params.top_k, 0);
        }
        assert!(field.put(&mut SamplingParams::unset(), 1.5, &1.5).is_err());
    }

    #[test]
    fn a_tiny_number_stays_above_an_excluded_zero() {
        let field = SamplingField::named("top_p").expect("top_p");
        let mut params = SamplingParams::unset();
        field.put(&mut params, 1e-60, &1e-60).expect("above 0");
        assert_eq!(params.top_p, f32::MIN_POSITIVE);
    }
}
