//! Which row counts are measured with all of the library's proposals: the others, between two of them, try only what
//! was picked for those two. At load only.

use crate::shapes::GemmShape;
use crate::stream_tile::STREAM_ROWS;
use crate::sys::cublaslt::MatmulAlgo;

/// Indexes of `wanted`, which rises in rows: first the landmarks, then what is in between, each list in order.
pub(crate) fn landmarks_first(wanted: &[(u32, GemmShape)]) -> Vec<usize> {
    let (mut order, between): (Vec<usize>, Vec<usize>) =
        (0..wanted.len()).partition(|&index| is_landmark(wanted[index].0));
    order.extend(between);
    order
}

/// Each 32nd row count up to 256, each 128th up to 1,024, then each 256th, and the few that our own kernel may take.
fn is_landmark(rows: u32) -> bool {
    let step = match rows {
        _ if rows <= STREAM_ROWS => 1,
        0..=256 => 32,
        257..=1024 => 128,
        _ => 256,
    };
    rows.is_multiple_of(step)
}

/// What was picked for the landmarks below and above; `None` where all proposals are to be measured: at a landmark,
/// and where one of the two is missing. `picked`: the library's algorithm of an index of `wanted`, as far as it is
/// known.
pub(crate) fn neighbours(
    wanted: &[(u32, GemmShape)],
    picked: impl Fn(usize) -> Option<MatmulAlgo>,
    index: usize,
) -> Option<[MatmulAlgo; 2]> {
    let (rows, shape) = wanted[index];
    if is_landmark(rows) {
        return None;
    }
    let is_beside = |&index: &usize| wanted[index].1 == shape && is_landmark(wanted[index].0);
    let below = (0..index).rev().find(is_beside)?;
    let above = (index + 1..wanted.len()).find(is_beside)?;
    Some([picked(below)?, picked(above)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtypes::WeightDtype;
    use crate::shapes::GemmOut;

    fn shape(n: u32) -> GemmShape {
        GemmShape::plain(n, 64, GemmOut::Device, WeightDtype::Bf16)
    }

    fn of_two_shapes(rows: &[u32]) -> Vec<(u32, GemmShape)> {
        rows.iter().flat_map(|&m| [(m, shape(1)), (m, shape(2))]).collect()
    }

    #[test]
    fn row_counts_between_landmarks_come_last() {
        let wanted = of_two_shapes(&[1, 8, 16, 24, 32, 40, 64, 72, 256, 320, 384, 1152, 1280]);
        let rows = landmarks_first(&wanted).into_iter().step_by(2).map(|index| wanted[index].0);
        let landmarks = [1, 8, 16, 32, 64, 256, 384, 1280];
        let between = [24, 40, 72, 320, 1152];
        assert_eq!(rows.collect::<Vec<_>>(), [&landmarks[..], &between].concat());
    }

    #[test]
    fn a_row_count_between_two_landmarks_knows_what_was_picked_for_them() {
        let wanted = of_two_shapes(&[16, 24, 32, 40, 48, 64, 72]);
        let picked = |index: usize| {
            let (m, GemmShape { n, .. }) = wanted[index];
            Some(MatmulAlgo { data: [u64::from(m), u64::from(n), 0, 0, 0, 0, 0, 0] })
        };
        let near = |rows: u32, n: u32| {
            let index = wanted.iter().position(|each| *each == (rows, shape(n))).unwrap();
            neighbours(&wanted, picked, index)
                .map(|near| near.map(|algo| (algo.data[0], algo.data[1])))
        };
        assert_eq!(near(24, 1), Some([(16, 1), (32, 1)]));
        assert_eq!(near(40, 2), Some([(32, 2), (64, 2)]));
        assert_eq!(near(48, 1), Some([(32, 1), (64, 1)]));
        assert_eq!(near(64, 1), None, "a landmark");
        assert_eq!(near(72, 1), None, "nothing above");
    }

    #[test]
    fn a_row_count_beside_our_own_kernel_is_measured_in_full() {
        let wanted = of_two_shapes(&[16, 24, 32]);
        let picked = |index: usize| (index > 1).then(MatmulAlgo::default);
        assert_eq!(neighbours(&wanted, picked, 2), None);
    }
}
