// Exchange between the 32 lanes of a warp; all lanes take part.
#pragma once

#include "target.h"

namespace tilewise::ptx {

// shfl.sync.bfly.b32
TILEWISE_INSTRUCTION float shfl_xor(float x, int lane_mask)
    TILEWISE_PTX({ return __shfl_xor_sync(0xFFFFFFFFu, x, lane_mask); });

// shfl.sync.idx.b32
TILEWISE_INSTRUCTION u32 shfl_idx(u32 x, int lane)
    TILEWISE_PTX({ return __shfl_sync(0xFFFFFFFFu, x, lane); });

// vote.sync.any.pred
TILEWISE_INSTRUCTION bool vote_any(bool x) TILEWISE_PTX({ return __any_sync(0xFFFFFFFFu, x) != 0; });

// vote.sync.all.pred
TILEWISE_INSTRUCTION bool vote_all(bool x) TILEWISE_PTX({ return __all_sync(0xFFFFFFFFu, x) != 0; });

}  // namespace tilewise::ptx
