//! Computes the tables of a `RopeSpec`, once, at load. Formulas are those of Hugging Face's
//! modeling_rope_utils, computed in f64 and rounded at the end.

use std::f64::consts::PI;

use crate::config::limits;
use crate::{RopeKind, RopeSpec};

/// Position p turns pair i by the angle `p * inv_freq[i]`; cos and sin are multiplied by
/// `attention_factor`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTables {
    /// `[rotary_dim / 2]`
    pub inv_freq: Vec<f32>,
    /// 1 except for YaRN and LongRoPE.
    pub attention_factor: f32,
}

impl RopeSpec {
    /// The context of a model that declares `declared` positions. A YaRN entry stretches the length of
    /// training, and published ones (Qwen2.5) leave the declared length at that.
    pub(crate) fn context_of(ropes: &[Self], declared: u32) -> u32 {
        ropes.iter().map(|rope| rope.context(declared)).max().unwrap_or(declared)
    }

    fn context(&self, declared: u32) -> u32 {
        let RopeKind::Yarn { factor, original_max_position_embeddings, .. } = self.kind else {
            return declared;
        };
        let stretched = f64::from(original_max_position_embeddings) * f64::from(factor);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and the cast saturates"
        )]
        let stretched = stretched as u32;
        declared.max(stretched.min(limits::POSITIONS))
    }

    /// The numbers for serving up to `max_model_len` tokens. Dynamic and LongRoPE depend on it (see
    /// docs/decisions/0003-rope-fixed-at-load.md), the others do not.
    #[must_use]
    pub fn tables(&self, max_model_len: u32) -> RopeTables {
        let theta = f64::from(self.theta);
        let mut attention_factor = 1.0;
        let inv_freq: Vec<f64> = match &self.kind {
            RopeKind::Default => self.frequencies(theta),
            RopeKind::Linear { factor } => {
                let factor = f64::from(*factor);
                self.frequencies(theta).into_iter().map(|f| f / factor).collect()
            }
            RopeKind::Proportional { pairs, factor } => {
                let factor = f64::from(*factor);
                let rotates = |i: usize| if i < *pairs as usize { 1.0 / factor } else { 0.0 };
                let frequencies = self.frequencies(theta).into_iter().enumerate();
                frequencies.map(|(i, frequency)| frequency * rotates(i)).collect()
            }
            RopeKind::Dynamic { factor, original_max_position_embeddings } => {
                let original = f64::from(*original_max_position_embeddings);
                let length = f64::from(max_model_len).max(original);
                let factor = f64::from(*factor);
                // The published form, factor * length / original - (factor - 1), without its
                // cancellation: exactly 1 within the length of training.
                let stretch = factor * (length / original - 1.0) + 1.0;
                let dim = f64::from(self.rotary_dim);
                self.frequencies(theta * stretch.powf(dim / (dim - 2.0)))
            }
            RopeKind::Llama3 { .. } => self.llama3(theta),
            RopeKind::Yarn { attention_factor: factor, .. } => {
                attention_factor = *factor;
                self.yarn(theta)
            }
            RopeKind::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings,
                attention_factor: factor,
            } => {
                attention_factor = *factor;
                let long = max_model_len > *original_max_position_embeddings;
                self.divided(theta, if long { long_factor } else { short_factor })
            }
            RopeKind::Factors { divisors } => self.divided(theta, divisors),
        };
        RopeTables { inv_freq: inv_freq.into_iter().map(narrow).collect(), attention_factor }
    }

    fn frequencies(&self, theta: f64) -> Vec<f64> {
        let dim = f64::from(self.rotary_dim);
        (0..self.rotary_dim / 2).map(|i| theta.powf(-2.0 * f64::from(i) / dim)).collect()
    }

    fn divided(&self, theta: f64, divisors: &[f32]) -> Vec<f64> {
        let frequencies = self.frequencies(theta);
        frequencies.into_iter().zip(divisors).map(|(f, divisor)| f / f64::from(*divisor)).collect()
    }

    fn llama3(&self, theta: f64) -> Vec<f64> {
        let RopeKind::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } = &self.kind
        else {
            return self.frequencies(theta);
        };
        let factor = f64::from(*factor);
        let (low, high) = (f64::from(*low_freq_factor), f64::from(*high_freq_factor));
        let length = f64::from(*original_max_position_embeddings);
        let blend = |frequency: f64| {
            // Turns within the length of training: few are stretched, many stay.
            let turns = length * frequency / (2.0 * PI);
            if turns < low {
                frequency / factor
            } else if turns >= high {
                frequency
            } else {
                let smooth = (turns - low) / (high - low);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        };
        self.frequencies(theta).into_iter().map(blend).collect()
    }

    fn yarn(&self, theta: f64) -> Vec<f64> {
        let RopeKind::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            truncate,
            ..
        } = &self.kind
        else {
            return self.frequencies(theta);
        };
        let dim = f64::from(self.rotary_dim);
        let length = f64::from(*original_max_position_embeddings);
        // The pair that makes this many turns within the length of training.
        let pair_of =
            |turns: f32| dim * (length / (f64::from(turns) * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (pair_of(*beta_fast), pair_of(*beta_slow));
        if *truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        #[expect(clippy::float_cmp, reason = "the same guard as the reference's")]
        if low == high {
            high += 0.001;
        }
        let factor = f64::from(*factor);
        (0_u32..)
            .zip(self.frequencies(theta))
            .map(|(i, frequency)| {
                let stretched = ((f64::from(i) - low) / (high - low)).clamp(0.0, 1.0);
                frequency / factor * stretched + frequency * (1.0 - stretched)
            })
            .collect()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn narrow(value: f64) -> f32 {
    value as f32
}
