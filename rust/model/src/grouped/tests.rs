//! Every packing gives the codes, scales and zeros that were packed, for any rows of any part.

use super::*;
use crate::weights::{GroupTensor, Order};

/// A file in memory.
struct Memory(Vec<u8>);

impl WeightSource for Memory {
    fn read_at(&self, _: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = offset as usize;
        match self.0.get(start..start + buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}

const ROWS: usize = 24;
const COLS: usize = 16;
/// The last group is partial.
const GROUP: usize = 6;
const GROUPS: usize = 3;

fn code(row: usize, column: usize) -> u8 {
    ((row * 5 + column * 3 + row * column) % 16) as u8
}

fn zero(row: usize, group: usize) -> u8 {
    ((row * 7 + group * 2) % 16) as u8
}

fn scale(row: usize, group: usize) -> f32 {
    (row * GROUPS + group + 1) as f32 / 64.0
}

/// Words of eight numbers of `[lines, length]` each, number `order[i]` of eight in bits 4 i and up.
fn pack(
    lines: usize,
    length: usize,
    order: [usize; 8],
    at: impl Fn(usize, usize) -> u8,
) -> Vec<u8> {
    let word = |line, first| {
        let place = |(i, o): (usize, usize)| u32::from(at(line, first + o)) << (4 * i);
        order.into_iter().enumerate().map(place).sum::<u32>()
    };
    let firsts = |line| (0..length).step_by(8).map(move |first| word(line, first));
    (0..lines).flat_map(firsts).flat_map(u32::to_le_bytes).collect()
}

/// `[lines / 8, length]`: eight lines a word.
fn pack_down(lines: usize, length: usize, at: impl Fn(usize, usize) -> u8) -> Vec<u8> {
    let word =
        |line, column| (0..8).map(|i| u32::from(at(line + i, column)) << (4 * i)).sum::<u32>();
    let columns = |line| (0..length).map(move |column| word(line, column));
    (0..lines).step_by(8).flat_map(columns).flat_map(u32::to_le_bytes).collect()
}

const PLAIN: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A file of codes, scales and zeros, and a view of all its rows.
fn packed(packing: Packing) -> (Memory, TensorView) {
    let (codes, zeros) = match packing {
        Packing::Rows => (pack(ROWS, COLS, PLAIN, code), pack_down(ROWS, GROUPS, zero)),
        Packing::Awq => (
            pack(COLS, ROWS, AWQ, |column, row| code(row, column)),
            pack(GROUPS, ROWS, AWQ, |group, row| zero(row, group)),
        ),
        Packing::Gptq => (
            pack_down(COLS, ROWS, |column, row| code(row, column)),
            pack(GROUPS, ROWS, PLAIN, |group, row| zero(row, group)),
        ),
    };
    let by_row = (0..ROWS).flat_map(|row| (0..GROUPS).map(move |group| scale(row, group)));
    let by_group = (0..GROUPS).flat_map(|group| (0..ROWS).map(move |row| scale(row, group)));
    let scales: Vec<f32> =
        if packing == Packing::Rows { by_row.collect() } else { by_group.collect() };
    let scales: Vec<u8> =
        scales.iter().flat_map(|scale| f16::from_f32(*scale).to_le_bytes()).collect();
    let tensor = |name: &str, offset: usize, bytes: &[u8]| GroupTensor {
        name: name.to_owned(),
        file: 0,
        offset: offset as u64,
        byte_len: bytes.len() as u64,
    };
    let groups = GroupView {
        packing,
        first_row: 0,
        row_step: 1,
        tensor_rows: ROWS as u32,
        first_col: 0,
        tensor_cols: COLS as u32,
        first_group: 0,
        tensor_groups: COLS.div_ceil(GROUP) as u32,
        group: GROUP as u32,
        scale: tensor("scales", codes.len(), &scales),
        scale_type: ScaleType::Number(WeightType::F16),
        zero: Zero::Stored { tensor: tensor("zeros", codes.len() + scales.len(), &zeros), add: 1 },
        groups_of_columns: None,
    };
    let view = TensorView {
        name: "codes".to_owned(),
        file: 0,
        offset: 0,
        byte_len: codes.len() as u64,
        order: Order::Rows,
        weight_type: WeightType::Int4,
        rows: ROWS as u32,
        cols: COLS as u32,
        scale: None,
        groups: Some(groups),
        quantise: false,
    };
    (Memory([codes, scales, zeros].concat()), view)
}

fn value(row: usize, column: usize, group: usize) -> f32 {
    (f32::from(code(row, column)) - f32::from(zero(row, group)) - 1.0) * scale(row, group)
}

fn values(view: &TensorView, source: &Memory, first: usize, count: usize) -> Vec<f32> {
    let groups = view.groups.as_ref().unwrap().column_groups(source, view.cols).unwrap();
    let rows = view.read_grouped(source, first, count).unwrap();
    let mut values = vec![0.0; count * COLS];
    rows.widen(view.weight_type, &groups, &mut values);
    values
}

#[test]
fn test_every_packing_gives_its_values_in_any_slice_of_any_part() {
    for packing in [Packing::Rows, Packing::Awq, Packing::Gptq] {
        let (source, whole) = packed(packing);
        let steps = if packing == Packing::Rows { 2 } else { 1 };
        for (first_row, step) in [(0, 1), (5, 1), (1, steps)] {
            let rows = (ROWS - first_row).div_ceil(step);
            let mut view = whole.clone();
            view.rows = rows as u32;
            let groups = view.groups.as_mut().unwrap();
            (groups.first_row, groups.row_step) = (first_row as u32, step as u32);
            for first in 0..rows {
                for count in 1..=rows - first {
                    let rows = (first..first + count).map(|row| first_row + row * step);
                    let want = rows.flat_map(|r| (0..COLS).map(move |c| value(r, c, c / GROUP)));
                    let want: Vec<f32> = want.collect();
                    let found = values(&view, &source, first, count);
                    assert_eq!(found, want, "{packing:?} {first_row} {step} {first} {count}");
                }
            }
        }
    }
}

#[test]
fn test_columns_take_the_groups_that_a_list_gives_them() {
    let (mut source, mut view) = packed(Packing::Gptq);
    let order: Vec<u32> = (0..COLS as u32).map(|column| (column * 7 + 1) % 3).collect();
    let offset = source.0.len() as u64;
    source.0.extend(order.iter().flat_map(|group| group.to_le_bytes()));
    let list = GroupTensor { name: "g_idx".to_owned(), file: 0, offset, byte_len: 64 };
    view.groups.as_mut().unwrap().groups_of_columns = Some(list);
    let rows = (0..ROWS).flat_map(|r| (0..COLS).map(move |c| (r, c)));
    let want: Vec<f32> = rows.map(|(r, c)| value(r, c, order[c] as usize)).collect();
    assert_eq!(values(&view, &source, 0, ROWS), want);
    source.0.truncate(offset as usize);
    source.0.extend([vec![0; 60], (-1_i32).to_le_bytes().to_vec()].concat());
    let error = view.groups.unwrap().column_groups(&source, COLS as u32).unwrap_err();
    assert_eq!(error.to_string(), "g_idx column 15 is in group -1 of 3");
}

#[test]
fn test_a_scale_that_is_no_number_is_refused_by_name() {
    let (mut source, view) = packed(Packing::Awq);
    let scale = view.groups.as_ref().unwrap().scale.offset as usize;
    source.0[scale..scale + 2].copy_from_slice(&f16::NAN.to_le_bytes());
    let error = view.read_grouped(&source, 0, 1).unwrap_err();
    assert_eq!(error.to_string(), "scales holds NaN; the largest scale is 1e30");
}

#[test]
fn test_small_floats_are_their_table_times_a_power_of_two() {
    for (byte, factor) in [(0, 2.0_f64.powi(-127)), (126, 0.5), (127, 1.0), (130, 8.0)] {
        assert_eq!(f64::from(ScaleType::E8M0.value(&[byte])), factor, "{byte}");
    }
    assert!(ScaleType::E8M0.value(&[255]).is_nan());
    let rows = GroupedRows {
        codes: vec![0x7654_3210, 0xfedc_ba98],
        scales: vec![2.0, 0.5],
        zeros: vec![0; 2],
    };
    let groups: Vec<u32> = (0..16).map(|column| column / 8).collect();
    let mut values = [0.0; 16];
    rows.widen(WeightType::F4E2M1, &groups, &mut values);
    assert_eq!(values[..8], [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]);
    assert_eq!(values[8..], [0.0, -0.25, -0.5, -0.75, -1.0, -1.5, -2.0, -3.0]);
}
