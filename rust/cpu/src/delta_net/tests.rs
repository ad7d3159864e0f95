//! Compares the net with float64, and its bits over chunks and slots.

use super::*;
use crate::buffers::DeltaBuffers;
use crate::testing::Random;

const EPS: f32 = 1e-6;

struct World {
    net: DeltaNetSpec,
    rule: DeltaRule,
    columns: DeltaColumns,
    /// `[token][columns]`
    inputs: Vec<Vec<f32>>,
}

fn world(net: DeltaNetSpec, num_tokens: usize) -> World {
    let mut random = Random(7);
    let mut draw =
        |len: usize, scale: f32| -> Vec<f32> { (0..len).map(|_| scale * random.float()).collect() };
    let heads = net.num_value_heads as usize;
    let rule = DeltaRule {
        conv: draw(net.conv_kernel as usize * net.channels() as usize, 0.8),
        rate: draw(heads, 2.0).into_iter().map(f32::exp).collect(),
        bias: draw(heads, 1.0),
        norm: draw(net.value_dim as usize, 1.5),
    };
    let columns = DeltaBuffers::new(&net, 0).columns;
    let width = columns.decay + heads;
    let inputs = (0..num_tokens).map(|_| draw(width, 2.0)).collect();
    World { net, rule, columns, inputs }
}

impl World {
    /// The tokens of one sequence in chunks of these lengths, in a slot of three.
    fn run(&self, path: VectorPath, chunks: &[usize], slot: usize) -> Vec<Vec<f32>> {
        let scratch = || crate::scratch::Scratch::new(32, 32);
        let mut pool = Pool::new(2, 0, scratch).unwrap();
        let value_width = self.net.value_width() as usize;
        let slot_len = self.net.state_len() as usize;
        // What another sequence has left in the slot.
        let mut states =
            States { data: vec![9.0; 4 * slot_len], slot_len, num_slots: 3, starts: vec![0] };
        states.reset(SlotId::first(slot as u32));
        let (mut done, mut results) = (0, Vec::new());
        for &num_tokens in chunks {
            let mut input = Rows::zeroed(num_tokens, self.inputs[0].len());
            for (row, values) in self.inputs[done..done + num_tokens].iter().enumerate() {
                input.row_mut(row, values.len()).copy_from_slice(values);
            }
            let mut out = Rows::zeroed(num_tokens, value_width);
            let span =
                Span { first_row: 0, num_tokens, start: done, tables: &[], slot, saves: &[] };
            let step = DeltaNet {
                path,
                net: self.net,
                rule: &self.rule,
                columns: self.columns,
                spans: &[span],
                eps: EPS,
            };
            step.run(&mut pool, 0, &mut input, &mut out, &mut states);
            results.extend((0..num_tokens).map(|row| out.row(row, value_width).to_vec()));
            done += num_tokens;
        }
        let others = states.data.chunks(slot_len).enumerate().filter(|(other, _)| *other != slot);
        assert!(others.flat_map(|(_, data)| data).all(|x| *x == 9.0), "other slots");
        results
    }

    /// Goes on in slot 2 from the state that slot 0 had after `end` tokens.
    fn run_from(&self, path: VectorPath, end: usize) -> Vec<Vec<f32>> {
        let scratch = || crate::scratch::Scratch::new(32, 32);
        let mut pool = Pool::new(2, 0, scratch).unwrap();
        let slot_len = self.net.state_len() as usize;
        let mut states =
            States { data: vec![9.0; 4 * slot_len], slot_len, num_slots: 3, starts: vec![0] };
        states.reset(SlotId::first(0));
        let copy = |slot| StateCopy {
            slot: SlotId::first(slot),
            end: end as u32,
            snapshot: ingle_core::SnapshotId(0),
        };
        let saves = [copy(0)];
        let mut run = |start: usize, slot: usize, saves: &[StateCopy], states: &mut States| {
            let num_tokens = self.inputs.len() - start;
            let mut input = Rows::zeroed(num_tokens, self.inputs[0].len());
            for (row, values) in self.inputs[start..].iter().enumerate() {
                input.row_mut(row, values.len()).copy_from_slice(values);
            }
            let width = self.net.value_width() as usize;
            let mut out = Rows::zeroed(num_tokens, width);
            let span = Span { first_row: 0, num_tokens, start, tables: &[], slot, saves };
            let step = DeltaNet {
                path,
                net: self.net,
                rule: &self.rule,
                columns: self.columns,
                spans: &[span],
                eps: EPS,
            };
            step.run(&mut pool, 0, &mut input, &mut out, states);
            (0..num_tokens).map(|row| out.row(row, width).to_vec()).collect::<Vec<_>>()
        };
        let whole = run(0, 0, &saves, &mut states);
        states.restore(&copy(2));
        let rest = run(end, 2, &[], &mut states);
        whole[..end].iter().cloned().chain(rest).collect()
    }

    /// The same in float64, straight from the definition.
    fn exact(&self) -> Vec<Vec<f64>> {
        let net = &self.net;
        let (key, value) = (net.key_width() as usize, net.value_width() as usize);
        let (dk, dv) = (net.key_dim as usize, net.value_dim as usize);
        let column = |channel: usize| match channel {
            c if c < key => self.columns.query + c,
            c if c < 2 * key => self.columns.key + c - key,
            c => self.columns.value + c - 2 * key,
        };
        let (channels, kernel) = (2 * key + value, net.conv_kernel as usize);
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let convolved = |token: usize, channel: usize| {
            let tap = |tap: usize| {
                let at = (token + tap + 1).checked_sub(kernel)?;
                let weight = self.rule.conv[tap * channels + channel];
                Some(f64::from(weight) * f64::from(self.inputs[at][column(channel)]))
            };
            silu((0..kernel).filter_map(tap).sum())
        };
        let unit = |x: Vec<f64>| {
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.into_iter().map(|x| x * scale).collect::<Vec<f64>>()
        };
        let heads = net.num_value_heads as usize;
        let mut states = vec![vec![0.0; dk * dv]; heads];
        let mut results = Vec::new();
        for token in 0..self.inputs.len() {
            let input = |column: usize| f64::from(self.inputs[token][column]);
            let mut row = Vec::new();
            for (head, state) in states.iter_mut().enumerate() {
                let at = head / (heads / net.num_key_heads as usize) * dk;
                let part = |from: usize, len: usize| -> Vec<f64> {
                    (0..len).map(|i| convolved(token, from + i)).collect()
                };
                let (q, k) = (unit(part(at, dk)), unit(part(key + at, dk)));
                let v = part(2 * key + head * dv, dv);
                let beta = 1.0 / (1.0 + (-input(self.columns.beta + head)).exp());
                let bias = f64::from(self.rule.bias[head]);
                let decay = (input(self.columns.decay + head) + bias).exp().ln_1p();
                let decay = (-f64::from(self.rule.rate[head]) * decay).exp();
                state.iter_mut().for_each(|s| *s *= decay);
                let mut out = vec![0.0; dv];
                for j in 0..dv {
                    let known: f64 = (0..dk).map(|i| state[i * dv + j] * k[i]).sum();
                    for i in 0..dk {
                        state[i * dv + j] += k[i] * beta * (v[j] - known);
                        out[j] += state[i * dv + j] * q[i] / (dk as f64).sqrt();
                    }
                }
                let mean = out.iter().map(|x| x * x).sum::<f64>() / dv as f64;
                for (j, x) in out.into_iter().enumerate() {
                    let normed = x / (mean + f64::from(EPS)).sqrt() * f64::from(self.rule.norm[j]);
                    row.push(normed * silu(input(self.columns.gate + head * dv + j)));
                }
            }
            results.push(row);
        }
        results
    }
}

fn net(num_key_heads: u32, num_value_heads: u32, key_dim: u32, value_dim: u32) -> DeltaNetSpec {
    DeltaNetSpec { num_key_heads, num_value_heads, key_dim, value_dim, conv_kernel: 4 }
}

#[test]
fn test_the_net_is_what_float64_says() {
    for net in [net(2, 4, 128, 128), net(1, 1, 16, 40), net(3, 3, 20, 8)] {
        let world = world(net, 23);
        let exact = world.exact();
        for path in VectorPath::all() {
            let ours = world.run(path, &[23], 1);
            for (ours, exact) in ours.iter().flatten().zip(exact.iter().flatten()) {
                let off = (f64::from(*ours) - exact).abs();
                assert!(off < 2e-5 * (1.0 + exact.abs()), "{net:?}: {ours} instead of {exact}");
            }
        }
    }
}

#[test]
fn test_chunks_and_slots_do_not_change_a_bit() {
    let world = world(net(2, 4, 32, 64), 40);
    for path in VectorPath::all() {
        let whole = world.run(path, &[40], 0);
        assert_eq!(world.run(path, &[1; 40], 2), whole);
        assert_eq!(world.run(path, &[2, 7, 3, 1, 27], 1), whole);
        for end in [1, 3, 20, 39] {
            assert_eq!(world.run_from(path, end), whole, "from a copy after {end} tokens");
        }
    }
}
