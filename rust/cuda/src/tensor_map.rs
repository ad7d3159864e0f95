//! Tensor maps: the driver's description of an array in device memory, from which a kernel copies boxes. At load only.

use crate::CudaError;
use crate::context::Context;
use crate::device_slice::DevicePtr;
use crate::sys::driver::*;

/// An array of five dimensions, the innermost first, and the boxes in which it is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    /// TENSOR_MAP_DATA_TYPE_* of its elements.
    pub(crate) data_type: u32,
    /// Elements of each dimension.
    pub(crate) dims: [u64; 5],
    /// Bytes from one index to the next, of every dimension but the innermost.
    pub(crate) strides: [u64; 4],
    /// Elements of a box.
    pub(crate) box_dims: [u32; 5],
}

/// The map of an array that begins at `start`: boxes are swizzled by 128 bytes, and elements beyond the array are zero.
///
/// # Errors
/// What the driver says of the shape.
pub(crate) fn tiled_map<T>(
    context: &Context,
    start: DevicePtr<T>,
    tiles: &Tiles,
) -> Result<TensorMap, CudaError> {
    let mut map = TensorMap { opaque: [0; 16] };
    // SAFETY: every pointer is to an array of the rank's length that outlives the call, which copies them; the
    // address is only written into the map, not read.
    let code = unsafe {
        context.driver.api.cuTensorMapEncodeTiled(
            &raw mut map,
            tiles.data_type,
            5,
            start.address(),
            tiles.dims.as_ptr(),
            tiles.strides.as_ptr(),
            tiles.box_dims.as_ptr(),
            [1u32; 5].as_ptr(),
            TENSOR_MAP_INTERLEAVE_NONE,
            TENSOR_MAP_SWIZZLE_128B,
            TENSOR_MAP_L2_PROMOTION_L2_128B,
            TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )?
    };
    context.check("cuTensorMapEncodeTiled", code)?;
    Ok(map)
}
