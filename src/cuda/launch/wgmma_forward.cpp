// The Hopper forward: tensor maps for q, k, v and out are made on the host at the first call, point to each
// further call's memory, and travel as a kernel argument; the tile counter in the workspace is cleared on the
// stream before the launch.
#include <mutex>

#include "core/error.h"
#include "cuda/launch/execution.h"
#include "cuda/launch/families.h"
#include "cuda/launch/params.h"
#include "kernels/wgmma/launch.h"

namespace tilewise::cuda {
namespace {

std::vector<KernelUse> uses_of(const Problem& p, const Config& c, const TileOrder& order) {
  std::vector<KernelUse> uses;
  if (p.total_q * p.H == 0) return uses;
  uses.push_back(
      {c,
       {.grid = {unsigned(wgmma::grid_blocks(c, order, device(p.device_index).multiprocessors)), 1, 1},
        .threads = unsigned(wgmma::threads(c)),
        .shared_bytes = unsigned(wgmma::forward_smem_bytes(c))}});
  return uses;
}

TensorMap encode(const wgmma::MapShape& s, Element element, const char* what) {
  TensorMapShape shape;
  shape.element = element == Element::fp16 ? MapElement::fp16 : MapElement::bf16;
  shape.rank = int(s.rank);
  shape.address = s.address;
  for (int i = 0; i < 5; ++i) shape.size[i] = s.dim[i], shape.box[i] = s.box[i];
  for (int i = 0; i < 4; ++i) shape.byte_stride[i] = s.stride[i];
  return encode_tensor_map(shape, what);
}

class WgmmaForward final : public CudaExecution {
 public:
  WgmmaForward(const Problem& p, const Config& c, const TileOrder& order)
      : CudaExecution(p.device_index, uses_of(p, c, order), counter_bytes(p, order)),
        config_(c),
        order_(order),
        counter_bytes_(counter_bytes(p, order)) {}

 private:
  static size_t counter_bytes(const Problem& p, const TileOrder& order) {
    return size_t(wgmma::counter_bytes(order, device(p.device_index).multiprocessors));
  }

  void enqueue(const Problem& p, std::byte* workspace, const Launcher& launcher) const override {
    check_alignment(p);
    const AttentionParams a = attention_params(p);
    const i32 pack = wgmma::pack_log2(config_, a.group, a.Sq);
    wgmma::ForwardLaunch launch{};
    const Maps maps = maps_of(p, a, pack);
    launch.q = maps.q, launch.k = maps.k, launch.v = maps.v, launch.out = maps.out;
    launch.order = order_;
    launch.section_keys = wgmma::section_keys(a);
    launch.pack_log2 = pack;
    if (counter_bytes_) {
      launcher.clear(workspace, counter_bytes_);
      launch.tile_counter = reinterpret_cast<u32*>(workspace);
    }
    launcher(0, a, launch);
  }

  struct Maps {
    TensorMap q, k, v, out;
  };
  Maps encode_maps(const Problem& p, const AttentionParams& a, i32 pack, const void* k, const void* v) const {
    const i32 batches = p.packed ? 1 : a.B;
    const i64 q_rows = p.packed ? p.total_q : p.Sq, k_rows = p.packed ? p.total_k : p.Sk;
    return {encode(wgmma::query_map(a.q, a.q_stride, q_rows, batches, a.H, a.D, pack, wgmma::kGroupRows),
                   config_.element, "q"),
            encode(wgmma::key_value_map(k, a.k_stride, k_rows, batches, a.Hk, a.D, config_.Bc),
                   config_.element, "k"),
            encode(wgmma::key_value_map(v, a.v_stride, k_rows, batches, a.Hk, a.Dv, config_.Bc),
                   config_.element, "v"),
            encode(wgmma::query_map(a.out, a.out_stride, q_rows, batches, a.H, a.Dv, pack, wgmma::kWarpRows),
                   config_.element, "out")};
  }
  Maps maps_of(const Problem& p, const AttentionParams& a, i32 pack) const {
    // Without keys nothing is read, but a map needs an address.
    const bool keys = (p.packed ? p.total_k : p.Sk) > 0;
    const void *k = keys ? a.k : a.q, *v = keys ? a.v : a.q;
    std::call_once(encoded_, [&] { first_maps_ = encode_maps(p, a, pack, k, v); });
    Maps maps = first_maps_;
    if (move_tensor_map(maps.q, a.q) && move_tensor_map(maps.k, k) && move_tensor_map(maps.v, v) &&
        move_tensor_map(maps.out, a.out))
      return maps;
    return encode_maps(p, a, pack, k, v);
  }

  const Config config_;
  const TileOrder order_;
  const size_t counter_bytes_;
  mutable std::once_flag encoded_;
  mutable Maps first_maps_{};
};

}  // namespace

std::unique_ptr<Execution> make_wgmma_forward(const Problem& p, const plan::CudaChoice& choice) {
  const Config& c = choice.kernels.at(0);
  return std::make_unique<WgmmaForward>(p, c, wgmma::tile_order(c, attention_params(p)));
}

}  // namespace tilewise::cuda
