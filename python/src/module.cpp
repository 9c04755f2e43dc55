// The Python module `tilewise._core`: tw_attention filled from plain Python values, plans cached by problem,
// GIL released while computing. It knows nothing of numpy or PyTorch: the Python layer passes addresses,
// shapes and strides (in elements).
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <pthread.h>

#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>

#include "tilewise/tilewise.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

PyObject* unsupported_error = nullptr;  // tilewise.UnsupportedError

void check(tw_status status) {
  if (status == TW_OK) return;
  const char* message = tw_last_error();
  PyObject* type = status == TW_INVALID_ARGUMENT ? PyExc_ValueError
                   : status == TW_UNSUPPORTED    ? unsupported_error
                   : status == TW_OUT_OF_MEMORY  ? PyExc_MemoryError
                                                 : PyExc_RuntimeError;
  PyErr_SetString(type, message);
  throw nb::python_error();
}

std::string text_of(tw_status (*query)(char*, size_t, size_t*)) {
  size_t length = 0;
  check(query(nullptr, 0, &length));
  std::string s(length + 1, '\0');
  check(query(s.data(), s.size(), nullptr));
  s.resize(length);
  return s;
}

int64_t integer(PyObject* o) {
  const long long x = PyLong_AsLongLong(o);
  if (x == -1 && PyErr_Occurred()) throw nb::python_error();
  return x;
}

// The part of DLPack's C exchange interface (1.2 and later) that reads a tensor without Python calls.
struct DlTensor {
  void* data;
  struct {
    int32_t type, id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct DlExchangeApi {
  uint32_t major, minor;
  void* previous;
  void *allocate, *managed_from_object, *managed_to_object;
  int (*tensor_from_object)(void* object, DlTensor* out);
  void* current_stream;
};

const DlExchangeApi* exchange = nullptr;

int dtype_of(const DlTensor& t) {
  switch (t.dtype.code * 256 + t.dtype.bits) {
    case 2 * 256 + 32: return TW_FP32;
    case 2 * 256 + 16: return TW_FP16;
    case 4 * 256 + 16: return TW_BF16;
    case 6 * 256 + 8:
    case 1 * 256 + 8: return TW_BOOL;
    case 0 * 256 + 32: return TW_INT32;
    case 0 * 256 + 64: return TW_INT64;
    default: return TW_DTYPE_NONE;
  }
}

// A tensor of the framework that use_exchange_api() named.
void read_framework_tensor(const char* name, PyObject* o, tw_tensor& t) {
  DlTensor d{};
  if (exchange->tensor_from_object(o, &d)) {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%s: not a tensor that can be read", name);
    throw nb::python_error();
  }
  t.dtype = dtype_of(d);
  if (!t.dtype) {
    PyErr_Format(PyExc_TypeError,
                 "%s: dtype must be float32, float16 or bfloat16 (masks: bool; indices: int32, int64)", name);
    throw nb::python_error();
  }
  if (d.device.type != TW_CPU && d.device.type != TW_CUDA) {
    PyErr_Format(PyExc_ValueError, "%s: on DLPack device type %d; CPU and CUDA tensors are supported", name,
                 d.device.type);
    throw nb::python_error();
  }
  t.data = static_cast<char*>(d.data) + d.byte_offset;
  t.device_type = d.device.type;
  t.device_index = d.device.type == TW_CUDA ? d.device.id : 0;
  t.ndim = d.ndim;
  for (int i = 0; i < d.ndim && i < 4; ++i) {
    t.size[i] = d.shape[i];
    t.stride[i] = d.strides[i];
  }
}

// (address, dtype, device_type, device_index, shape, strides), a tensor of the exchange interface's
// framework, or None.
void read_tensor(const char* name, PyObject* o, tw_tensor& t) {
  if (o == Py_None) return;
  if (!PyTuple_Check(o) && exchange) return read_framework_tensor(name, o, t);
  PyObject *shape, *strides;
  unsigned long long address;
  int dtype, device_type, device_index;
  if (!PyArg_ParseTuple(o, "KiiiOO", &address, &dtype, &device_type, &device_index, &shape, &strides))
    throw nb::python_error();
  t.data = reinterpret_cast<void*>(address);
  t.dtype = dtype;
  t.device_type = device_type;
  t.device_index = device_index;
  const Py_ssize_t n = PySequence_Size(shape);
  if (n < 0 || n != PySequence_Size(strides)) throw nb::value_error("shape and strides differ in length");
  t.ndim = int32_t(n);
  for (Py_ssize_t i = 0; i < n && i < 4; ++i) {
    const nb::object size = nb::steal(PySequence_GetItem(shape, i)),
                     stride = nb::steal(PySequence_GetItem(strides, i));
    t.size[i] = integer(size.ptr());
    t.stride[i] = integer(stride.ptr());
  }
}

constexpr tw_tensor tw_attention::*kTensors[] = {&tw_attention::q,
                                                 &tw_attention::k,
                                                 &tw_attention::v,
                                                 &tw_attention::out,
                                                 &tw_attention::lse,
                                                 &tw_attention::bias,
                                                 &tw_attention::mask,
                                                 &tw_attention::alibi_slopes,
                                                 &tw_attention::sink,
                                                 &tw_attention::cu_seqlens_q,
                                                 &tw_attention::cu_seqlens_k,
                                                 &tw_attention::seqused_q,
                                                 &tw_attention::seqused_k,
                                                 &tw_attention::dout,
                                                 &tw_attention::dlse,
                                                 &tw_attention::dq,
                                                 &tw_attention::dk,
                                                 &tw_attention::dv,
                                                 &tw_attention::dbias,
                                                 &tw_attention::dsink};
constexpr const char* kTensorNames[] = {"q",
                                        "k",
                                        "v",
                                        "out",
                                        "lse",
                                        "bias",
                                        "mask",
                                        "alibi_slopes",
                                        "sink",
                                        "cu_seqlens_q",
                                        "cu_seqlens_k",
                                        "seqused_q",
                                        "seqused_k",
                                        "dout",
                                        "dlse",
                                        "dq",
                                        "dk",
                                        "dv",
                                        "dbias",
                                        "dsink"};
constexpr size_t kTensorCount = std::size(kTensors);
static_assert(std::size(kTensorNames) == kTensorCount);

struct Options {  // the Python layer's dataclass, filled once per call
  tw_options c{};
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  std::string algorithm;
};

// Plans by problem: everything of tw_attention but the addresses (their alignment stays). Least recently used
// go first.
class PlanCache {
 public:
  std::shared_ptr<tw_plan> get(const tw_attention& a, tw_pass pass) {
    const std::string key = key_of(a, pass);
    {
      std::lock_guard lock(mutex_);
      if (auto it = index_.find(key); it != index_.end()) {
        order_.splice(order_.begin(), order_, it->second);
        return it->second->second;
      }
    }
    tw_plan* raw = nullptr;
    check(tw_plan_create(&a, pass, &raw));
    std::shared_ptr<tw_plan> plan(raw, tw_plan_destroy);
    std::lock_guard lock(mutex_);
    order_.emplace_front(key, plan);
    index_[key] = order_.begin();
    if (order_.size() > kCapacity) {
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    return plan;
  }

 private:
  static constexpr size_t kCapacity = 512;

  static std::string key_of(const tw_attention& a, tw_pass pass) {
    tw_attention shape = a;
    for (auto member : kTensors) {
      tw_tensor& t = shape.*member;
      t.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(t.data) % 16);
    }
    shape.options.seed = shape.options.offset = 0;
    shape.options.philox_state = a.options.philox_state ? reinterpret_cast<const uint64_t*>(8) : nullptr;
    shape.options.algorithm = nullptr;
    shape.options.run_parallel = nullptr;
    std::string key(reinterpret_cast<const char*>(&shape), sizeof shape);
    key += char(pass);
    if (a.options.algorithm) key += a.options.algorithm;
    return key;
  }

  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<tw_plan>>> order_;
  std::unordered_map<std::string, decltype(order_)::iterator> index_;
};

PlanCache& plans() {
  static PlanCache cache;
  return cache;
}

// PyTorch's OpenMP threads, for our tasks: after an operator they spin for milliseconds on the cores that
// threads of our own would need. Through the entry points that GCC's OpenMP and LLVM's both have, as
// libtorch_cpu.so links them.
namespace openmp {

void (*parallel)(void (*work)(void*), void* job, unsigned threads, unsigned flags) = nullptr;
int (*most_threads)() = nullptr;

void run(void*, int32_t threads, void (*work)(void*), void* job) {
  // 0: a team of PyTorch's own size, where that is enough; another would end its threads and start new ones.
  parallel(work, job, threads <= most_threads() ? 0 : unsigned(threads), 0);
}

// False where the library at `path` is not loaded, or uses no OpenMP.
bool use_threads_of(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return false;
  // Also finds what the library itself needs, and stays valid: nobody unloads PyTorch.
  most_threads = reinterpret_cast<int (*)()>(dlsym(library, "omp_get_max_threads"));
  if (most_threads) parallel = reinterpret_cast<decltype(parallel)>(dlsym(library, "GOMP_parallel"));
  dlclose(library);
  // The child of a fork has none of the threads that OpenMP would wait for.
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] { parallel = nullptr; });
  (void)at_fork;
  return parallel;
}

}  // namespace openmp

// CPU calls of this thread reuse one workspace: fresh pages cost more than short attention calls.
void* cpu_workspace(size_t bytes) {
  struct Buffer {
    void* data = nullptr;
    size_t size = 0;
    ~Buffer() { std::free(data); }
  };
  thread_local Buffer buffer;
  if (buffer.size < bytes) {
    std::free(buffer.data);
    buffer.size = (bytes + 4095) & ~size_t{4095};
    buffer.data = std::aligned_alloc(4096, buffer.size);
    if (!buffer.data) {
      buffer.size = 0;
      throw std::bad_alloc();
    }
  }
  return buffer.data;
}

// One call: the problem with its addresses, and the plan for it.
class Call {
 public:
  Call(int pass, nb::tuple tensors, const Options& options, uintptr_t philox_state) {
    check(tw_attention_init(&a_, sizeof a_));
    if (tensors.size() > kTensorCount) throw nb::value_error("too many tensors");
    for (size_t i = 0; i < tensors.size(); ++i)
      read_tensor(kTensorNames[i], PyTuple_GET_ITEM(tensors.ptr(), Py_ssize_t(i)), a_.*kTensors[i]);
    a_.options = options.c;
    a_.options.philox_state = reinterpret_cast<const uint64_t*>(philox_state);
    algorithm_ = options.algorithm;
    a_.options.algorithm = algorithm_.empty() ? nullptr : algorithm_.c_str();
    a_.options.run_parallel = openmp::parallel ? openmp::run : nullptr;
    a_.max_seqlen_q = options.max_seqlen_q;
    a_.max_seqlen_k = options.max_seqlen_k;
    plan_ = plans().get(a_, tw_pass(pass));
  }

  size_t workspace() const { return tw_plan_workspace(plan_.get()); }

  void run(uintptr_t workspace, size_t bytes, uintptr_t stream) {
    tw_status status;
    {
      nb::gil_scoped_release release;
      void* memory = reinterpret_cast<void*>(workspace);
      if (!memory && a_.q.device_type != TW_CUDA)
        memory = cpu_workspace(bytes = std::max<size_t>(this->workspace(), 64));
      status = tw_plan_execute(plan_.get(), &a_, memory, bytes, reinterpret_cast<void*>(stream));
    }
    check(status);
  }

  void prepare() {
    nb::gil_scoped_release release;
    const tw_status status = tw_plan_prepare(plan_.get());
    if (status != TW_OK) {
      nb::gil_scoped_acquire acquire;
      check(status);
    }
  }

  std::string explain() const {
    size_t length = 0;
    check(tw_plan_explain(plan_.get(), nullptr, 0, &length));
    std::string s(length + 1, '\0');
    check(tw_plan_explain(plan_.get(), s.data(), s.size(), nullptr));
    s.resize(length);
    return s;
  }

 private:
  tw_attention a_;
  std::string algorithm_;
  std::shared_ptr<tw_plan> plan_;
};

void merge(nb::tuple tensors, uintptr_t stream) {
  tw_tensor t[6] = {};
  if (tensors.size() != 6) throw nb::value_error("wrong number of tensors");
  constexpr const char* names[6] = {"out_a", "lse_a", "out_b", "lse_b", "out", "lse"};
  for (size_t i = 0; i < 6; ++i) read_tensor(names[i], PyTuple_GET_ITEM(tensors.ptr(), Py_ssize_t(i)), t[i]);
  tw_status status;
  {
    nb::gil_scoped_release release;
    status = tw_merge(&t[0], &t[1], &t[2], &t[3], &t[4], &t[5], reinterpret_cast<void*>(stream));
  }
  check(status);
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // cached options live as long as the process
  unsupported_error = PyErr_NewExceptionWithDoc(
      "tilewise.UnsupportedError", "A legal problem that no kernel of this build or machine can run.",
      PyExc_NotImplementedError, nullptr);
  m.attr("UnsupportedError") = nb::borrow(unsupported_error);

  nb::class_<Options>(m, "Options")
      .def(
          "__init__",
          [](Options* self, double scale, double softcap, bool causal, bool top_left, int64_t window_left,
             int64_t window_right, double dropout_p, uint64_t seed, uint64_t offset, bool deterministic,
             bool batch_invariant, int threads, const std::string& algorithm, int64_t max_seqlen_q,
             int64_t max_seqlen_k) {
            new (self) Options();
            self->c = {scale,         softcap,
                       causal,        top_left ? TW_TOP_LEFT : TW_BOTTOM_RIGHT,
                       window_left,   window_right,
                       dropout_p,     seed,
                       offset,        nullptr,
                       deterministic, batch_invariant,
                       threads,       0,
                       nullptr};
            self->algorithm = algorithm;
            self->max_seqlen_q = max_seqlen_q;
            self->max_seqlen_k = max_seqlen_k;
          },
          "scale"_a, "softcap"_a, "causal"_a, "top_left"_a, "window_left"_a, "window_right"_a, "dropout_p"_a,
          "seed"_a, "offset"_a, "deterministic"_a, "batch_invariant"_a, "threads"_a, "algorithm"_a,
          "max_seqlen_q"_a, "max_seqlen_k"_a);

  nb::class_<Call>(m, "Call")
      .def(nb::init<int, nb::tuple, const Options&, uintptr_t>(), "pass_"_a, "tensors"_a, "options"_a,
           "philox_state"_a)
      .def("workspace", &Call::workspace)
      .def("run", &Call::run, "workspace"_a, "bytes"_a, "stream"_a)
      .def("prepare", &Call::prepare)
      .def("explain", &Call::explain);

  m.def(
      "use_exchange_api",
      [](nb::handle capsule) {
        auto* api =
            static_cast<const DlExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        if (!api) throw nb::python_error();
        if (api->major == 1 && api->tensor_from_object) exchange = api;
        return exchange != nullptr;
      },
      "capsule"_a,
      "Reads tensors of this framework directly; False when its interface is of another version.");
  m.def("use_threads_of", &openmp::use_threads_of, "path"_a,
        "Runs the CPU's tasks on the OpenMP threads of this loaded library; False where it has none.");
  m.def("merge", &merge, "tensors"_a, "stream"_a);
  m.def("info", [] { return text_of(tw_info); });
  m.attr("__version__") = tw_version();
}
