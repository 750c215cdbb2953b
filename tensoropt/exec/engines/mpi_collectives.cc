// TensorFlow ops that hand a tensor's own buffer to MPI.
//
// Each op is blocking: its kernel returns when MPI does. The order in which a rank runs them is given by control
// dependencies in the graph (see CollectiveEngine), never by luck of the scheduler.
//
// The communicator comes as the Fortran integer handle (MPI_Comm_c2f), the meter as a number from
// tensoropt_meter_new(), both as int64 attributes.

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "meter.h"
#include "mpi_call.h"
#include "reduction.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tensoropt {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// ---------------------------------------------------------------------------------------------------------- kernels

char* Data(const Tensor& tensor) { return static_cast<char*>(tensor.data()); }

int64_t Bytes(const Tensor& tensor) { return tensor.NumElements() * tensorflow::DataTypeSize(tensor.dtype()); }

bool HasOneThread() {
  const char* threads = std::getenv("TF_NUM_INTEROP_THREADS");
  return threads != nullptr && std::strcmp(threads, "1") == 0;
}

class Collective : public OpKernel {
 public:
  Collective(OpKernelConstruction* context, Kind kind) : OpKernel(context), kind_(kind) {
    int64_t communicator, meter;
    OP_REQUIRES_OK(context, context->GetAttr("communicator", &communicator));
    OP_REQUIRES_OK(context, context->GetAttr("meter", &meter));
    OP_REQUIRES_OK(context, context->GetAttr("T", &dtype_));
    meter_ = FindMeter(meter);
    OP_REQUIRES(context, meter_ != nullptr, absl::InvalidArgumentError(absl::StrCat("there is no meter ", meter)));
    communicator_ = MPI_Comm_f2c(static_cast<MPI_Fint>(communicator));
    OP_REQUIRES_OK(context, FromMpi("MPI_Comm_size", MPI_Comm_size(communicator_, &size_)));
    OP_REQUIRES_OK(context, FromMpi("MPI_Comm_rank", MPI_Comm_rank(communicator_, &rank_)));
  }

  // TensorFlow puts off kernels that it takes to be expensive, and learns which are from how long they took: long on a
  // rank that waited in them, short on the one that it waited for. Then ranks do other work before one and the same
  // collective, and wait again. So with one thread, which can do nothing else meanwhile, none is put off. With several,
  // other ready work goes to them first.
  bool IsExpensive() final { return !HasOneThread(); }

  void Compute(OpKernelContext* context) final {
    MeterScope scope(meter_, name());
    const absl::Status status = Run(context, context->input(0));
    if (!status.ok()) {
      context->CtxFailure(absl::Status(
          status.code(), absl::StrCat("collective '", name(), "' on member ", rank_, " of ", size_, ": ",
                                      std::string(status.message()))));
    }
  }

 protected:
  virtual absl::Status Run(OpKernelContext* context, const Tensor& x) = 0;

  absl::Status CheckStacked(const Tensor& x) const {
    if (x.dims() >= 1 && x.dim_size(0) == size_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the leading dimension must be the group's size ", size_,
                                                   ", got shape ", x.shape().DebugString()));
  }

  // A part out of `size_` parts of `bytes`, the share that leaves this rank in bandwidth-optimal algorithms.
  int64_t Share(int64_t bytes, int64_t times = 1) const { return times * (size_ - 1) * bytes / size_; }

  const Kind kind_;
  DataType dtype_;
  Meter* meter_ = nullptr;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int size_ = 0;
  int rank_ = 0;
};

class AllReduce : public Collective {
 public:
  explicit AllReduce(OpKernelConstruction* context) : Collective(context, kAllReduce) {
    std::string op;
    OP_REQUIRES_OK(context, context->GetAttr("op", &op));
    OP_REQUIRES_OK(context, MakeReduction(dtype_, op, &reduction_));
  }

 protected:
  absl::Status Run(OpKernelContext* context, const Tensor& x) override {
    const char* in = Data(x);
    const int64_t bytes = Bytes(x), count = x.NumElements();
    Tensor* y = nullptr;
    TENSOROPT_RETURN_IF_ERROR(context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    char* out = Data(*y);
    const bool in_place = in == out;
    const int64_t limit = max_count.load(std::memory_order_relaxed);
    meter_->Add(kind_, Share(bytes, 2));
#if MPI_VERSION >= 4
    if (count > limit) {
      TENSOROPT_MPI(MPI_Allreduce_c, in_place ? MPI_IN_PLACE : in, out, count, reduction_.type, reduction_.operation,
                    communicator_);
      return absl::OkStatus();
    }
#endif
    const int64_t item = tensorflow::DataTypeSize(dtype_);
    for (int64_t done = 0; done < count; done += limit) {
      const int part = static_cast<int>(std::min(limit, count - done));
      TENSOROPT_MPI(MPI_Allreduce, in_place ? MPI_IN_PLACE : in + done * item, out + done * item, part,
                    reduction_.type, reduction_.operation, communicator_);
    }
    return absl::OkStatus();
  }

 private:
  Reduction reduction_;
};

class AllGather : public Collective {
 public:
  explicit AllGather(OpKernelConstruction* context) : Collective(context, kAllGather) {}

 protected:
  absl::Status Run(OpKernelContext* context, const Tensor& x) override {
    TensorShape shape = x.shape();
    TENSOROPT_RETURN_IF_ERROR(shape.InsertDimWithStatus(0, size_));
    Tensor* y = nullptr;
    TENSOROPT_RETURN_IF_ERROR(context->allocate_output(0, shape, &y));
    const int64_t bytes = Bytes(x);
    ByteRange range;
    TENSOROPT_RETURN_IF_ERROR(range.Init(bytes));
    meter_->Add(kind_, (size_ - 1) * bytes);
    TENSOROPT_MPI(MPI_Allgather, Data(x), range.count(), range.type(), Data(*y), range.count(), range.type(),
                  communicator_);
    return absl::OkStatus();
  }
};

class ReduceScatter : public Collective {
 public:
  explicit ReduceScatter(OpKernelConstruction* context) : Collective(context, kReduceScatter) {
    OP_REQUIRES_OK(context, MakeReduction(dtype_, "sum", &reduction_));
  }

 protected:
  absl::Status Run(OpKernelContext* context, const Tensor& x) override {
    TENSOROPT_RETURN_IF_ERROR(CheckStacked(x));
    TensorShape shape = x.shape();
    shape.RemoveDim(0);
    Tensor* y = nullptr;
    TENSOROPT_RETURN_IF_ERROR(context->allocate_output(0, shape, &y));
    const char* in = Data(x);
    char* out = Data(*y);
    const int64_t count = y->NumElements(), limit = max_count.load(std::memory_order_relaxed);
    meter_->Add(kind_, Share(Bytes(x)));
    if (count * size_ <= limit) {
      TENSOROPT_MPI(MPI_Reduce_scatter_block, in, out, static_cast<int>(count), reduction_.type, reduction_.operation,
                    communicator_);
      return absl::OkStatus();
    }
#if MPI_VERSION >= 4
    TENSOROPT_MPI(MPI_Reduce_scatter_block_c, in, out, count, reduction_.type, reduction_.operation, communicator_);
#else
    // Too many elements for one call: each member in turn is the root of reductions of parts of its slice.
    const int64_t item = tensorflow::DataTypeSize(dtype_);
    for (int root = 0; root < size_; ++root) {
      const char* slice = in + root * count * item;
      for (int64_t done = 0; done < count; done += limit) {
        const int part = static_cast<int>(std::min(limit, count - done));
        TENSOROPT_MPI(MPI_Reduce, slice + done * item, root == rank_ ? out + done * item : nullptr, part,
                      reduction_.type, reduction_.operation, root, communicator_);
      }
    }
#endif
    return absl::OkStatus();
  }

 private:
  Reduction reduction_;
};

class AllToAll : public Collective {
 public:
  explicit AllToAll(OpKernelConstruction* context) : Collective(context, kAllToAll) {}

 protected:
  absl::Status Run(OpKernelContext* context, const Tensor& x) override {
    TENSOROPT_RETURN_IF_ERROR(CheckStacked(x));
    Tensor* y = nullptr;
    TENSOROPT_RETURN_IF_ERROR(context->allocate_output(0, x.shape(), &y));
    const int64_t bytes = Bytes(x);
    ByteRange range;
    TENSOROPT_RETURN_IF_ERROR(range.Init(bytes / size_));
    meter_->Add(kind_, Share(bytes));
    TENSOROPT_MPI(MPI_Alltoall, Data(x), range.count(), range.type(), Data(*y), range.count(), range.type(),
                  communicator_);
    return absl::OkStatus();
  }
};

class Broadcast : public Collective {
 public:
  explicit Broadcast(OpKernelConstruction* context) : Collective(context, kBroadcast) {
    OP_REQUIRES_OK(context, context->GetAttr("root", &root_));
  }

 protected:
  absl::Status Run(OpKernelContext* context, const Tensor& x) override {
    char* buffer = Data(x);
    const int64_t bytes = Bytes(x);
    if (rank_ == root_) {
      context->set_output(0, x);  // the same buffer: MPI only reads it here
    } else {
      Tensor* y = nullptr;
      TENSOROPT_RETURN_IF_ERROR(context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
      buffer = Data(*y);
    }
    ByteRange range;
    TENSOROPT_RETURN_IF_ERROR(range.Init(bytes));
    meter_->Add(kind_, Share(bytes));
    TENSOROPT_MPI(MPI_Bcast, buffer, range.count(), range.type(), root_, communicator_);
    return absl::OkStatus();
  }

 private:
  int root_ = 0;
};

class Permute : public Collective {
 public:
  explicit Permute(OpKernelConstruction* context) : Collective(context, kPermute) {
    OP_REQUIRES_OK(context, context->GetAttr("source", &source_));
    OP_REQUIRES_OK(context, context->GetAttr("destination", &destination_));
  }

 protected:
  absl::Status Run(OpKernelContext* context, const Tensor& x) override {
    if (source_ == rank_) {
      context->set_output(0, x);
      return absl::OkStatus();
    }
    Tensor* y = nullptr;
    TENSOROPT_RETURN_IF_ERROR(context->allocate_output(0, x.shape(), &y));
    const int64_t bytes = Bytes(x);
    ByteRange range;
    TENSOROPT_RETURN_IF_ERROR(range.Init(bytes));
    meter_->Add(kind_, bytes);
    TENSOROPT_MPI(MPI_Sendrecv, Data(x), range.count(), range.type(), destination_, 0, Data(*y), range.count(),
                  range.type(), source_, 0, communicator_, MPI_STATUS_IGNORE);
    return absl::OkStatus();
  }

 private:
  int source_ = 0;
  int destination_ = 0;
};

// Sends x to one rank, and takes a tensor of a given shape from one; either may be none (-1), and then nothing of it.
class Move : public Collective {
 public:
  explicit Move(OpKernelConstruction* context) : Collective(context, kMove) {
    OP_REQUIRES_OK(context, context->GetAttr("source", &source_));
    OP_REQUIRES_OK(context, context->GetAttr("destination", &destination_));
    OP_REQUIRES_OK(context, context->GetAttr("shape", &shape_));
  }

 protected:
  absl::Status Run(OpKernelContext* context, const Tensor& x) override {
    Tensor* y = nullptr;
    TENSOROPT_RETURN_IF_ERROR(context->allocate_output(0, source_ < 0 ? TensorShape({0}) : shape_, &y));
    ByteRange out, in;
    TENSOROPT_RETURN_IF_ERROR(out.Init(destination_ < 0 ? 0 : Bytes(x)));
    TENSOROPT_RETURN_IF_ERROR(in.Init(Bytes(*y)));
    if (destination_ >= 0) meter_->Add(kind_, Bytes(x));
    TENSOROPT_MPI(MPI_Sendrecv, Data(x), out.count(), out.type(), destination_ < 0 ? MPI_PROC_NULL : destination_, 0,
                  Data(*y), in.count(), in.type(), source_ < 0 ? MPI_PROC_NULL : source_, 0, communicator_,
                  MPI_STATUS_IGNORE);
    return absl::OkStatus();
  }

 private:
  int source_ = -1;
  int destination_ = -1;
  TensorShape shape_;
};

// -------------------------------------------------------------------------------------------------------------- ops

#define TENSOROPT_MOVED_TYPES                                                                                     \
  "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool, complex64," \
  " complex128}"

absl::Status SameShape(InferenceContext* context) {
  context->set_output(0, context->input(0));
  return absl::OkStatus();
}

absl::Status StackedShape(InferenceContext* context) {
  int64_t size;
  TENSOROPT_RETURN_IF_ERROR(context->GetAttr("size", &size));
  ShapeHandle shape;
  TENSOROPT_RETURN_IF_ERROR(context->Concatenate(context->Vector(size), context->input(0), &shape));
  context->set_output(0, shape);
  return absl::OkStatus();
}

absl::Status SliceShape(InferenceContext* context) {
  ShapeHandle shape;
  TENSOROPT_RETURN_IF_ERROR(context->Subshape(context->input(0), 1, &shape));
  context->set_output(0, shape);
  return absl::OkStatus();
}

absl::Status MovedShape(InferenceContext* context) {
  int64_t source;
  tensorflow::PartialTensorShape given;
  ShapeHandle shape;
  TENSOROPT_RETURN_IF_ERROR(context->GetAttr("source", &source));
  TENSOROPT_RETURN_IF_ERROR(context->GetAttr("shape", &given));
  TENSOROPT_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(given, &shape));
  context->set_output(0, source < 0 ? context->Vector(0) : shape);
  return absl::OkStatus();
}

// Stateful, so that no optimiser removes, folds or merges one: every rank has to run as many.
REGISTER_OP("TensoroptAllReduce")
    .Input("x: T")
    .Output("y: T")
    .Attr(TENSOROPT_MOVED_TYPES)
    .Attr("communicator: int")
    .Attr("meter: int")
    .Attr("op: {'sum', 'max', 'min'}")
    .SetIsStateful()
    .SetShapeFn(SameShape);

REGISTER_OP("TensoroptAllGather")
    .Input("x: T")
    .Output("y: T")
    .Attr(TENSOROPT_MOVED_TYPES)
    .Attr("communicator: int")
    .Attr("meter: int")
    .Attr("size: int >= 1")
    .SetIsStateful()
    .SetShapeFn(StackedShape);

REGISTER_OP("TensoroptReduceScatter")
    .Input("x: T")
    .Output("y: T")
    .Attr(TENSOROPT_MOVED_TYPES)
    .Attr("communicator: int")
    .Attr("meter: int")
    .SetIsStateful()
    .SetShapeFn(SliceShape);

REGISTER_OP("TensoroptAllToAll")
    .Input("x: T")
    .Output("y: T")
    .Attr(TENSOROPT_MOVED_TYPES)
    .Attr("communicator: int")
    .Attr("meter: int")
    .SetIsStateful()
    .SetShapeFn(SameShape);

REGISTER_OP("TensoroptBroadcast")
    .Input("x: T")
    .Output("y: T")
    .Attr(TENSOROPT_MOVED_TYPES)
    .Attr("communicator: int")
    .Attr("meter: int")
    .Attr("root: int >= 0")
    .SetIsStateful()
    .SetShapeFn(SameShape);

REGISTER_OP("TensoroptPermute")
    .Input("x: T")
    .Output("y: T")
    .Attr(TENSOROPT_MOVED_TYPES)
    .Attr("communicator: int")
    .Attr("meter: int")
    .Attr("source: int >= 0")
    .Attr("destination: int >= 0")
    .SetIsStateful()
    .SetShapeFn(SameShape);

REGISTER_OP("TensoroptMove")
    .Input("x: T")
    .Output("y: T")
    .Attr(TENSOROPT_MOVED_TYPES)
    .Attr("communicator: int")
    .Attr("meter: int")
    .Attr("source: int >= -1")
    .Attr("destination: int >= -1")
    .Attr("shape: shape")
    .SetIsStateful()
    .SetShapeFn(MovedShape);

// MPI takes tensors in the host's memory. On a GPU, TensorFlow copies those that are elsewhere there, and back.
#define TENSOROPT_KERNELS(kernel)                                                             \
  REGISTER_KERNEL_BUILDER(Name("Tensoropt" #kernel).Device(tensorflow::DEVICE_CPU), kernel);   \
  REGISTER_KERNEL_BUILDER(                                                                     \
      Name("Tensoropt" #kernel).Device(tensorflow::DEVICE_GPU).HostMemory("x").HostMemory("y"), kernel)

TENSOROPT_KERNELS(AllReduce);
TENSOROPT_KERNELS(AllGather);
TENSOROPT_KERNELS(ReduceScatter);
TENSOROPT_KERNELS(AllToAll);
TENSOROPT_KERNELS(Broadcast);
TENSOROPT_KERNELS(Permute);
TENSOROPT_KERNELS(Move);

}  // namespace tensoropt

// --------------------------------------------------------------------------------------- for Python, through ctypes

extern "C" {

int64_t tensoropt_meter_new() {
  std::lock_guard<std::mutex> lock(tensoropt::meters_mutex);
  tensoropt::Meters().emplace_back();
  return static_cast<int64_t>(tensoropt::Meters().size()) - 1;
}

void tensoropt_meter_read(int64_t number, int64_t* bytes) { tensoropt::FindMeter(number)->Read(bytes); }

void tensoropt_meter_reset(int64_t number) { tensoropt::FindMeter(number)->Reset(); }

int64_t tensoropt_meter_state(int64_t number, char* name, int64_t capacity, double* waiting_s) {
  return tensoropt::FindMeter(number)->State(name, capacity, waiting_s);
}

void tensoropt_meter_start_journal(int64_t number, int64_t collectives) {
  tensoropt::FindMeter(number)->StartJournal(collectives);
}

int64_t tensoropt_meter_read_journal(int64_t number, int64_t* times) {
  return tensoropt::FindMeter(number)->ReadJournal(times);
}

void tensoropt_set_max_count(int64_t count) { tensoropt::max_count.store(count); }

// 1 if the MPI that this library is linked to has been started, by whoever.
int32_t tensoropt_mpi_initialized() {
  int flag = 0;
  return MPI_Initialized(&flag) == MPI_SUCCESS && flag ? 1 : 0;
}

}  // extern "C"
